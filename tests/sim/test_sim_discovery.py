"""Simulated jobs whose source finds its splits over time, while processes die."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

import penstock.testing as kit
from penstock.api.connector import End, Found, Source, SourceReader, SplitEnumerator

SPLITS = 40
ROWS = 4
SCHEMA = pa.schema([("split", pa.int64()), ("row", pa.int64())])


class Parts(SourceReader):
    def __init__(self, splits) -> None:
        self._splits = [pickle.loads(split) for split in splits]

    def poll(self, max_rows, now_ms):
        if not self._splits:
            return End()
        number, position = self._splits.pop(0)
        stop = min(position + 2, ROWS)
        if stop < ROWS:
            self._splits.insert(0, (number, stop))
        rows = list(range(position, stop))
        return pa.RecordBatch.from_arrays([pa.array([number] * len(rows)), pa.array(rows)], schema=SCHEMA)

    def snapshot(self):
        return [pickle.dumps(split) for split in self._splits]

    def add_splits(self, splits):
        self._splits += [pickle.loads(split) for split in splits]


class Slowly(SplitEnumerator):
    def discover(self, position):
        begin = int(position or b"0")
        stop = begin + 1
        splits = [pickle.dumps((number, 0)) for number in range(begin, stop)]
        return Found(position=b"%d" % stop, splits=splits, ended=stop == SPLITS, wait_ms=1)


class Discovered(Source):
    schema = SCHEMA
    discovers = True

    def splits(self, parallelism):
        return []

    def enumerator(self):
        return Slowly()

    def open(self, splits):
        return Parts(splits)


@pytest.mark.parametrize("seed", range(24))
def test_every_split_that_is_found_is_read_once_whoever_dies(seed):
    rows = kit.run(
        lambda env: env.read(Discovered()).rebalance().write(kit.collect()),
        parallelism=1 + seed % 3,
        seed=seed,
        crashes=seed % 4,
        checkpoint_interval="10ms",
    )
    found = sorted((row["split"], row["row"]) for row in rows)
    assert found == [(split, row) for split in range(SPLITS) for row in range(ROWS)]
