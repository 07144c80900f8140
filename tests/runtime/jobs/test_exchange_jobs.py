"""Jobs of plain exchanges: tasks that finish long before others, and data that is in flight at a checkpoint."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from json_splits import SplitReader, SplitSource
from threaded_jobs import with_splits

from penstock.api.connector import End, Pause
from penstock.api.program import Program
from penstock.api.steps import MapBatchesStep, MapStep, ReadStep, WriteStep
from penstock.connectors.parquet import parquet
from penstock.core.ids import OperatorId
from penstock.core.job.events import JobState
from penstock.plan.graph import Input, Node, Partitioning, build_plan
from penstock.plan.key_groups import default_max_parallelism
from penstock.runtime.slot.exchange import Exchange
from penstock.runtime.task.channels import ChannelKey, InputChannel
from penstock.runtime.task.partitioning import key_groups
from penstock.settings import CheckpointSettings, FixedDelay, JobSettings, NetworkSettings, SlotSettings

ROWS = 3_000
SCHEMA = pa.schema([("split", pa.int64()), ("n", pa.int64())])


class Reader(SplitReader):
    """One split: numbers from 0 on. The slow split stands still until the gate opens."""

    def poll(self, max_rows: int, now_ms: int):
        if not self._splits:
            return End()
        split = self._splits[0]
        # The slow split reads a row now and then, so that its position differs from checkpoint to checkpoint.
        if split["number"] == 1 and not self._gate.exists():
            if now_ms % 7 or split["at"] >= ROWS // 2:
                return Pause(1)
            max_rows = 1
        rows = min(max_rows, 100, ROWS - split["at"])
        numbers = range(split["at"], split["at"] + rows)
        split["at"] += rows
        if split["at"] >= ROWS:
            self._splits.pop(0)
        return pa.record_batch({"split": [split["number"]] * rows, "n": list(numbers)}, schema=SCHEMA)


def two_splits(gate: Path) -> SplitSource:
    """Split 0 is read at once; split 1 is slow."""
    return SplitSource(SCHEMA, [{"number": i, "at": 0} for i in (0, 1)], Reader, gate)


def plan(out: Path, gate: Path, *, between: Partitioning, function=lambda row: row):
    source = two_splits(gate)
    steps = [
        ("source", ReadStep(source=source, splits=tuple(source.splits(2)))),
        ("pass", MapBatchesStep(function=lambda batch: batch, kind="arrow", schema=SCHEMA)),
        ("map", MapStep(function=function, flat=False, schema=SCHEMA)),
        ("sink", WriteStep(sink=parquet(str(out)), schema=SCHEMA)),
    ]
    kinds = {"pass": between, "map": Partitioning.HASH}
    nodes = [
        Node(
            number=i,
            operator=OperatorId(name),
            name=name,
            step=step,
            inputs=(
                ()
                if i == 0
                else (
                    Input(
                        node=i - 1,
                        partitioning=kinds.get(name, Partitioning.FORWARD),
                        keys=("n",) if kinds.get(name) is Partitioning.HASH else (),
                    ),
                )
            ),
            is_source=i == 0,
        )
        for i, (name, step) in enumerate(steps)
    ]
    return build_plan(tuple(nodes), parallelism=2, max_parallelism=None)


def settings(checkpoint: CheckpointSettings) -> JobSettings:
    return JobSettings(
        parallelism=2,
        checkpoint=checkpoint,
        restart=FixedDelay(attempts=5, delay_ms=5),
        network=NetworkSettings(channel_bytes=4_000, output_bytes=4_000, batch_bytes=1_000),
    )


MODES = {
    "aligned": CheckpointSettings(interval_ms=30),
    "unaligned": CheckpointSettings(interval_ms=30, unaligned=True),
    "time-out": CheckpointSettings(interval_ms=30, unaligned=True, aligned_timeout_ms=1),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("between", [Partitioning.REBALANCE, Partitioning.BROADCAST], ids=lambda p: p.value)
def test_checkpoints_go_on_and_a_killed_slot_is_restored_when_a_source_has_finished(
    threaded_job, tmp_path, mode, between
):
    gate, out = tmp_path / "gate", tmp_path / "out"
    job = threaded_job(plan(out, gate, between=between), settings(MODES[mode]))
    finished_at: list[int] = []
    killed: list[int] = []

    def each_turn(running):
        view = running.driver.view()
        completed = view.checkpoints.counts.completed
        done = view.finished_tasks
        if done and not finished_at:
            finished_at.append(completed)
        if finished_at and not killed and completed >= finished_at[0] + 3 and view.state is JobState.RUNNING:
            killed.append(completed)
            running.slots.kill(1)
        if killed and completed >= killed[0] + 2:
            gate.touch()

    assert job.run(each_turn) is JobState.FINISHED, [f.text for f in job.driver.view().failures]
    assert killed
    assert_each_row(out, copies=2 if between is Partitioning.BROADCAST else 1)


@pytest.mark.parametrize("mode", ["unaligned", "time-out"])
def test_data_in_flight_at_a_checkpoint_is_saved_and_replayed_exactly_once(threaded_job, tmp_path, mode):
    gate, out = tmp_path / "gate", tmp_path / "out"

    def slow(row):
        if not gate.exists():
            time.sleep(0.001)
        return row

    job = threaded_job(plan(out, gate, between=Partitioning.REBALANCE, function=slow), settings(MODES[mode]))
    killed: list[int] = []

    def kill_after_in_flight_data_was_saved(running):
        view = running.driver.view()
        latest = view.checkpoints.latest_completed
        if not killed and latest is not None and latest.totals.persisted_bytes and view.state is JobState.RUNNING:
            killed.append(latest.checkpoint)
            running.slots.kill(0)
        if killed and latest is not None and latest.checkpoint > killed[0] + 1:
            gate.touch()

    assert job.run(kill_after_in_flight_data_was_saved) is JobState.FINISHED
    assert killed
    assert_each_row(out, copies=1)


class InFlight:
    """Bytes that were sent on each channel and are not processed yet, and the most there ever were."""

    def __init__(self, monkeypatch) -> None:
        self._lock = threading.Lock()
        self._now: Counter[ChannelKey] = Counter()
        self.most: Counter[ChannelKey] = Counter()
        deliver, consumed = Exchange.deliver, InputChannel.consumed

        def counted_deliver(exchange, key, item, cost):
            if isinstance(item, pa.RecordBatch):
                self._add(key, item.nbytes)
            deliver(exchange, key, item, cost)

        def counted_consumed(channel, cost):
            self._add(channel.key, -cost)
            consumed(channel, cost)

        monkeypatch.setattr(Exchange, "deliver", counted_deliver)
        monkeypatch.setattr(InputChannel, "consumed", counted_consumed)

    def _add(self, key, size):
        with self._lock:
            self._now[key] += size
            self.most[key] = max(self.most[key], self._now[key])


@pytest.mark.parametrize("tcp", [False, True], ids=["ipc", "tcp"])
def test_a_consumer_that_stalls_gets_no_more_than_its_channels_may_carry(threaded_job, tmp_path, monkeypatch, tcp):
    """Then the tasks before it wait as well, up to the sources, each with no more than it may have waiting."""
    gate, out = tmp_path / "gate", tmp_path / "out"
    in_flight, most_queued = InFlight(monkeypatch), Counter()
    numbers = pa.record_batch({"n": pa.array(range(100))})
    most_groups = default_max_parallelism(2)
    of_slot_1 = int((key_groups(numbers, ("n",), most_groups) >= most_groups // 2).argmax())

    def stall(row):
        # Holds up all of slot 1; the fast split is read in slot 0.
        while row["n"] == of_slot_1 and not gate.exists():
            time.sleep(0.005)
        return row

    patient = SlotSettings(heartbeat_timeout_ms=600_000)
    bounds = replace(settings(CheckpointSettings(interval_ms=None)), slot=patient)
    job = threaded_job(plan(out, gate, between=Partitioning.REBALANCE, function=stall), bounds, tcp=tcp)

    def each_turn(running):
        for task, metrics in running.driver.view().tasks.items():
            most_queued[task] = max(most_queued[task], metrics["queued_bytes"])
        if most_queued["source[0]"] >= bounds.network.output_bytes:
            gate.touch()

    assert job.run(each_turn) is JobState.FINISHED, job.driver.view().failures
    assert_each_row(out, copies=1)
    window, one_batch = bounds.network.channel_bytes, 100 * 16
    assert max(in_flight.most.values()) > window // 2
    assert all(most <= window for most in in_flight.most.values()), in_flight.most
    assert all(most <= 2 * (bounds.network.output_bytes + one_batch) for most in most_queued.values()), most_queued


def assert_each_row(out: Path, *, copies: int) -> None:
    table = pa.concat_tables([pq.read_table(f) for f in sorted(out.glob("part-*.parquet"))])
    rows = sorted(zip(table["split"].to_pylist(), table["n"].to_pylist(), strict=True))
    assert rows == sorted((split, n) for split in (0, 1) for n in range(ROWS) for _ in range(copies))


@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
def test_streams_of_different_distribution_become_one_over_a_killed_slot(threaded_job, tmp_path, mode):
    """One source goes to a subtask each, the other to all of them; both wait for the gate."""
    gate, out = tmp_path / "gate", tmp_path / "out"
    made = settings(MODES[mode])
    program = Program(made)
    streams = [program.read(two_splits(gate), name=name) for name in ("once", "everywhere")]
    streams[0].union(streams[1].broadcast()).rebalance().where("n >= 0").write(parquet(str(out)))
    job = threaded_job(with_splits(program.plan()), made)
    killed: list[int] = []

    def each_turn(running):
        view = running.driver.view()
        completed = view.checkpoints.counts.completed
        if not killed and completed >= 2 and view.state is JobState.RUNNING:
            killed.append(completed)
            running.slots.kill(0)
        if killed and completed >= killed[0] + 2:
            gate.touch()

    assert job.run(each_turn) is JobState.FINISHED, [f.text for f in job.driver.view().failures]
    assert_each_row(out, copies=3)
