"""A job over bids whose end the test decides, for tests on a real Spark."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import cloudpickle
import pyarrow as pa

import penstock as ps
from penstock.storage.locations import open_store

# What is defined here goes to the workers by value: they cannot import a test module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

EVENTS = 600_000


class GatedReader(ps.SourceReader):
    """Holds its last split back until a file exists, and reads slowly meanwhile: with `flow` only while that exists."""

    def __init__(self, reader: ps.SourceReader, gate: Path, flow: Path | None = None) -> None:
        self._reader = reader
        self._gate = gate
        self._flow = flow

    def poll(self, max_rows: int, now_ms: int):
        if not self._gate.exists():
            if len(self._reader.snapshot()) <= 1:
                return ps.Pause(5)
            if self._flow is not None:
                return self._reader.poll(min(max_rows, 20), now_ms) if self._flow.exists() else ps.Pause(2)
            if now_ms % 4:
                return ps.Pause(1)
            # Records must still come when a test has seen what it waited for, also where everything is quick.
            return self._reader.poll(min(max_rows, 200), now_ms)
        return self._reader.poll(min(max_rows, 4_000), now_ms)

    def snapshot(self) -> list[bytes]:
        return self._reader.snapshot()


class GatedBids(ps.Source):
    """Bids that do not end before a file exists: the test decides when they may."""

    def __init__(self, gate: Path, *, events: int = EVENTS, seed: int = 3, flow: Path | None = None) -> None:
        self._inner = ps.nexmark.bids(events=events, seed=seed)
        self._gate = gate
        self._flow = flow

    @property
    def schema(self) -> pa.Schema:
        return self._inner.schema

    def splits(self, parallelism: int) -> list[bytes]:
        return self._inner.splits(parallelism)

    def open(self, splits: Sequence[bytes]) -> ps.SourceReader:
        return GatedReader(self._inner.open(splits), self._gate, self._flow)


class Held:
    """Rows as they are; while a file exists, so slowly that those before it pile up, however slow the machine is."""

    def __init__(self, hold: Path) -> None:
        self._hold = hold
        self._left = 0
        """Rows until it looks again: to look at every one would be slow."""

    def __call__(self, row):
        if self._left == 0:
            self._left = 10
            if self._hold.exists():
                time.sleep(0.01)
        self._left -= 1
        return row


def hot_auctions(env: ps.Environment, source: ps.Source, out: Path) -> None:
    (
        env.read(source)
        .watermark("ts", delay="4s")
        .where("price > 100")
        .key_by("auction")
        .window(ps.tumbling("10s"))
        .aggregate(n=ps.count(), top=ps.max("price"))
        .write(ps.parquet(str(out)))
    )


def reference(spark) -> list[tuple]:
    spark.sql(ps.nexmark.bids_sql(events=EVENTS, seed=3)).createOrReplaceTempView("bids")
    rows = spark.sql(
        "SELECT auction, window.start AS s, count(*) AS n, max(price) AS top FROM bids WHERE price > 100 "
        "GROUP BY auction, window(ts, '10 seconds')"
    ).collect()
    return sorted(tuple(row) for row in rows)


def committed(spark, out: Path) -> list[tuple]:
    return sorted(
        tuple(r) for r in spark.read.parquet(str(out)).select("auction", "window_start", "n", "top").collect()
    )


def checkpointing(tmp_path: Path, interval: str = "200ms") -> ps.Checkpointing:
    return ps.Checkpointing(interval=interval, directory=tmp_path / "checkpoints")


NOTES = ("names", "drivers", "tenures", "outcome", "leases", "counter")
"""What stays of a job that has ended, so that it goes on, or does not, when its program is run again."""


def files_of_jobs(root: str | Path) -> list[str]:
    """What jobs have in a checkpoint directory, their notes aside."""
    found = [path for path in open_store(root).list_files("") if not path.startswith("names/")]
    return [path for path in found if path.split("/")[1] not in NOTES]


def files_below(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file()]
