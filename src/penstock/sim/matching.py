"""The step of a world that looks for matches of a pattern, and what matches there are.

There are four patterns, so that conditions refer to earlier records, records follow directly, something does not happen
in time, and matches are skipped. Each match becomes a row that follows from all its records. For the first of these
patterns, partial matches that run out of time become rows, too.
"""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from penstock.api.functions import EPOCH
from penstock.api.lateness import LateRecords
from penstock.api.pattern_steps import MATCH_TIME, PatternStep
from penstock.api.patterns import Pattern, pattern
from penstock.api.streams.matching import pattern_step
from penstock.sim.inputs import Row
from penstock.sim.jobs import SCHEMA, TICK_US, Sought

WITHIN_US = 12 * TICK_US
_WITHIN = f"{WITHIN_US}us"
_MANY = 1_000_003
_OUT_OF_TIME = -1


PATTERNS: dict[Sought, Pattern] = {
    Sought.RISE: pattern("a", where="value % 3 = 0").followed_by("b", where="value % 3 = 1 AND value > a.value"),
    Sought.RUN: pattern("a", where="value % 2 = 0")
    .times_or_more(2)
    .consecutive()
    .greedy()
    .next("b", where="value % 2 = 1")
    .skip_past_last(),
    Sought.SILENCE: pattern("a", where="value % 3 = 0").not_followed_by("b", where="value % 3 = 1"),
    Sought.SUMS: pattern("a", where="value % 4 <> 0")
    .times(2)
    .followed_by_any("b", where="2 * value > sum(a.value)")
    .skip_to_next(),
}


def matching(sought: Sought) -> PatternStep:
    """The step that looks for matches."""
    return pattern_step(PATTERNS[sought].within(_WITHIN), ("key",), LateRecords(time_column="ts", schema=SCHEMA))


class Shown:
    """Makes a row of each match."""

    def __init__(self, step: PatternStep, *, out_of_time: bool) -> None:
        self._step = step
        self._out_of_time = out_of_time

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch of matches."""
        rows = []
        times: list[Any] = batch.column(MATCH_TIME).cast(pa.int64()).to_pylist()
        for match, certain in zip(batch.to_pylist(), times, strict=True):
            taken = [match[name] for name in self._step.names]
            records = [each for part in taken for each in (part if isinstance(part, list) else [part]) if each]
            time = certain
            if self._step.shape.skip.waits:
                # A match that waits for others is certain later.
                time = (records[-1]["ts"] - EPOCH) // datetime.timedelta(microseconds=1)
            rows.append(_row(match["key"], [each["seq"] for each in records], time, out_of_time=self._out_of_time))
        columns = [pa.array(column, pa.int64()) for column in (zip(*rows, strict=True) if rows else ([], [], [], []))]
        arrays = [*columns[:3], columns[3].cast(SCHEMA.field("ts").type)]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _row(key: int, seqs: list[int], time: int, *, out_of_time: bool = False) -> Row:
    """The row of a match: its number follows from the numbers of all its records."""
    number = 0
    for seq in seqs:
        number = (number * _MANY + seq + 1) % 2**40
    return key, seqs[-1], _OUT_OF_TIME - number if out_of_time else number, time


def expected_matches(sought: Sought, records: Iterable[Row]) -> Counter[Row]:
    """The rows of all matches, from the records alone. Records of a key come in the order of their numbers."""
    by_key: dict[int, list[Row]] = defaultdict(list)
    for record in records:
        by_key[record[0]].append(record)
    found: Counter[Row] = Counter()
    for rows in by_key.values():
        found.update(_LOOKS[sought](sorted(rows, key=lambda row: (row[3], row[1]))))
    return found


def _following(rows: list[Row], number: int, first: Row) -> Iterator[Row]:
    """The records behind a number that are close enough to the first record."""
    return (row for row in rows[number + 1 :] if row[3] < first[3] + WITHIN_US)


def _rises(rows: list[Row]) -> Iterator[Row]:
    for number, first in enumerate(rows):
        if first[2] % 3 == 0:
            fits = (row for row in _following(rows, number, first) if row[2] % 3 == 1 and row[2] > first[2])
            second = next(fits, None)
            if second is None:
                yield _row(first[0], [first[1]], first[3] + WITHIN_US, out_of_time=True)
            else:
                yield _row(first[0], [first[1], second[1]], second[3])


def _runs(rows: list[Row]) -> Iterator[Row]:
    begin = 0
    for number, first in enumerate(rows):
        end = number
        while end < len(rows) and rows[end][2] % 2 == 0:
            end += 1
        if number >= begin and end - number >= 2 and end < len(rows) and rows[end][3] < first[3] + WITHIN_US:
            yield _row(first[0], [row[1] for row in rows[number : end + 1]], rows[end][3])
            begin = end + 1


def _silences(rows: list[Row]) -> Iterator[Row]:
    for number, first in enumerate(rows):
        if first[2] % 3 == 0 and not any(row[2] % 3 == 1 for row in _following(rows, number, first)):
            yield _row(first[0], [first[1]], first[3] + WITHIN_US)


def _sums(rows: list[Row]) -> Iterator[Row]:
    for number, first in enumerate(rows):
        if first[2] % 4 == 0:
            continue
        behind = list(_following(rows, number, first))
        place = next((place for place, row in enumerate(behind) if row[2] % 4), None)
        if place is None:
            continue
        second = behind[place]
        third = next((row for row in behind[place + 1 :] if 2 * row[2] > first[2] + second[2]), None)
        if third is not None:
            yield _row(first[0], [first[1], second[1], third[1]], third[3])


_LOOKS: dict[Sought, Callable[[list[Row]], Iterator[Row]]] = {
    Sought.RISE: _rises,
    Sought.RUN: _runs,
    Sought.SILENCE: _silences,
    Sought.SUMS: _sums,
}
