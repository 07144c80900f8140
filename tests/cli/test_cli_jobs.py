"""Commands that speak to running jobs: whom they find, what they say, and how they end when it cannot be done."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock.cli import main
from penstock.core.errors import RescaleFailed, SnapshotFailed, UsageError
from penstock.core.views import CheckpointDetails
from penstock.net import control
from penstock.net.control import Request
from penstock.net.control_server import ControlServer
from penstock.spark.clock import WallClock
from penstock.spark.control import handle

CHECKPOINTS: list[CheckpointDetails] = []
"""Of the job that is played."""


class PlayedJob:
    """A job that does nothing but remember what it was asked."""

    name = "counts"
    settings = MappingProxyType({"parallelism": 2})

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def view(self) -> Any:
        counts = SimpleNamespace(completed=7, failed=1)
        latest = SimpleNamespace(checkpoint=9, duration_ms=120)
        return SimpleNamespace(
            job="counts-0123abcd",
            state=SimpleNamespace(value="running"),
            slots=(1, 2),
            restarts=3,
            rows_read=12_345_678,
            watermark_us=None,
            checkpoints=SimpleNamespace(counts=counts, latest_completed=latest),
            failures=(),
        )

    def plan(self) -> None:
        return None

    @property
    def checkpoints(self) -> list[CheckpointDetails]:
        return CHECKPOINTS

    def checkpoint(self, *, full: bool = False) -> int:
        self.asked.append(("checkpoint", full))
        return 10

    def savepoint(self, directory: str | None = None, *, native: bool = False) -> str:
        self.asked.append(("savepoint", directory, native))
        if directory is None:
            raise SnapshotFailed("the savepoint failed: the disk is full")
        return f"{directory}/savepoint-1"

    def stop(self, *, savepoint: str | None = None, drain: bool = False, native: bool = False) -> str:
        self.asked.append(("stop", savepoint, drain, native))
        return f"{savepoint}/savepoint-2"

    def rescale(self, parallelism: int) -> None:
        self.asked.append(("rescale", parallelism))
        if parallelism > 4:
            raise RescaleFailed(f"the job was not rescaled to {parallelism}: no")

    def cancel(self) -> None:
        self.asked.append(("cancel",))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(control, "default_folder", lambda: tmp_path / "jobs")
    return tmp_path / "jobs"


@pytest.fixture
def job(folder: Path) -> Iterator[PlayedJob]:
    played = PlayedJob()
    server = ControlServer("counts-0123abcd", lambda request: handle(played, request), clock=WallClock())
    yield played
    server.close()


def penstock(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_running_jobs_are_listed(job: PlayedJob):
    shown = penstock("list")
    assert shown.exit_code == 0
    assert all(text in shown.output for text in ("counts-0123abcd", "running", "12,345,678", "7, 1 failed", "120 ms"))
    (found,) = json.loads(penstock("list", "--json").output)
    assert (found["id"], found["slots"], found["last_checkpoint"]) == ("counts-0123abcd", 2, 9)


def test_where_nothing_runs_the_list_is_empty(folder: Path):
    assert penstock("list").output == "no job of this user runs on this host\n"
    assert json.loads(penstock("list", "--json").output) == []


def test_a_job_that_does_not_answer_is_listed_as_such_beside_the_others(
    job: PlayedJob, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("penstock.cli.jobs.LISTED_WITHIN_S", 0.2)
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(folder / "sums-0123abcd.job"))
        stopped.listen()
        shown = penstock("list").output
        assert re.search(r"^counts-0123abcd +running +2 ", shown, re.MULTILINE)
        assert re.search(r"^sums-0123abcd +does not answer *$", shown, re.MULTILINE)
        assert json.loads(penstock("list", "--json").output)[1] == {"id": "sums-0123abcd", "state": "does not answer"}


def test_a_job_is_asked_by_its_name(job: PlayedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert penstock("checkpoint", "counts", "--full").output == "checkpoint 10 is complete\n"
    assert json.loads(penstock("savepoint", "counts", "save", "--native", "--json").output) == {
        "job": "counts-0123abcd",
        "savepoint": f"{tmp_path}/save/savepoint-1",
    }
    assert penstock("stop", "counts", "--drain", "--savepoint", "s3://bucket/save").exit_code == 0
    assert penstock("cancel", "counts-0").exit_code == 0
    assert job.asked == [
        ("checkpoint", True),
        ("savepoint", f"{tmp_path}/save", True),
        ("stop", "s3://bucket/save", True, False),
        ("cancel",),
    ]


def test_a_job_is_rescaled_or_says_why_not(job: PlayedJob):
    assert penstock("rescale", "counts", "3").output == "the job runs with 3 slots\n"
    assert json.loads(penstock("rescale", "counts", "3", "--json").output)["slots"] == 3
    failed = penstock("rescale", "counts", "9")
    assert (failed.exit_code, failed.stderr) == (2, "penstock: the job was not rescaled to 9: no\n")
    assert penstock("rescale", "counts", "0").exit_code == 2
    assert job.asked == [("rescale", 3), ("rescale", 3), ("rescale", 9)]


def test_what_the_job_could_not_do_is_one_line_and_an_exit_code(job: PlayedJob):
    failed = penstock("savepoint", "counts")
    assert failed.exit_code == 2
    assert failed.stderr == "penstock: the savepoint failed: the disk is full\n"


def test_a_job_that_does_not_run_is_named_with_those_that_do(job: PlayedJob):
    failed = penstock("stop", "sums")
    assert failed.exit_code == 2
    assert "no running job is called 'sums'" in failed.stderr
    assert "counts-0123abcd" in failed.stderr


def test_what_a_job_cannot_do_is_refused_by_it(job: PlayedJob):
    with pytest.raises(control.PeerError, match="does not know the command 'dance'"):
        control.call("counts-0123abcd", "dance")
    with pytest.raises(control.PeerError, match="unexpected keyword"):
        control.call("counts-0123abcd", "cancel", now=True)


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("checkpoint", {"fast": True}),
        ("checkpoint", {"full": "yes"}),
        ("savepoint", {"directory": 5}),
        ("rescale", {}),
        ("rescale", {"parallelism": "four"}),
        ("cancel", {"at": "once"}),
    ],
)
def test_arguments_that_a_command_does_not_take_are_the_callers_mistake(command: str, arguments: dict[str, Any]):
    played = PlayedJob()
    with pytest.raises(UsageError, match=f"the arguments of command {command} are wrong"):
        handle(played, Request(command=command, arguments=arguments))
    assert played.asked == []


def test_a_type_error_inside_the_job_is_told_as_itself():
    class Broken(PlayedJob):
        def savepoint(self, directory: str | None = None, *, native: bool = False) -> str:
            raise TypeError("unsupported operand")

    with pytest.raises(TypeError, match="unsupported operand"):
        handle(Broken(), Request(command="savepoint", arguments={"directory": "save"}))
