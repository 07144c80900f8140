"""Jobs that start from what another job left: at any parallelism, with data in flight, moved, claimed or not."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from json_splits import SplitReader, SplitSource

from penstock.api.connector import End, Pause
from penstock.api.steps import MapBatchesStep, MapStep, ReadStep, WriteStep
from penstock.connectors.parquet import parquet
from penstock.core.coordinator.events import RequestKind
from penstock.core.errors import CorruptFile
from penstock.core.ids import OperatorId
from penstock.core.job.events import JobState
from penstock.core.recovery.metadata import Claim, CompletedCheckpoint, MatchingRules, SnapshotKind, restored_from
from penstock.plan.graph import Input, Node, Partitioning, Plan, build_plan
from penstock.runtime.master.driver import SnapshotRequest
from penstock.settings import CheckpointSettings, FixedDelay, JobSettings, NetworkSettings, Retention
from penstock.storage.files import FileStore
from penstock.storage.restoring import find_snapshot
from penstock.storage.seals import PLAIN, StoreOptions

SPLITS = 6
ROWS = 700
"""Of each split."""
GROUPS = 32
SCHEMA = pa.schema([("split", pa.int64()), ("n", pa.int64())])


class Reader(SplitReader):
    """Numbers from 0 on, split by split in turn. Stops half way until the gate opens."""

    def poll(self, max_rows: int, now_ms: int):
        if not self._splits:
            return End()
        split = self._splits.pop(0)
        self._splits.append(split)
        end = ROWS if self._gate.exists() else ROWS * 3 // 4
        rows = min(max_rows, 40, end - split["at"])
        if rows <= 0:
            return Pause(1)
        numbers = range(split["at"], split["at"] + rows)
        split["at"] += rows
        if split["at"] >= ROWS:
            self._splits.remove(split)
        return pa.record_batch({"split": [split["number"]] * rows, "n": list(numbers)}, schema=SCHEMA)


def numbers(gate: Path) -> SplitSource:
    """All splits together."""
    return SplitSource(SCHEMA, [{"number": i, "at": 0} for i in range(SPLITS)], Reader, gate)


def plan_of(out: Path, gate: Path, parallelism: int) -> Plan:
    """Both kinds of exchange that can hold something in flight, and a slow step behind them."""

    def slow(row):
        if not gate.exists():
            time.sleep(0.001)
        return row

    source = numbers(gate)
    steps = [
        ("source", ReadStep(source=source, splits=tuple(source.splits(parallelism))), Input(node=0)),
        (
            "pass",
            MapBatchesStep(function=lambda batch: batch, kind="arrow", schema=SCHEMA),
            Input(node=0, partitioning=Partitioning.REBALANCE),
        ),
        (
            "slow",
            MapStep(function=slow, flat=False, schema=SCHEMA),
            Input(node=1, partitioning=Partitioning.HASH, keys=("n",)),
        ),
        ("sink", WriteStep(sink=parquet(str(out)), schema=SCHEMA), Input(node=2)),
    ]
    nodes = tuple(
        Node(number=i, operator=OperatorId(name), name=name, step=step, inputs=(come,) if i else (), is_source=i == 0)
        for i, (name, step, come) in enumerate(steps)
    )
    return build_plan(nodes, parallelism=parallelism, max_parallelism=GROUPS)


def settings(parallelism: int, **checkpoint) -> JobSettings:
    chosen = {"interval_ms": 30, "unaligned": True, "retention": Retention.KEEP, **checkpoint}
    return JobSettings(
        parallelism=parallelism,
        checkpoint=CheckpointSettings(**chosen),
        restart=FixedDelay(attempts=3, delay_ms=5),
        network=NetworkSettings(channel_bytes=4_000, output_bytes=4_000, batch_bytes=1_000),
    )


def start_from(
    folder: Path,
    claim: Claim = Claim.NO_CLAIM,
    rules: MatchingRules | None = None,
    retention: Retention = Retention.KEEP,
    options: StoreOptions = PLAIN,
) -> CompletedCheckpoint:
    """The record of what lies in a folder, as a job gets it that starts from there."""
    found = find_snapshot(FileStore(folder, options=options), str(folder))
    return restored_from(
        found.metadata,
        location=found.folder,
        path=found.path,
        metadata_size=found.metadata_size,
        claim=claim,
        retention=retention,
        rules=rules or MatchingRules(),
    )


def rows_in(out: Path) -> list[tuple[int, int]]:
    table = pa.concat_tables([pq.read_table(f) for f in sorted(out.glob("part-*.parquet"))])
    return sorted(zip(table["split"].to_pylist(), table["n"].to_pylist(), strict=True))


EVERY_ROW = sorted((split, n) for split in range(SPLITS) for n in range(ROWS))


def cancel_with_data_in_flight(running) -> None:
    """End the job as soon as its newest checkpoint, of its own, has something in flight."""
    latest = running.driver.view().checkpoints.latest_completed
    if latest is not None and latest.totals.persisted_bytes:
        running.driver.cancel()


def stop_into(folder: Path, answers: list):
    """Stop with a savepoint after the first checkpoint."""

    def each_turn(running):
        if not answers and running.driver.view().checkpoints.counts.completed >= 1:
            answers.append(None)
            request = SnapshotRequest(kind=RequestKind.STOP, target=str(folder))
            running.driver.request(request, answers.append)

    return each_turn


def test_from_two_to_three_to_one_to_four_with_data_in_flight_nothing_is_lost_or_repeated(threaded_job, tmp_path):
    gate, out = tmp_path / "gate", tmp_path / "out"
    record = None
    in_flight: list[tuple[int, int]] = []
    for number, parallelism in enumerate((2, 3, 1)):
        job = threaded_job(
            plan_of(out, gate, parallelism), settings(parallelism), job=f"job-{number}", started_from=record
        )
        assert job.run(cancel_with_data_in_flight) is JobState.CANCELLED, job.driver.view().failures
        job.close()
        record = start_from(tmp_path / "checkpoints" / f"job-{number}")
        metadata = find_snapshot(FileStore(tmp_path), record.location).metadata
        in_flight.append(
            (sum(len(t.inputs) for t in metadata.channels), sum(len(t.outputs) for t in metadata.channels))
        )
    gate.touch()
    job = threaded_job(plan_of(out, gate, 4), settings(4), job="job-3", started_from=record)
    assert job.run() is JobState.FINISHED, job.driver.view().failures
    assert all(inputs + outputs for inputs, outputs in in_flight), in_flight
    assert rows_in(out) == EVERY_ROW


def test_a_restore_at_another_parallelism_can_fail_and_be_tried_again(threaded_job, tmp_path):
    gate, out = tmp_path / "gate", tmp_path / "out"
    first = threaded_job(plan_of(out, gate, 2), settings(2), job="first")
    assert first.run(cancel_with_data_in_flight) is JobState.CANCELLED
    first.close()
    record = start_from(tmp_path / "checkpoints" / "first")
    second = threaded_job(plan_of(out, gate, 3), settings(3, interval_ms=None), job="second", started_from=record)
    killed: list[int] = []

    def kill_once(running):
        if not killed and running.driver.view().state is JobState.RUNNING:
            killed.append(1)
            running.slots.kill(1)
            gate.touch()

    assert second.run(kill_once) is JobState.FINISHED, second.driver.view().failures
    assert second.driver.view().restarts == 1
    assert rows_in(out) == EVERY_ROW


@pytest.mark.parametrize("parallelism", [2, 5])
def test_a_savepoint_can_be_moved_and_started_from_at_another_parallelism(threaded_job, tmp_path, parallelism):
    gate, out, answers = tmp_path / "gate", tmp_path / "out", []
    checkpoint = {"inline_threshold_bytes": 0}
    first = threaded_job(plan_of(out, gate, 2), settings(2, **checkpoint), job="first")
    assert first.run(stop_into(tmp_path / "saved", answers)) is JobState.FINISHED
    first.close()
    saved = answers[1]
    assert isinstance(saved, CompletedCheckpoint), saved
    moved = tmp_path / "elsewhere" / "renamed"
    moved.parent.mkdir()
    Path(saved.location).rename(moved)
    record = start_from(moved)
    assert record.kind is SnapshotKind.SUSPEND
    gate.touch()
    second = threaded_job(
        plan_of(out, gate, parallelism), settings(parallelism, **checkpoint), job="second", started_from=record
    )
    assert second.run() is JobState.FINISHED, second.driver.view().failures
    assert rows_in(out) == EVERY_ROW
    assert second.driver.view().checkpoints.latest_completed.checkpoint > saved.checkpoint
    assert sorted(p.name for p in moved.iterdir())[0] == "_metadata"
    # Nothing of the second job is left, although what it was started from is still there.
    assert not (tmp_path / "checkpoints" / "second").exists()


# --- who owns what a job was started from ----------------------------------------------------------------------------


def second_job_after_stop(threaded_job, tmp_path, claim: Claim, each_turn, **checkpoint):
    gate, out, answers = tmp_path / "gate", tmp_path / "out", []
    first = threaded_job(plan_of(out, gate, 2), settings(2), job="first")
    assert first.run(stop_into(tmp_path / "saved", answers)) is JobState.FINISHED
    first.close()
    record = start_from(Path(answers[1].location), claim, retention=checkpoint.get("retention", Retention.KEEP))
    second = threaded_job(plan_of(out, gate, 3), settings(3, **checkpoint), job="second", started_from=record)
    second.run(lambda running: each_turn(running, gate))
    return Path(answers[1].location), second


@pytest.mark.parametrize(("claim", "stays"), [(Claim.NO_CLAIM, True), (Claim.LEGACY, True), (Claim.CLAIM, False)])
def test_a_savepoint_goes_with_the_first_checkpoint_of_the_job_only_if_that_has_claimed_it(
    threaded_job, tmp_path, claim, stays
):
    seen: list[bool] = []

    def each_turn(running, gate):
        if not gate.exists() and running.driver.view().checkpoints.counts.completed >= 2:
            gate.touch()
            seen.append(True)

    folder, job = second_job_after_stop(threaded_job, tmp_path, claim, each_turn)
    assert job.driver.outcome is JobState.FINISHED, job.driver.view().failures
    assert seen
    assert folder.exists() is stays
    assert rows_in(tmp_path / "out") == EVERY_ROW


@pytest.mark.parametrize(("claim", "stays"), [(Claim.NO_CLAIM, True), (Claim.CLAIM, False)])
def test_a_retained_checkpoint_that_is_claimed_goes_with_its_folder_and_no_other(threaded_job, tmp_path, claim, stays):
    gate, out = tmp_path / "gate", tmp_path / "out"
    checkpoint = {"inline_threshold_bytes": 0, "num_retained": 2}
    first = threaded_job(plan_of(out, gate, 2), settings(2, **checkpoint), job="first")

    def cancel_after_three(running):
        if running.driver.view().checkpoints.counts.completed >= 3:
            running.driver.cancel()

    assert first.run(cancel_after_three) is JobState.CANCELLED
    first.close()
    folder = tmp_path / "checkpoints" / "first"
    kept = sorted(folder.glob("chk-*"))
    assert len(kept) == 2
    record = start_from(folder, claim)
    gate.touch()
    second = threaded_job(plan_of(out, gate, 3), settings(3, num_retained=1), job="second", started_from=record)
    assert second.run() is JobState.FINISHED, second.driver.view().failures
    assert rows_in(out) == EVERY_ROW
    left = sorted(folder.glob("chk-*"))
    assert left == (kept if stays else [path for path in kept if str(path) != record.location])


@pytest.mark.parametrize("retention", Retention)
@pytest.mark.parametrize("claim", [Claim.NO_CLAIM, Claim.CLAIM])
def test_a_savepoint_stays_if_the_job_is_cancelled_before_its_first_checkpoint(
    threaded_job, tmp_path, claim, retention
):
    """Also a claimed one, whatever is to become of the job's own checkpoints: it is all there is to go on from."""

    def each_turn(running, gate):
        if running.driver.view().state is JobState.RUNNING:
            running.driver.cancel()

    gate = tmp_path / "gate"
    folder, job = second_job_after_stop(threaded_job, tmp_path, claim, each_turn, interval_ms=None, retention=retention)
    assert job.driver.outcome is JobState.CANCELLED
    assert job.driver.view().checkpoints.counts.completed == 0
    assert (folder / "_metadata").exists()
    gate.touch()
    third = threaded_job(plan_of(tmp_path / "out", gate, 1), settings(1), job="third", started_from=start_from(folder))
    assert third.run() is JobState.FINISHED
    assert rows_in(tmp_path / "out") == EVERY_ROW


def test_a_job_goes_back_to_the_savepoint_that_was_to_end_it_if_a_slot_dies_then(threaded_job, tmp_path):
    """1. Stop with savepoint; it completes. 2. A slot dies before all tasks have ended. 3. The job goes on from the
    savepoint, whose files lie in its own folder."""
    gate, out, answers = tmp_path / "gate", tmp_path / "out", []
    stop = stop_into(tmp_path / "saved", answers)
    job = threaded_job(plan_of(out, gate, 2), settings(2, inline_threshold_bytes=0), job="first")
    killed: list[bool] = []

    def each_turn(running):
        stop(running)
        latest = running.driver.view().checkpoints.latest_savepoint
        if latest is not None and not killed:
            killed.append(True)
            running.slots.kill(0)
            gate.touch()

    assert job.run(each_turn) is JobState.FINISHED, job.driver.view().failures
    if job.driver.view().restarts:
        assert rows_in(out) == EVERY_ROW


# --- another parallelism while the job runs ---------------------------------------------------------------------------


@pytest.mark.parametrize("unaligned", [True, False])
def test_a_running_job_goes_from_two_to_three_to_one_to_four_slots_and_loses_and_repeats_nothing(
    threaded_job, tmp_path, unaligned
):
    gate, out = tmp_path / "gate", tmp_path / "out"
    job = threaded_job(plan_of(out, gate, 2), settings(2, unaligned=unaligned, retention=Retention.DELETE))
    wanted, answers, in_flight = [3, 1, 4], [], []

    def each_turn(running):
        view = running.driver.view()
        latest = view.checkpoints.latest_completed
        if latest is not None and latest.totals.persisted_bytes:
            in_flight.append(latest.checkpoint)
        idle = len(answers) == 3 - len(wanted)
        if wanted and idle and view.state is JobState.RUNNING and view.checkpoints.counts.completed:
            running.driver.rescale(wanted.pop(0), lambda text: answers.append((text, len(running.driver.view().slots))))
        if len(answers) == 3:
            gate.touch()

    assert job.run(each_turn) is JobState.FINISHED, job.driver.view().failures
    assert answers == [(None, 3), (None, 1), (None, 4)]
    assert bool(in_flight) is unaligned
    assert job.driver.view().restarts == 0
    assert rows_in(out) == EVERY_ROW
    # Slot 0 was there all the time; 1 to 3 came, went and came again as others.
    assert [(s.number, s.incarnation) for s in job.slots.started] == [
        *[(0, 1), (1, 1), (2, 1)],
        *[(1, 2), (2, 2), (3, 1)],
    ]
    assert job.store.list_files("") == []


def test_a_rescale_that_cannot_be_done_says_why_and_the_job_goes_on(threaded_job, tmp_path):
    gate, out = tmp_path / "gate", tmp_path / "out"
    job = threaded_job(plan_of(out, gate, 2), settings(2))
    answers: list[str | None] = []

    def each_turn(running):
        if not answers and running.driver.view().state is JobState.RUNNING:
            for parallelism in (0, GROUPS + 1, 2):
                running.driver.rescale(parallelism, answers.append)
            running.driver.rescale(3, answers.append)
            running.driver.rescale(1, answers.append)
        if len(answers) == 5:
            gate.touch()

    assert job.run(each_turn) is JobState.FINISHED
    assert answers == [
        f"the parallelism must be from 1 to {GROUPS}, the job's max_parallelism",
        f"the parallelism must be from 1 to {GROUPS}, the job's max_parallelism",
        "the job has 2 slots already",
        "the job is already being rescaled",
        None,
    ]
    assert rows_in(out) == EVERY_ROW
    late: list[str | None] = []
    job.driver.rescale(2, late.append)
    assert late == ["the job has ended"]


def test_a_slot_that_dies_while_another_is_awaited_ends_the_rescale_and_is_replaced(threaded_job, tmp_path):
    gate, out = tmp_path / "gate", tmp_path / "out"
    job = threaded_job(plan_of(out, gate, 2), settings(2))
    answers: list[str | None] = []

    def each_turn(running):
        view = running.driver.view()
        if view.state is JobState.RUNNING and len(running.slots.started) == 2:
            running.driver.rescale(3, answers.append)
            running.slots.kill(1)
        if answers:
            gate.touch()

    assert job.run(each_turn) is JobState.FINISHED, job.driver.view().failures
    assert rows_in(out) == EVERY_ROW
    # The death may be noticed before or after the change.
    (answer,) = answers
    if answer is not None:
        assert "the attempt failed meanwhile" in answer
        assert job.driver.view().restarts == 1
        assert [(s.number, s.incarnation) for s in job.slots.started] == [(0, 1), (1, 1), (2, 1), (1, 2)]


def test_a_job_that_is_being_stopped_is_not_rescaled(threaded_job, tmp_path):
    gate, out = tmp_path / "gate", tmp_path / "out"
    stops, answers = [], []
    stop = stop_into(tmp_path / "saved", stops)
    job = threaded_job(plan_of(out, gate, 2), settings(2))

    def each_turn(running):
        stop(running)
        if stops and not answers:
            running.driver.rescale(3, answers.append)

    assert job.run(each_turn) is JobState.FINISHED
    assert answers == ["the job is being stopped with a savepoint"]


# --- the program has changed -----------------------------------------------------------------------------------------


def test_a_step_without_a_match_starts_afresh_and_its_state_is_left_over(threaded_job, tmp_path):
    gate, out, answers = tmp_path / "gate", tmp_path / "out", []
    first = threaded_job(plan_of(out, gate, 2), settings(2), job="first")
    assert first.run(stop_into(tmp_path / "saved", answers)) is JobState.FINISHED
    first.close()
    folder = Path(answers[1].location)
    changed = renamed(plan_of(out, gate, 2), "source", "source-2")
    refused = threaded_job(changed, settings(2), job="second", started_from=start_from(folder))
    assert refused.run() is JobState.FAILED
    assert refused.driver.cause is not None
    assert "source" in refused.driver.cause.text
    refused.close()
    gate.touch()
    rules = MatchingRules(drop=(OperatorId("source"),))
    job = threaded_job(changed, settings(2), job="third", started_from=start_from(folder, rules=rules))
    assert job.run() is JobState.FINISHED
    # The source began at its beginning: what the first job had written is there twice.
    assert len(rows_in(out)) > len(EVERY_ROW)
    assert sorted(set(rows_in(out))) == EVERY_ROW


def renamed(plan: Plan, old: str, new: str) -> Plan:
    """The plan with another name for a step that stands alone in its vertex."""
    vertices = tuple(
        replace(v, vertex=new, operators=(replace(v.operators[0], operator=OperatorId(new)),)) if v.vertex == old else v
        for v in plan.vertices
    )
    edges = tuple(replace(e, upstream=new) if e.upstream == old else e for e in plan.edges)
    return Plan(vertices=vertices, edges=edges, parallelism=plan.parallelism, max_parallelism=plan.max_parallelism)


# --- sealed ----------------------------------------------------------------------------------------------------------


def test_jobs_with_a_key_go_on_from_each_other_and_from_nothing_that_others_wrote(threaded_job, tmp_path):
    """With data in flight and state in files: all that a job writes is sealed, and all that it reads was."""
    sealed = StoreOptions(seal=b"a key of the user's")
    gate, out, files = tmp_path / "gate", tmp_path / "out", {"inline_threshold_bytes": 0}
    first = threaded_job(plan_of(out, gate, 2), settings(2, **files), job="first", options=sealed)
    assert first.run(cancel_with_data_in_flight) is JobState.CANCELLED
    first.close()
    folder = tmp_path / "checkpoints" / "first"
    record = start_from(folder, options=sealed)
    kept = [path for path in Path(record.location).iterdir() if path.is_file()]
    assert all(path.read_bytes().endswith(b"PNSTSEAL") for path in kept)
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}
    gate.touch()
    second = threaded_job(
        plan_of(out, gate, 3), settings(3, **files), job="second", started_from=record, options=sealed
    )
    assert second.run() is JobState.FINISHED, second.driver.view().failures
    assert rows_in(out) == EVERY_ROW
    for path in kept:
        path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(CorruptFile, match="is not sealed"):
        start_from(folder, options=sealed)
    assert start_from(folder).checkpoint == record.checkpoint
