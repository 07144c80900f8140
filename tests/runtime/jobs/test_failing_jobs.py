"""Jobs whose program, or whose state, is wrong: how often they are tried, and what is said about it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from bid_windows import settings, windowed_plan

from penstock.core.errors import Fault
from penstock.core.job.events import JobState
from penstock.core.recovery.metadata import Claim, MatchingRules, restored_from
from penstock.settings import CheckpointSettings, FixedDelay, Retention
from penstock.storage.files import FileStore
from penstock.storage.restoring import find_snapshot

PROGRESS = "penstock.runtime.master.progress"


def broken(batch):
    return batch.filter(batch["price"] > undefined)  # noqa: F821  # the typo that the tests are about


def tracebacks(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged with a traceback."""
    return [r.getMessage() for r in caplog.records if "Traceback (most recent" in r.getMessage() and r.name == PROGRESS]


def test_a_typo_ends_the_job_at_once_with_its_step_its_subtask_and_its_line(threaded_job, tmp_path, caplog):
    job = threaded_job(windowed_plan(tmp_path / "out", parallelism=2, extra=broken), settings(restart=None))
    with caplog.at_level(logging.WARNING, logger="penstock"):
        assert job.run() is JobState.FAILED
    cause = job.driver.cause
    assert job.driver.view().restarts == 0
    assert (cause.operator, cause.fault) == ("extra", Fault.PROGRAM)
    assert cause.subtask in (0, 1)
    assert "before the first checkpoint" in cause.why_final
    (told,) = tracebacks(caplog)
    assert f'File "{__file__}", line {broken.__code__.co_firstlineno + 1}, in broken' in told
    assert "NameError: name 'undefined' is not defined" in told


def test_a_record_that_always_fails_is_tried_three_times_and_its_traceback_is_logged_once(
    threaded_job, tmp_path, caplog
):
    gate = tmp_path / "gate"

    def poisoned(batch):
        return broken(batch) if gate.exists() else batch

    def open_gate(running):
        if running.driver.view().checkpoints.counts.completed >= 1:
            gate.touch()

    # No checkpoint completes between the failures: the gate is open, and every batch fails.
    job = threaded_job(
        windowed_plan(tmp_path / "out", parallelism=1, extra=poisoned, gate=gate), settings(restart=None)
    )
    with caplog.at_level(logging.WARNING, logger="penstock"):
        assert job.run(open_gate) is JobState.FAILED
    assert job.driver.view().restarts >= 2
    assert job.driver.cause.why_final.startswith("the same error came 3 times")
    assert len(tracebacks(caplog)) == 1


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "bytes instead of"),
        (Path.unlink, "is missing: reading"),
    ],
    ids=["cut", "deleted"],
)
def test_a_damaged_state_file_ends_the_job_at_once_and_names_the_step_whose_state_it_is(
    threaded_job, tmp_path, damage, told
):
    gate = tmp_path / "gate"
    kept = CheckpointSettings(interval_ms=30, retention=Retention.KEEP, inline_threshold_bytes=0)
    plan = windowed_plan(tmp_path / "out", parallelism=1, gate=gate)
    first = threaded_job(plan, settings(parallelism=1, checkpoint=kept), job="first")

    def cancel_after_two(running):
        if running.driver.view().checkpoints.counts.completed >= 2:
            running.driver.cancel()

    assert first.run(cancel_after_two) is JobState.CANCELLED
    first.close()
    folder = tmp_path / "checkpoints" / "first"
    for file in folder.glob("chk-*/*"):
        if file.name != "_metadata":
            damage(file)
    again = settings(parallelism=1, checkpoint=kept, restart=FixedDelay(attempts=20, delay_ms=5))
    second = threaded_job(plan, again, job="second", started_from=start_from(folder))
    assert second.run() is JobState.FAILED
    cause = second.driver.cause
    assert second.driver.view().restarts == 0
    assert (cause.operator, cause.fault, cause.why_final) == (
        "window",
        Fault.PERMANENT,
        "no restart can mend this error",
    )
    assert cause.text.startswith("CorruptFile: ")
    assert told in cause.text
    assert "restore the file from a copy" in cause.text


def test_metadata_that_is_gone_ends_the_job_at_once(threaded_job, tmp_path):
    kept = CheckpointSettings(interval_ms=30, retention=Retention.KEEP)
    plan = windowed_plan(tmp_path / "out", parallelism=1, gate=tmp_path / "gate")
    first = threaded_job(plan, settings(parallelism=1, checkpoint=kept), job="first")

    def cancel_after_one(running):
        if running.driver.view().checkpoints.counts.completed:
            running.driver.cancel()

    assert first.run(cancel_after_one) is JobState.CANCELLED
    first.close()
    folder = tmp_path / "checkpoints" / "first"
    start = start_from(folder)
    for file in folder.glob("chk-*/_metadata"):
        file.unlink()
    again = settings(parallelism=1, checkpoint=kept, restart=FixedDelay(attempts=20, delay_ms=5))
    second = threaded_job(plan, again, job="second", started_from=start)
    assert second.run() is JobState.FAILED
    assert second.driver.view().restarts == 0
    assert second.driver.cause.fault is Fault.PERMANENT
    assert "_metadata failed: No such file or directory" in second.driver.cause.text


def start_from(folder: Path):
    found = find_snapshot(FileStore(folder), str(folder))
    return restored_from(
        found.metadata,
        location=found.folder,
        path=found.path,
        metadata_size=found.metadata_size,
        claim=Claim.NO_CLAIM,
        retention=Retention.KEEP,
        rules=MatchingRules(),
    )
