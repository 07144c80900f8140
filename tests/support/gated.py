"""A source whose records flow as far as a test lets them, for jobs on a real Spark."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import cloudpickle
import pyarrow as pa

import penstock as ps

# What is defined here goes to the workers by value: they cannot import it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SCHEMA = pa.schema([("split", pa.int64()), ("row", pa.int64())])
SPLITS = 4
ROWS = 3_000


class Gate:
    """A folder that says how many rows of every split may be read: a test lets records flow, and waits for what they
    bring about, instead of hoping that some are left by then."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def open_to(self, rows: int) -> None:
        (self.folder / str(rows)).touch()

    @property
    def stall(self) -> Path:
        """While it is there, the reader of split 1 stays in a call, as if its disk hung."""
        return self.folder.with_name(f"{self.folder.name}-stall")

    @property
    def stalled(self) -> Path:
        """Is there when that reader does."""
        return self.folder.with_name(f"{self.folder.name}-stalled")

    def stay_while_stalled(self) -> None:
        while self.stall.exists():
            self.stalled.touch()
            time.sleep(0.01)

    def limit(self) -> int:
        return max((int(file.name) for file in self.folder.iterdir()), default=0)


class Gated(ps.SourceReader):
    """Reads all its splits in turn, each as far as the gate is open."""

    def __init__(self, splits, gate: Gate, rows_at_once: int = 20) -> None:
        self._splits = [tuple(int(part) for part in split.split(b":")) for split in splits]
        self._gate = gate
        self._rows_at_once = rows_at_once

    def poll(self, max_rows, now_ms):
        if not self._splits:
            return ps.End()
        if any(number == 1 for number, _ in self._splits):
            self._gate.stay_while_stalled()
        limit = self._gate.limit()
        number, position = self._splits.pop(0)
        stop = min(position + self._rows_at_once, limit, ROWS)
        if stop < ROWS:
            self._splits.append((number, max(stop, position)))
        if stop <= position:
            return ps.Pause(2)
        rows = range(position, stop)
        return pa.RecordBatch.from_arrays([pa.array([number] * len(rows)), pa.array(list(rows))], schema=SCHEMA)

    def snapshot(self):
        return [b"%d:%d" % split for split in self._splits]


class Numbers(ps.Source):
    schema = SCHEMA

    def __init__(self, gate: Gate, rows_at_once: int = 20) -> None:
        self._gate = gate
        self._rows_at_once = rows_at_once

    def splits(self, parallelism):
        return [b"%d:0" % number for number in range(SPLITS)]

    def open(self, splits):
        return Gated(splits, self._gate, self._rows_at_once)


def all_rows(limit: int) -> list[tuple[int, int]]:
    return [(split, row) for split in range(SPLITS) for row in range(limit)]


EVERYTHING = all_rows(ROWS)
