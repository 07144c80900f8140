"""Records with consecutive numbers, and the check that no record is missing, repeated or out of order.

Every key is in one split, and the records of a key are numbered 0, 1, 2 and so on. So the output of a job can be judged
without a reference: the output must have every number of a key up to the last number, once, in order. A source that has
ended has recorded the end of each split, so that the last number of every key is known too.

A source reads until the file `end` exists. Then the end of each split is settled: the first reader of a split that sees
the file `end` writes the number of the row that the reader has come to into the file `end-<split>`. A reader that reads
the split again after a failure reads exactly up to that row.

    <control>/end          the order to end
    <control>/end-<split>  the first row that the split does not have
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.connector import End, Polled, Source, SourceReader
from penstock.core.errors import InvariantError

SCHEMA = pa.schema([("key", pa.int64()), ("seq", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
TICK_US = 1_000
"""The event time between two records of a key."""

_ORDER = "end"

Int64s = npt.NDArray[np.int64]


class _Position(msgspec.Struct, frozen=True):
    split: int
    next_row: int


@dataclass(frozen=True, kw_only=True)
class Sequences(Source):
    """Row n of split s is number n // keys of key s * keys + n % keys."""

    keys: int
    """How many keys each split has."""
    control: str
    """The folder of the files by which the source is told to end. The folder must exist."""

    @property
    def schema(self) -> pa.Schema:
        """Key, number, and an event time that grows with the number."""
        return SCHEMA

    def splits(self, parallelism: int) -> list[bytes]:
        """One split for each subtask."""
        return [msgspec.msgpack.encode(_Position(split, 0)) for split in range(parallelism)]

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        """A reader over these splits."""
        positions = [msgspec.msgpack.decode(split, type=_Position) for split in splits]
        return _SequencesReader(self.keys, Path(self.control), positions)


class _SequencesReader(SourceReader):
    def __init__(self, keys: int, control: Path, positions: list[_Position]) -> None:
        self._keys = keys
        self._control = control
        self._positions = positions
        self._ends: dict[int, int] = {}

    def poll(self, max_rows: int, now_ms: int) -> Polled:  # noqa: ARG002
        while self._positions:
            position = self._positions.pop(0)
            end = self._end_of(position)
            count = max_rows if end is None else min(max_rows, end - position.next_row)
            if count > 0:
                self._positions.append(_Position(position.split, position.next_row + count))
                return self._rows(position, count)
        return End()

    def snapshot(self) -> list[bytes]:
        return [msgspec.msgpack.encode(position) for position in self._positions]

    def _rows(self, position: _Position, count: int) -> pa.RecordBatch:
        rows = np.arange(position.next_row, position.next_row + count, dtype=np.int64)
        numbers = rows // self._keys
        times = pa.array(numbers * TICK_US).cast(SCHEMA.field("ts").type)
        return pa.record_batch(
            [pa.array(rows % self._keys + position.split * self._keys), pa.array(numbers), times], schema=SCHEMA
        )

    def _end_of(self, position: _Position) -> int | None:
        """The row at which the split ends; None while there is no order to end. If the end of the split is not settled
        yet, it is settled here."""
        end = self._ends.get(position.split)
        if end is None:
            if not (self._control / _ORDER).exists():
                return None
            end = self._ends[position.split] = _settle(self._control, position)
        if position.next_row > end:
            raise InvariantError(f"split {position.split} was read to row {position.next_row}, but ends at row {end}")
        return end


def _settle(control: Path, position: _Position) -> int:
    final = _end_file(control, position.split)
    own = final.with_name(f"{final.name}.{os.getpid()}")
    own.write_text(str(position.next_row), encoding="ascii")
    # The link appears with the whole content or not at all, even if this process is killed now. And only the first
    # link counts.
    with suppress(FileExistsError):
        os.link(own, final)
    own.unlink()
    return int(final.read_text(encoding="ascii"))


def _end_file(control: Path, split: int) -> Path:
    return control / f"{_ORDER}-{split}"


def tell_to_end(control: Path) -> None:
    """Tell the source to end. A second call does nothing."""
    (control / _ORDER).touch()


def expected_numbers(control: Path, *, splits: int, keys: int) -> Int64s:
    """How many records each key has, by key. The source must have been told to end, and must have been read to its
    end."""
    ends = [int(_end_file(control, split).read_text(encoding="ascii")) for split in range(splits)]
    offsets = np.arange(keys, dtype=np.int64)
    return np.concatenate([(end - offsets + keys - 1) // keys for end in ends])


# --- the check -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Damage:
    """The faults of an output."""

    lost: int = 0
    """Numbers that are missing."""
    duplicated: int = 0
    """Records that should not be there: repeated numbers, each repetition counted, and numbers that the source does not
    have."""
    out_of_order: int = 0
    """Numbers that come behind a greater number of their key. A repeated number counts as duplicated only."""

    @property
    def is_none(self) -> bool:
        """Whether nothing is wrong."""
        return self == Damage()

    def __add__(self, other: Damage) -> Damage:
        return Damage(
            lost=self.lost + other.lost,
            duplicated=self.duplicated + other.duplicated,
            out_of_order=self.out_of_order + other.out_of_order,
        )


def check_sequences(keys: Int64s, numbers: Int64s, *, expected: Int64s | None) -> Damage:
    """Judge records, which are given in the order in which they were committed.

    `expected` says how many numbers each key must have, by key. If `expected` is None, every key must have all numbers
    up to its greatest number.
    """
    by_key = np.argsort(keys, kind="stable")
    keys, numbers = keys[by_key], numbers[by_key]
    is_first = _first_occurrences(keys, numbers)
    duplicated = len(keys) - int(is_first.sum())
    keys, numbers = keys[is_first], numbers[is_first]
    if expected is None:
        expected = _up_to_the_greatest(keys, numbers)
    wanted = np.zeros(len(keys), dtype=np.bool_)
    known = (keys >= 0) & (keys < len(expected)) & (numbers >= 0)
    wanted[known] = numbers[known] < expected[keys[known]]
    return Damage(
        lost=int(expected.sum()) - int(wanted.sum()),
        # Records that the source does not have count as duplicated.
        duplicated=duplicated + int((~wanted).sum()),
        out_of_order=_behind_a_greater_one(keys, numbers),
    )


def _first_occurrences(keys: Int64s, numbers: Int64s) -> npt.NDArray[np.bool_]:
    """Which records are the first record with their key and number."""
    order = np.lexsort((numbers, keys))
    repeats = (np.diff(keys[order]) == 0) & (np.diff(numbers[order]) == 0)
    is_first = np.ones(len(keys), dtype=np.bool_)
    is_first[order[1:][repeats]] = False
    return is_first


def _up_to_the_greatest(keys: Int64s, numbers: Int64s) -> Int64s:
    expected = np.zeros(int(keys.max()) + 1 if len(keys) else 0, dtype=np.int64)
    np.maximum.at(expected, keys, numbers + 1)
    return expected


def _behind_a_greater_one(keys: Int64s, numbers: Int64s) -> int:
    """How many records come behind a greater number of their key. The given records are sorted by key."""
    if not len(keys):
        return 0
    # All numbers of a key are raised above the numbers of the key before, so that one running maximum serves all keys.
    steps = np.concatenate(([0], np.cumsum(np.diff(keys) != 0)))
    lifted = numbers + steps * (int(numbers.max()) + 1)
    return int((lifted < np.maximum.accumulate(lifted)).sum())


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Committed windows, a row each: the key, the number of the window (0 is the first), how many numbers the window
    has, and the sum of the numbers."""

    keys: Int64s
    windows: Int64s
    counts: Int64s
    sums: Int64s


def check_windows(found: Windows, *, size: int, expected: Int64s | None) -> Damage:
    """Judge windows of `size` numbers each.

    `expected` is as in `check_sequences`. If `expected` is None, every window in the output must be complete, and a
    missing window is no fault.
    """
    places, inverse = np.unique(np.stack([found.keys, found.windows]), axis=1, return_inverse=True)
    keys, windows = places
    counts, sums = np.zeros(len(keys), dtype=np.int64), np.zeros(len(keys), dtype=np.int64)
    np.add.at(counts, inverse.ravel(), found.counts)
    np.add.at(sums, inverse.ravel(), found.sums)
    wanted = np.full(len(keys), size, dtype=np.int64)
    missing = 0
    if expected is not None:
        known = (keys >= 0) & (keys < len(expected))
        wanted = np.where(known, np.clip(expected[np.where(known, keys, 0)] - windows * size, 0, size), 0)
        missing = int(expected.sum()) - int(wanted.sum())
    wanted_sums = wanted * windows * size + wanted * (wanted - 1) // 2
    # The window has the right number of records, but a wrong sum: one record is lost, and another record is in its
    # place.
    mixed = int(((counts == wanted) & (sums != wanted_sums)).sum())
    return Damage(
        lost=missing + int(np.maximum(wanted - counts, 0).sum()) + mixed,
        duplicated=int(np.maximum(counts - wanted, 0).sum()) + mixed,
    )
