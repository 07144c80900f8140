"""The driver of a job that may outlive it, in a process of its own: says on standard output how it goes.

Each line is one word, and what belongs to it: `ready`, `standby`, `running`, `restored <checkpoint>`, `completed
<checkpoint>`, `over <outcome>`. Between `ready`, when it has a Spark, and all others it waits for a line on its
standard input: a Spark that comes up takes all that the machine has, also from a driver that must show that it lives.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa

import penstock as ps

# What is defined here goes to the workers by value: they cannot import a test's helper.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = 3_000
SPLITS = 3
JOB = "numbers"
PATIENCE = "10s"
"""How long a driver may be silent before another has its job: longer than a busy machine keeps a process waiting."""


class NumbersReader(ps.SourceReader):
    """Counts in each split, slowly until a file exists."""

    def __init__(self, splits: Sequence[bytes], gate: Path) -> None:
        self._next = dict(json.loads(split) for split in splits)
        self._gate = gate
        self._due_ms = 0

    def poll(self, max_rows: int, now_ms: int) -> pa.RecordBatch | ps.Pause | ps.End:
        if not self._next:
            return ps.End()
        if not self._gate.exists():
            if now_ms < self._due_ms or min(self._next.values()) > ROWS // 2:
                return ps.Pause(5)
            self._due_ms = now_ms + 5
        split = min(self._next, key=lambda name: self._next[name])
        first = self._next[split]
        numbers = range(first, min(first + 7, ROWS))
        self._next[split] = numbers.stop
        if numbers.stop == ROWS:
            del self._next[split]
        return pa.record_batch({"split": [split] * len(numbers), "number": list(numbers)}, schema=Numbers.columns)

    def snapshot(self) -> list[bytes]:
        return [json.dumps(item).encode() for item in self._next.items()]


class Numbers(ps.Source):
    """Notes every time that it is asked for its splits."""

    columns = pa.schema([("split", pa.string()), ("number", pa.int64())])

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def schema(self) -> pa.Schema:
        return self.columns

    def splits(self, parallelism: int) -> list[bytes]:
        with (self._folder / "asked").open("a") as notes:
            notes.write(f"{os.getpid()}\n")
        return [json.dumps((f"split-{n}", 0)).encode() for n in range(SPLITS)]

    def open(self, splits: Sequence[bytes]) -> ps.SourceReader:
        return NumbersReader(splits, self._folder / "gate")


def write_parquet(env: ps.Environment, spark: Any, folder: Path) -> None:
    """The numbers as files."""
    env.read(Numbers(folder), name="numbers").write(ps.parquet(str(folder / "out")))


def main(
    folder: Path,
    meeting_place: str,
    build: Callable[[ps.Environment, Any, Path], None] = write_parquet,
    *,
    cores: int = 2,
    interval: str = "200ms",
    starts: int = 1,
) -> None:
    """Have the job, or wait for it, until it has ended. If it is lost, wait for it again, up to so many `starts`."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.pyspark.python", sys.executable)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    _say("ready")
    sys.stdin.readline()
    where = (
        ps.zookeeper(meeting_place, root=f"/{folder.name}", session_timeout=PATIENCE)
        if meeting_place
        else ps.ha_files(folder / "drivers", lease=PATIENCE)
    )
    for _ in range(starts):
        env = ps.Environment(
            spark,
            parallelism=1,
            checkpointing=ps.Checkpointing(interval=interval, directory=folder / "checkpoints"),
            high_availability=where,
        )
        build(env, spark, folder)
        if _follow(env.start(JOB)) != "JobTakenOver":
            break
    spark.stop()


def _follow(job: ps.Job) -> str:
    """Say how it goes; how it was over."""
    said: list[str] = []
    while not job.is_over:
        view = job.view()
        done = [c.checkpoint for c in view.checkpoints.history if c.status.value == "COMPLETED"]
        restored = [] if view.restored_checkpoint is None else [f"restored {view.restored_checkpoint}"]
        for line in (view.state.value, *restored, *(f"completed {checkpoint}" for checkpoint in done)):
            if line not in said:
                said.append(line)
                _say(line)
        time.sleep(0.02)
    try:
        state = job.wait().state.value
    except ps.StreamError as error:
        _say(f"over {type(error).__name__}: {error.message}")
        return type(error).__name__
    _say(f"over {state}")
    return state


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
