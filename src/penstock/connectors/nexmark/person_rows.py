"""Nexmark's persons.

Person n is event n * 50. Its fields are cut from three draws:

salt 10  bits 0-15 the first name, 16-31 the last name, 32-47 the city, 48-63 the state
salt 11  four times 16 bits: the groups of digits of the credit card
salt 12  the texts: where they begin (12 bits each), and how long they are (16 bits)
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.connectors.nexmark.draws import FIRST_ID, Draws, bits, bits_sql, draw_sql, micros, picks, picks_sql
from penstock.connectors.nexmark.texts import chosen, chosen_sql, parts, parts_sql, short_parts

_FIELDS: list[pa.Field[Any]] = [
    pa.field("id", pa.int64()),
    pa.field("name", pa.string()),
    pa.field("email_address", pa.string()),
    pa.field("credit_card", pa.string()),
    pa.field("city", pa.string()),
    pa.field("state", pa.string()),
    pa.field("ts", pa.timestamp("us", "UTC")),
    pa.field("extra", pa.string()),
]
SCHEMA = pa.schema(_FIELDS)
EVENTS_PER_ROUND = 50
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = (
    *("Tucson", "Sacramento", "Oakland", "Nampa", "Eugene"),
    *("Salem", "Spokane", "Tacoma", "Yakima", "Laramie"),
)
FIRST_NAMES = ("Ada", "Ben", "Cleo", "Dora", "Emil", "Faye", "Gus", "Hana", "Ivo", "Jane", "Kurt", "Lena")
LAST_NAMES = ("Abel", "Brook", "Crane", "Dunn", "Ellis", "Frost", "Grant", "Hale", "Irwin")
LEAST_EXTRA, EXTRAS = 102, 52
"""A person has 200 bytes on average."""

_NAMES, _CARD, _TEXTS = 10, 11, 12
_DIGITS = tuple(f"{number:04}" for number in range(10_000))


class PersonGenerator:
    """Makes any range of persons."""

    def __init__(self, *, seed: int, events_per_second: int, base_time: datetime) -> None:
        self._events_per_second = events_per_second
        self._base_us = micros(base_time)
        self._names, self._card, self._texts = (Draws(seed, salt) for salt in (_NAMES, _CARD, _TEXTS))

    def batch(self, start: int, stop: int) -> pa.RecordBatch:
        """Persons from `start` up to, not including, `stop`."""
        count = stop - start
        numbers = np.arange(start, stop, dtype=np.int64)
        names, card, texts = (draws.of(start, count) for draws in (self._names, self._card, self._texts))
        times = numbers * EVENTS_PER_ROUND * 1_000_000 // self._events_per_second + self._base_us
        user = short_parts(bits(texts, 0, 12), 3 + (bits(texts, 40, 16) % 5))
        host = short_parts(bits(texts, 12, 12), 3 + (bits(texts, 40, 16) % 3))
        columns: list[Any] = [
            pa.array(numbers + FIRST_ID),
            _joined(
                " ",
                chosen(FIRST_NAMES, picks(names, 0, len(FIRST_NAMES))),
                chosen(LAST_NAMES, picks(names, 16, len(LAST_NAMES))),
            ),
            _joined(".", _joined("@", user, host), chosen(("com",), np.zeros(count, np.int64))),
            _joined(" ", *(chosen(_DIGITS, picks(card, first, 10_000)) for first in (0, 16, 32, 48))),
            chosen(CITIES, picks(names, 32, len(CITIES))),
            chosen(STATES, picks(names, 48, len(STATES))),
            pa.array(times).view(SCHEMA.field("ts").type),
            parts(bits(texts, 24, 12), LEAST_EXTRA + picks(texts, 40, EXTRAS)),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _joined(between: str, *texts: pa.StringArray) -> pa.StringArray:
    found = pc.binary_join_element_wise(*texts, pa.scalar(between))  # type: ignore[call-overload]  # takes scalars, too
    assert isinstance(found, pa.StringArray)
    return found


def person_columns_sql(*, seed: int, events_per_second: int, base_time: datetime) -> tuple[str, ...]:
    """Spark SQL expressions for the columns of person `n`, where `n` is a column of type bigint."""
    names, card, texts = (draw_sql(seed, salt) for salt in (_NAMES, _CARD, _TEXTS))
    length = bits_sql(texts, 40, 16)
    first, last = picks_sql(names, 0, len(FIRST_NAMES)), picks_sql(names, 16, len(LAST_NAMES))
    user = parts_sql(bits_sql(texts, 0, 12), f"3 + {length} % 5")
    host = parts_sql(bits_sql(texts, 12, 12), f"3 + {length} % 3")
    groups = ", ".join(f"lpad(CAST({picks_sql(card, bit, 10_000)} AS STRING), 4, '0')" for bit in (0, 16, 32, 48))
    return (
        f"{FIRST_ID} + n AS id",
        f"concat_ws(' ', {chosen_sql(FIRST_NAMES, first)}, {chosen_sql(LAST_NAMES, last)}) AS name",
        f"concat({user}, '@', {host}, '.com') AS email_address",
        f"concat_ws(' ', {groups}) AS credit_card",
        f"{chosen_sql(CITIES, picks_sql(names, 32, len(CITIES)))} AS city",
        f"{chosen_sql(STATES, picks_sql(names, 48, len(STATES)))} AS state",
        f"timestamp_micros({micros(base_time)}L + n * {EVENTS_PER_ROUND}000000L div {events_per_second}) AS ts",
        f"{parts_sql(bits_sql(texts, 24, 12), f'{LEAST_EXTRA} + {picks_sql(texts, 40, EXTRAS)}')} AS extra",
    )
