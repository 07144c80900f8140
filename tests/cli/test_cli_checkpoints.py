"""`penstock checkpoints`: what is shown of the checkpoints of a running job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from penstock.cli import main
from penstock.core.ids import CheckpointId, Instant, VertexId
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import SnapshotKind
from penstock.core.views import (
    CheckpointDetails,
    CheckpointStatus,
    CheckpointTotals,
    Spread,
    SubtasksView,
    SubtaskView,
)
from penstock.net import control
from penstock.net.control_server import ControlServer
from penstock.spark.clock import WallClock
from penstock.spark.control import handle

TOTALS = CheckpointTotals(
    num_subtasks=2, num_acknowledged=1, checkpointed_bytes=1_500, state_bytes=23_000_000, unaligned=True
)
SUBTASKS = (
    SubtaskView(
        subtask=0,
        acknowledged=Instant(1_700_000_000_250),
        duration_ms=250,
        checkpointed_bytes=1_500,
        state_bytes=23_000_000,
        persisted_bytes=77,
        sync_ms=0.6,
        async_ms=45.2,
        alignment_ms=130,
        start_delay_ms=65,
        unaligned=True,
    ),
    SubtaskView(subtask=1, acknowledged=None),
)
NONE = Spread()
VERTEX = SubtasksView(
    vertex=VertexId("window-sink"),
    status=CheckpointStatus.IN_PROGRESS,
    duration_ms=250,
    totals=TOTALS,
    durations_ms=NONE,
    checkpointed_bytes=NONE,
    state_bytes=NONE,
    processed_bytes=NONE,
    persisted_bytes=NONE,
    sync_ms=NONE,
    async_ms=NONE,
    alignment_ms=NONE,
    start_delay_ms=NONE,
    subtasks=SUBTASKS,
)
FAILED = CheckpointDetails(
    checkpoint=CheckpointId(12),
    kind=SnapshotKind.CHECKPOINT,
    status=CheckpointStatus.FAILED,
    triggered=Instant(1_700_000_000_000),
    queued_ms=3,
    duration_ms=250,
    canonical=False,
    totals=TOTALS,
    vertices=(VERTEX,),
    failure=CheckpointFailure.EXPIRED,
    failure_text="after 10 s",
)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    monkeypatch.setattr(control, "default_folder", lambda: tmp_path / "jobs")
    played = SimpleNamespace(name="counts", checkpoints=[FAILED], plan=lambda: None)
    server = ControlServer("counts-0123abcd", lambda request: handle(played, request), clock=WallClock())
    yield played
    server.close()


def penstock(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(main, list(arguments))


def test_all_checkpoints_are_listed(job):
    shown = penstock("checkpoints", "counts").output.replace("\N{NO-BREAK SPACE}", " ").splitlines()
    assert shown[0].split()[:5] == ["id", "kind", "status", "triggered", "took"]
    row = shown[1]
    assert row.startswith("12  checkpoint  failed  2023-11-14 22:13:20  250 ms")
    assert "1.5 kB" in row
    assert "23 MB" in row
    assert "1 of 2" in row
    assert row.rstrip().endswith("expired: after 10 s")


def test_one_checkpoint_is_shown_with_its_subtasks(job):
    shown = penstock("checkpoints", "counts", "12")
    assert shown.exit_code == 0
    head, *_, first, second = shown.output.replace("\N{NO-BREAK SPACE}", " ").rstrip().splitlines()
    assert head == "checkpoint 12: failed, expired: after 10 s"
    values = ["250 ms", "65 ms", "130 ms", "1 ms", "45 ms", "1.5 kB", "23 MB", "77 B", "unaligned"]
    assert [part.strip() for part in first.split("  ") if part.strip()] == ["window-sink", "0", *values]
    assert second.split() == ["1", "no", "answer"]


def test_everything_is_there_as_json(job):
    (found,) = json.loads(penstock("checkpoints", "counts", "--json").output)
    assert (found["checkpoint"], found["status"], found["failure"], found["kind"]) == (
        12,
        "FAILED",
        "EXPIRED",
        "Checkpoint",
    )
    (vertex,) = found["vertices"]
    assert vertex["subtasks"][0]["alignment_ms"] == 130


def test_a_checkpoint_that_is_not_remembered_is_named_with_those_that_are(job):
    failed = penstock("checkpoints", "counts", "3")
    assert failed.exit_code == 2
    assert "checkpoint 3 of job 'counts' is not remembered (the job remembers the checkpoints 12" in failed.stderr
    job.checkpoints = []
    assert penstock("checkpoints", "counts").output == "the job has taken no checkpoint yet\n"
    assert "the job has no checkpoint yet" in penstock("checkpoints", "counts", "3").stderr
