"""Whole jobs on real sockets and files, with slots as threads: exactly once, whatever dies."""

from __future__ import annotations

import threading
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bid_windows import EVENTS, settings, windowed_plan

from penstock.connectors.nexmark import bids
from penstock.core.coordinator.effects import RequestFailure
from penstock.core.coordinator.events import RequestKind
from penstock.core.ids import OperatorId
from penstock.core.job.events import JobState
from penstock.core.recovery.metadata import CompletedCheckpoint, SnapshotKind
from penstock.runtime.master.driver import SnapshotRequest
from penstock.settings import CheckpointSettings, NoRestart, Retention
from penstock.storage.files import FileStore
from penstock.storage.metadata import decode_metadata


def expected() -> list[tuple]:
    """The same query by Polars, over the same events."""
    source = bids(events=EVENTS, seed=7)
    reader = source.open(source.splits(1))
    batches = []
    while isinstance(polled := reader.poll(100_000, 0), pa.RecordBatch):
        batches.append(polled)
    frame = pl.from_arrow(pa.Table.from_batches(batches))
    assert frame.height == EVENTS
    grouped = (
        frame.filter(pl.col("price") > 100)
        .with_columns(window_start=pl.col("ts").dt.truncate("10s"))
        .group_by("auction", "window_start")
        .agg(n=pl.len().cast(pl.Int64), top=pl.col("price").max())
    )
    return sorted(grouped.select("auction", "window_start", "n", "top").iter_rows())


def committed(out: Path) -> list[tuple]:
    files = sorted(out.glob("part-*.parquet"))
    table = pa.concat_tables([pq.read_table(f) for f in files])
    return sorted(pl.from_arrow(table).select("auction", "window_start", "n", "top").iter_rows())


@pytest.mark.parametrize("tcp", [False, True], ids=["ipc", "tcp with curve"])
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_job_without_failures_gives_the_right_windows_and_leaves_nothing_behind(
    threaded_job, tmp_path, tcp, parallelism
):
    out = tmp_path / "out"
    job = threaded_job(windowed_plan(out, parallelism=parallelism), settings(parallelism=parallelism), tcp=tcp)
    assert job.run() is JobState.FINISHED
    assert committed(out) == expected()
    counts = job.driver.view().checkpoints.counts
    assert counts.completed >= 1
    assert counts.failed == 0
    assert job.store.list_files("") == []
    assert not (out / "_penstock").exists()


@pytest.mark.parametrize(
    "checkpoint",
    [
        CheckpointSettings(interval_ms=50),
        CheckpointSettings(interval_ms=50, unaligned=True),
        CheckpointSettings(interval_ms=50, unaligned=True, aligned_timeout_ms=2),
    ],
    ids=["aligned", "unaligned", "aligned with time-out"],
)
def test_killed_slots_lose_and_repeat_nothing(threaded_job, tmp_path, checkpoint):
    out = tmp_path / "out"
    gate = tmp_path / "gate"
    job = threaded_job(windowed_plan(out, parallelism=2, gate=gate), settings(checkpoint=checkpoint))
    kills: list[int] = []

    def kill_after_some_checkpoints(running):
        view = running.driver.view()
        assert running.driver.stage == (view.state, view.epoch, view.restarts) or running.driver.outcome is not None
        wanted = 2 * (len(kills) + 1)
        # A slot that was killed is noticed later: until then checkpoints that it took part in may complete.
        if len(kills) < 3 and view.checkpoints.counts.completed >= wanted and view.epoch > len(kills):
            if view.state is JobState.RUNNING:
                kills.append(view.checkpoints.counts.completed)
                running.slots.kill(len(kills) % 2)
        elif len(kills) == 3:
            gate.touch()

    outcome = job.run(kill_after_some_checkpoints)
    assert outcome is JobState.FINISHED, [f.text for f in job.driver.view().failures]
    assert len(kills) == 3
    assert job.driver.view().restarts == 3, [f.text for f in job.driver.view().failures]
    assert committed(out) == expected()
    assert job.store.list_files("") == []


def test_a_survivor_restores_its_state_without_reading_the_storage(threaded_job, tmp_path, monkeypatch):
    gate, reads = tmp_path / "gate", []
    honest = FileStore.read

    def read(store, path, **options):
        reads.append((threading.current_thread().name, path))
        return honest(store, path, **options)

    monkeypatch.setattr(FileStore, "read", read)
    chosen = CheckpointSettings(interval_ms=50, inline_threshold_bytes=0)
    job = threaded_job(windowed_plan(tmp_path / "out", parallelism=2, gate=gate), settings(checkpoint=chosen))

    def kill_once(running):
        if not gate.exists() and running.driver.view().checkpoints.counts.completed >= 1:
            running.slots.kill(1)
            gate.touch()

    assert job.run(kill_once) is JobState.FINISHED, job.driver.view().failures
    assert job.driver.view().restarts == 1
    assert committed(tmp_path / "out") == expected()
    readers = [who for who, path in reads if "chk-" in path and not path.endswith("_metadata")]
    assert any("slot-1.2" in who for who in readers), reads
    assert not any("slot-0." in who for who in readers), reads


def test_a_survivor_keeps_its_process_and_only_the_dead_slot_is_started_again(threaded_job, tmp_path):
    gate = tmp_path / "gate"
    job = threaded_job(windowed_plan(tmp_path / "out", parallelism=2, gate=gate), settings())

    def kill_once(running):
        if not gate.exists() and running.driver.view().checkpoints.counts.completed >= 1:
            running.slots.kill(1)
            gate.touch()

    assert job.run(kill_once) is JobState.FINISHED
    assert [(s.number, s.incarnation) for s in job.slots.started] == [(0, 1), (1, 1), (1, 2)]


def test_a_user_function_that_raises_once_is_restarted_in_place(threaded_job, tmp_path):
    out = tmp_path / "out"
    marker = tmp_path / "raised"

    def raise_once(batch):
        if not marker.exists() and batch.num_rows and batch["ts"][0].value > 1_000_000:
            marker.touch()
            raise ValueError("bad luck")
        return batch

    job = threaded_job(windowed_plan(out, parallelism=2, extra=raise_once), settings())
    assert job.run() is JobState.FINISHED
    assert committed(out) == expected()
    failure = job.driver.view().failures[0]
    assert (failure.operator, failure.user_code) == ("extra", True)
    assert "bad luck" in failure.traceback
    assert "raise_once" in failure.traceback
    assert all(s.incarnation == 1 for s in job.slots.started)


def test_without_restarts_a_user_error_fails_the_job_with_its_cause(threaded_job, tmp_path):
    def broken(batch):
        raise KeyError("nope")

    job = threaded_job(windowed_plan(tmp_path / "out", parallelism=2, extra=broken), settings(restart=NoRestart()))
    assert job.run() is JobState.FAILED
    assert job.driver.cause is not None
    assert job.driver.cause.operator == "extra"
    assert "nope" in job.driver.cause.text


def test_cancel_ends_every_slot_and_commits_nothing_more(threaded_job, tmp_path):
    gate = tmp_path / "gate"
    checkpoint = CheckpointSettings(interval_ms=50, retention=Retention.DELETE)
    job = threaded_job(windowed_plan(tmp_path / "out", parallelism=2, gate=gate), settings(checkpoint=checkpoint))

    def cancel_when_running(running):
        if running.driver.view().checkpoints.counts.completed >= 1:
            running.driver.cancel()

    assert job.run(cancel_when_running) is JobState.CANCELLED
    assert job.store.list_files("") == []


def test_what_is_kept_after_a_cancel_is_what_the_retained_checkpoint_refers_to(threaded_job, tmp_path):
    gate = tmp_path / "gate"
    checkpoint = CheckpointSettings(interval_ms=50, retention=Retention.KEEP)
    job = threaded_job(windowed_plan(tmp_path / "out", parallelism=2, gate=gate), settings(checkpoint=checkpoint))

    cancelled: list[bool] = []

    def cancel_with_a_stray_file(running):
        if not cancelled and running.driver.view().checkpoints.counts.completed >= 2:
            cancelled.append(True)
            # As a slot that was cut off would: for a checkpoint that had been given up.
            running.store.write("job-1/chk-999/stray", b"nobody knows of me")
            running.driver.cancel()

    assert job.run(cancel_with_a_stray_file) is JobState.CANCELLED
    left = job.store.list_files("")
    folders = {path.split("/")[1] for path in left}
    (kept,) = [folder for folder in folders if folder.startswith("chk-")]
    metadata = decode_metadata("", job.store.read(f"job-1/{kept}/_metadata"))
    wanted = {f.path for f in metadata.files} | {f"job-1/{kept}/_metadata"}
    assert {path for path in left if "/chk-" in path} == wanted


# --- checkpoints, savepoints and stops on request --------------------------------------------------------------------


def ask_once(request: SnapshotRequest, answers: list, *, after: int = 1):
    """Ask a running job for something after so many checkpoints; the answer goes into the list."""
    asked: list[bool] = []

    def each_turn(running):
        if not asked and running.driver.view().checkpoints.counts.completed >= after:
            asked.append(True)
            running.driver.request(request, answers.append)

    return each_turn


@pytest.mark.parametrize("unaligned", [False, True])
def test_a_checkpoint_on_request_is_answered_with_its_id(threaded_job, tmp_path, unaligned):
    gate = tmp_path / "gate"
    checkpoint = CheckpointSettings(interval_ms=None, unaligned=unaligned)
    job = threaded_job(windowed_plan(tmp_path / "out", parallelism=2, gate=gate), settings(checkpoint=checkpoint))
    answers: list = []
    ask = ask_once(SnapshotRequest(kind=RequestKind.CHECKPOINT), answers, after=0)

    def each_turn(running):
        if running.driver.view().state is JobState.RUNNING:
            ask(running)
        if answers:
            gate.touch()

    assert job.run(each_turn) is JobState.FINISHED
    assert isinstance(answers[0], CompletedCheckpoint), answers
    assert committed(tmp_path / "out") == expected()


@pytest.mark.parametrize("unaligned", [False, True])
def test_a_savepoint_lies_where_it_was_asked_for_and_the_job_goes_on(threaded_job, tmp_path, unaligned):
    gate = tmp_path / "gate"
    checkpoint = CheckpointSettings(interval_ms=50, unaligned=unaligned)
    job = threaded_job(windowed_plan(tmp_path / "out", parallelism=2, gate=gate), settings(checkpoint=checkpoint))
    answers: list = []
    request = SnapshotRequest(kind=RequestKind.SAVEPOINT, target=str(tmp_path / "saved"))
    ask = ask_once(request, answers)

    def each_turn(running):
        ask(running)
        if answers:
            gate.touch()

    assert job.run(each_turn) is JobState.FINISHED
    (saved,) = answers
    assert isinstance(saved, CompletedCheckpoint), saved
    metadata = decode_metadata(saved.path, Path(saved.path).read_bytes())
    assert metadata.kind is SnapshotKind.SAVEPOINT
    missing = [f.path for f in metadata.files if not (Path(saved.location) / f.path).exists()]
    assert missing == [], sorted(str(p) for p in Path(saved.location).rglob("*"))
    assert not metadata.channels
    assert job.store.list_files("") == []
    assert committed(tmp_path / "out") == expected()


def test_a_stop_with_drain_closes_every_window_that_has_data(threaded_job, tmp_path):
    gate = tmp_path / "gate"
    job = threaded_job(windowed_plan(tmp_path / "out", parallelism=2, gate=gate), settings())
    answers: list = []
    request = SnapshotRequest(kind=RequestKind.STOP, target=str(tmp_path / "saved"), drain=True)
    assert job.run(ask_once(request, answers)) is JobState.FINISHED
    (saved,) = answers
    assert isinstance(saved, CompletedCheckpoint), saved
    assert saved.kind is SnapshotKind.TERMINATE
    got, full = committed(tmp_path / "out"), expected()
    # Whole windows as far as the sources had come; the last ones as full as they were.
    assert 0 < len(got) <= len(full)
    assert {row[:2] for row in got} <= {row[:2] for row in full}
    assert decode_metadata(saved.path, Path(saved.path).read_bytes()).kind is SnapshotKind.TERMINATE


def test_a_stop_without_drain_keeps_open_windows_in_the_savepoint(threaded_job, tmp_path):
    gate = tmp_path / "gate"
    job = threaded_job(windowed_plan(tmp_path / "out", parallelism=2, gate=gate), settings())
    answers: list = []
    request = SnapshotRequest(kind=RequestKind.STOP, target=str(tmp_path / "saved"))
    assert job.run(ask_once(request, answers)) is JobState.FINISHED
    (saved,) = answers
    assert isinstance(saved, CompletedCheckpoint), saved
    metadata = decode_metadata(saved.path, Path(saved.path).read_bytes())
    window = metadata.operators[OperatorId("window")]
    assert any(state.keyed for state in window.subtasks.values())
    assert not window.finished
    source = metadata.operators[OperatorId("bids")]
    assert any(state.split_lists.get("splits") for state in source.subtasks.values())
    out = tmp_path / "out"
    assert set(committed(out) if any(out.glob("part-*")) else []) <= set(expected())


def test_a_stop_that_cannot_be_saved_leaves_the_job_running(threaded_job, tmp_path):
    gate = tmp_path / "gate"
    (tmp_path / "file").write_text("in the way")
    job = threaded_job(
        windowed_plan(tmp_path / "out", parallelism=2, gate=gate),
        settings(checkpoint=CheckpointSettings(interval_ms=50, tolerable_failures=None)),
    )
    answers: list = []
    ask = ask_once(SnapshotRequest(kind=RequestKind.SAVEPOINT, target=str(tmp_path / "file")), answers)

    def each_turn(running):
        ask(running)
        if answers:
            gate.touch()

    assert job.run(each_turn) is JobState.FINISHED
    assert isinstance(answers[0], RequestFailure)
    assert committed(tmp_path / "out") == expected()
