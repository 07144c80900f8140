"""What had ended for good in a checkpoint does not run again: no operator of it is opened, read or finished."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.api.connector import End, Pause, Sink, Source, SourceReader
from penstock.api.steps import MapBatchesStep, ReadStep, WriteStep
from penstock.connectors.parquet import ParquetSink, parquet
from penstock.core.errors import StorageError
from penstock.core.ids import CheckpointId, OperatorId
from penstock.core.job.events import JobState
from penstock.core.recovery.metadata import Claim, MatchingRules, restored_from
from penstock.plan.graph import Input, Node, Partitioning, build_plan
from penstock.runtime.task.operators.source import SourceOperator
from penstock.settings import CheckpointSettings, FixedDelay, JobSettings, NetworkSettings, Retention
from penstock.storage.files import FileStore
from penstock.storage.restoring import find_snapshot

ROWS = 200
SCHEMA = pa.schema([("source", pa.string()), ("n", pa.int64())])
FAST, SLOW = "fast", "slow"


class Reader(SourceReader):
    def __init__(self, name: str, splits: list[int], gate: Path | None) -> None:
        self._name = name
        self._splits = splits
        self._gate = gate

    def poll(self, max_rows: int, now_ms: int):
        if self._gate is not None and not self._gate.exists():
            return Pause(1)
        if not self._splits:
            return End()
        first = self._splits.pop()
        return pa.record_batch({"source": [self._name] * ROWS, "n": list(range(first, first + ROWS))}, schema=SCHEMA)

    def snapshot(self) -> list[bytes]:
        return [json.dumps(first).encode() for first in self._splits]


class Numbers(Source):
    """Two splits of `ROWS` numbers; with a gate not before it opens."""

    def __init__(self, name: str, gate: Path | None = None) -> None:
        self._name = name
        self._gate = gate

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    def splits(self, parallelism: int) -> list[bytes]:
        return [json.dumps(i * ROWS).encode() for i in range(2)]

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        return Reader(self._name, [json.loads(split) for split in splits], self._gate)


READ: Counter[str] = Counter()
"""How many records of each source the step `Slowly` has begun to handle."""


class Slowly:
    """Hands batches on, each after a pause until the gate opens."""

    def __init__(self, gate: Path) -> None:
        self._gate = gate

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        READ.update(batch.column("source").to_pylist())
        if not self._gate.exists():
            time.sleep(0.1)
        return batch


def plan_of(out: Path, gate: Path, parallelism: int, sink: Sink | None = None, both=lambda batch: batch):
    """Two sources into one sink: one is at its end at once, the other when the gate opens."""
    sources = {FAST: Numbers(FAST), SLOW: Numbers(SLOW, gate)}
    nodes = [
        Node(
            number=i,
            operator=OperatorId(name),
            name=name,
            step=ReadStep(source=source, splits=tuple(source.splits(parallelism))),
            is_source=True,
        )
        for i, (name, source) in enumerate(sources.items())
    ]
    inputs = tuple(Input(node=i, partitioning=Partitioning.HASH, keys=("n",)) for i in range(2))
    step = MapBatchesStep(function=both, kind="arrow", schema=SCHEMA)
    nodes.append(Node(number=2, operator=OperatorId("both"), name="both", step=step, inputs=inputs))
    write = WriteStep(sink=sink or parquet(str(out)), schema=SCHEMA)
    nodes.append(Node(number=3, operator=OperatorId("sink"), name="sink", step=write, inputs=(Input(node=2),)))
    return build_plan(tuple(nodes), parallelism=parallelism, max_parallelism=16)


def settings(parallelism: int, **checkpoint) -> JobSettings:
    return JobSettings(
        parallelism=parallelism,
        checkpoint=CheckpointSettings(**{"interval_ms": 20, "retention": Retention.KEEP, **checkpoint}),
        restart=FixedDelay(attempts=5, delay_ms=5),
    )


@pytest.fixture
def lives(monkeypatch):
    """(what, operator, job, epoch) -> how often; slots are threads of this process."""
    counts: Counter[tuple[str, str, str, int]] = Counter()

    def counted(what, method):
        def call(self, *args):
            context = args[0] if args else self.context
            counts[what, context.operator, context.job, context.epoch] += 1
            return method(self, *args)

        return call

    monkeypatch.setattr(SourceOperator, "open", counted("open", SourceOperator.open))
    monkeypatch.setattr(SourceOperator, "finish", counted("finish", SourceOperator.finish))
    return counts


def assert_each_row(out: Path) -> None:
    table = pa.concat_tables([pq.read_table(f) for f in sorted(out.glob("part-*.parquet"))])
    rows = sorted(zip(table["source"].to_pylist(), table["n"].to_pylist(), strict=True))
    assert rows == sorted((name, n) for name in (FAST, SLOW) for n in range(2 * ROWS))


def fast_has_finished(running) -> bool:
    """Whether a checkpoint is complete in which the fast source is written down as finished."""
    latest = running.driver.view().checkpoints.latest_completed
    if latest is None or running.driver.view().state is not JobState.RUNNING:
        return False
    path = running.folder / "checkpoints" / running.id / f"chk-{latest.checkpoint}"
    if not (path / "_metadata").exists():
        return False
    return find_snapshot(FileStore(path), str(path)).metadata.operators[OperatorId(FAST)].finished


@pytest.mark.parametrize("crashes", [False, True])
def test_checkpoints_complete_while_what_a_finished_source_has_sent_waits(threaded_job, tmp_path, lives, crashes):
    """1. The fast source has ended its data, and the step behind it reads a few records at a time. 2. Checkpoints
    complete, one after the other. 3. If a slot dies then, nothing of what waited is lost."""
    gate, out = tmp_path / "gate", tmp_path / "out"
    READ.clear()
    completed: list[int] = []
    small = NetworkSettings(channel_bytes=100, output_bytes=20_000, batch_bytes=100)
    chosen = replace(settings(2, unaligned=True), network=small)
    job = threaded_job(plan_of(out, gate, 2, both=Slowly(gate)), chosen, job="only")

    def look(running):
        view = running.driver.view()
        if gate.exists() or lives["finish", FAST, "only", view.epoch] < 2:
            return
        completed.append(view.checkpoints.counts.completed)
        if completed[-1] >= completed[0] + 4:
            READ["when complete"] = READ[FAST]
            if crashes:
                running.slots.kill(0)
            gate.touch()

    assert job.run(look) is JobState.FINISHED, job.driver.view().failures
    assert READ["when complete"] < 2 * ROWS
    assert_each_row(out)


@pytest.mark.parametrize("unaligned", [False, True])
def test_after_a_failure_a_finished_source_is_neither_opened_nor_finished_again(
    threaded_job, tmp_path, lives, unaligned
):
    gate, out = tmp_path / "gate", tmp_path / "out"
    job = threaded_job(plan_of(out, gate, 2), settings(2, unaligned=unaligned))
    killed: list[CheckpointId] = []

    def each_turn(running):
        view = running.driver.view()
        if len(killed) < 2 and view.restarts == len(killed) and fast_has_finished(running):
            killed.append(view.checkpoints.latest_completed.checkpoint)
            running.slots.kill(len(killed) - 1)
        latest = view.checkpoints.latest_completed
        # Another checkpoint is taken of the attempt with a vertex that was deployed as finished.
        if view.restarts == 2 and latest is not None and latest.checkpoint > killed[-1] + 1:
            gate.touch()

    assert job.run(each_turn) is JobState.FINISHED, job.driver.view().failures
    assert_each_row(out)
    assert {epoch: n for (what, name, _, epoch), n in lives.items() if (what, name) == ("open", FAST)} == {1: 2}
    assert {epoch: n for (what, name, _, epoch), n in lives.items() if (what, name) == ("finish", FAST)} == {1: 2}
    assert {epoch for what, name, _, epoch in lives if (what, name) == ("open", SLOW)} == {1, 2, 3}
    assert {epoch: n for (what, name, _, epoch), n in lives.items() if (what, name) == ("finish", SLOW)} == {3: 2}


def test_started_from_elsewhere_at_another_parallelism_a_finished_source_stays_finished(threaded_job, tmp_path, lives):
    gate, out = tmp_path / "gate", tmp_path / "out"
    first = threaded_job(plan_of(out, gate, 2), settings(2), job="first")
    assert first.run(lambda job: job.driver.cancel() if fast_has_finished(job) else None) is JobState.CANCELLED
    first.close()
    folder = str(tmp_path / "checkpoints" / "first")
    found = find_snapshot(FileStore(folder), folder)
    record = restored_from(
        found.metadata,
        location=found.folder,
        path=found.path,
        metadata_size=found.metadata_size,
        claim=Claim.NO_CLAIM,
        retention=Retention.KEEP,
        rules=MatchingRules(),
    )
    gate.touch()
    second = threaded_job(plan_of(out, gate, 3), settings(3), job="second", started_from=record)
    assert second.run() is JobState.FINISHED, second.driver.view().failures
    assert_each_row(out)
    assert {name for _, name, job, _ in lives if job == "second"} == {SLOW}


class FailsToCommitOnce(ParquetSink):
    """Another sink, of which the first commit goes wrong."""

    def commit(self, committables: Sequence[bytes]) -> None:
        marker = Path(self.path) / ".failed"
        if not marker.exists():
            marker.touch()
            raise StorageError("not now")
        super().commit(committables)


def test_an_operator_that_finished_before_the_checkpoint_does_not_finish_again_after_it(threaded_job, tmp_path, lives):
    """1. All data has been seen; the only checkpoint, the last one, is complete. 2. Its commit goes wrong, and so the
    attempt fails before its tasks have ended. 3. The next attempt commits, takes one more checkpoint and ends."""
    gate, out = tmp_path / "gate", tmp_path / "out"
    gate.touch()
    plan = plan_of(out, gate, 2, sink=FailsToCommitOnce(path=str(out)))
    job = threaded_job(plan, settings(2, interval_ms=None))
    assert job.run() is JobState.FINISHED, job.driver.view().failures
    assert job.driver.view().restarts == 1
    assert_each_row(out)
    finishes = {(name, epoch): n for (what, name, _, epoch), n in lives.items() if what == "finish"}
    assert finishes == {(FAST, 1): 2, (SLOW, 1): 2}
