"""Commands that look at a running job: what they show, as text and as JSON, here and by REST."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any

import flink_answers
import pytest
from click.testing import CliRunner, Result
from job_views import make_view

import penstock as ps
from penstock.api.program import Program
from penstock.cli import main
from penstock.cli.top import Look, step_numbers
from penstock.core.ids import CheckpointId, Epoch, Instant, VertexId
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
from penstock.runtime.views import FailureView, JobView
from penstock.settings import JobSettings
from penstock.spark.clock import WallClock
from penstock.spark.control import handle
from penstock.testing import collect

NONE = Spread()
HOSTILE = "score <b>\x1b[2J"


def build(env: Any) -> None:
    read = env.from_iterable([{"user": "a"}], schema="user string", name="clicks")
    read.where("user <> ''").key_by("user").aggregate(n=ps.count()).write(collect())


def subtask(number: int, **times: Any) -> SubtaskView:
    return SubtaskView(subtask=number, acknowledged=Instant(1_700_000_000_000), **times)


CHECKPOINT = CheckpointDetails(
    checkpoint=CheckpointId(12),
    kind=SnapshotKind.CHECKPOINT,
    status=CheckpointStatus.COMPLETED,
    triggered=Instant(1_700_000_000_000),
    ended=Instant(1_700_000_003_010),
    queued_ms=3,
    duration_ms=3_000,
    canonical=False,
    totals=CheckpointTotals(num_subtasks=2, num_acknowledged=2),
    vertices=(
        SubtasksView(
            vertex=VertexId("window"),
            status=CheckpointStatus.COMPLETED,
            duration_ms=3_000,
            totals=CheckpointTotals(),
            durations_ms=NONE,
            checkpointed_bytes=NONE,
            state_bytes=NONE,
            processed_bytes=NONE,
            persisted_bytes=NONE,
            sync_ms=NONE,
            async_ms=NONE,
            alignment_ms=NONE,
            start_delay_ms=NONE,
            subtasks=(
                subtask(0, duration_ms=3_000, async_ms=2_400, start_delay_ms=600, checkpointed_bytes=38_000_000),
                subtask(1, duration_ms=300, start_delay_ms=300),
            ),
        ),
    ),
)


class PlayedJob:
    """A job that stands still."""

    name = "counts"
    settings = MappingProxyType({"slot": {"spares": 0}, "hostile": "<script>"})

    def __init__(self) -> None:
        self.checkpoints = [CHECKPOINT]
        self.asked: list[dict[str, Any]] = []
        failure = FailureView(
            epoch=Epoch(1),
            when=Instant(1_700_000_000_000),
            text="ValueError: <script>no</script>\nsecond line",
            operator=HOSTILE,
            subtask=1,
            traceback="Traceback:\n  File <x>\nValueError: \x1b[2Jno",
            user_code=True,
            restart_in_ms=1_000,
        )
        tasks = {f"clicks[{n}]": {"rows_in": 10.0 * n, "rows_out": 9.0} for n in range(2)}
        self._view = dataclasses.replace(make_view(completed=12, failures=(failure,), epoch=2), tasks=tasks)

    def view(self) -> JobView:
        return self._view

    def plan(self) -> Any:
        program = Program(JobSettings(parallelism=2))
        build(program)
        return program.plan()

    def log_lines(self, **asked: Any) -> dict[str, Any]:
        self.asked.append(asked)
        line = {
            "number": 1,
            "time": 1_700_000_000_000,
            "slot": 1,
            "level": "WARNING",
            "logger": "mine",
            "operator": HOSTILE,
            "subtask": 1,
            "checkpoint": None,
            "text": "odd\nvalue",
        }
        return {"lines": [line], "next": 1, "left_out": 0}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlayedJob]:
    monkeypatch.setattr(control, "default_folder", lambda: tmp_path / "jobs")
    played = PlayedJob()
    server = ControlServer("counts-0123abcd", lambda request: handle(played, request), clock=WallClock())
    yield played
    server.close()


def penstock(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(main, list(arguments))


def test_info_shows_the_steps_the_slots_and_the_last_failure(job):
    shown = penstock("info", "counts")
    assert shown.exit_code == 0
    for text in ("demo-1 (counts): running", "12 completed, 2 failed", "clicks", "hash"):
        assert text in shown.output
    assert "<script>no</script>" in shown.output
    found = json.loads(penstock("info", "counts", "--json").output)
    assert found["plan"]["vertices"][0]["is_source"] is True
    assert found["tasks"]["clicks[1]"] == {"rows_in": 10.0, "rows_out": 9.0}
    assert found["settings"]["slot"] == {"spares": 0}


def test_exceptions_show_the_traceback_and_nothing_that_moves_the_cursor(job):
    shown = penstock("exceptions", "counts")
    assert "restarted after 1.0 s" in shown.output
    assert "  ValueError: \\x1b[2Jno" in shown.output
    assert "\x1b[2J" not in shown.output
    assert json.loads(penstock("exceptions", "counts", "--json").output)[0]["user_code"] is True


def test_logs_say_which_step_and_subtask_has_said_it(job):
    shown = penstock("logs", "counts", "--slot", "1", "--lines", "5").output
    assert shown == "2023-11-14 22:13:20 UTC WARNING slot 1 score <b>\\x1b[2J[1] mine: odd\n    value\n"
    assert job.asked == [{"after": 0, "slot": 1, "lines": 5}]
    assert json.loads(penstock("logs", "counts", "--json").output)["operator"] == HOSTILE


def test_the_timeline_has_a_bar_per_subtask_and_the_reason(job):
    shown = penstock("checkpoints", "counts", "--timeline").output.splitlines()
    assert shown[0] == "checkpoint 12: completed, aligned"
    assert shown[1] == "window[0] took 2.4 s to write 38 MB."
    first, second = (line for line in shown[2:] if line.startswith("window["))
    assert first.startswith("window[0]")
    assert first.rstrip().endswith(" 3.0 s")
    assert 3.5 < first.count("▓") / first.count("░") < 4.5
    assert second.count("░") < first.count("▓") / 2
    (found,) = json.loads(penstock("checkpoints", "counts", "--timeline", "--json").output)
    assert [bar["subtask"] for bar in found["timeline"]] == [0, 1]


def test_top_shows_each_step_once_or_as_json(job):
    shown = penstock("top", "counts", "--once", "--interval", "0.2").output
    assert "running" in shown.splitlines()[0]
    assert any(line.startswith("clicks") for line in shown.splitlines())
    found = json.loads(penstock("top", "--once", "--interval", "0.2", "--json").output)
    assert (found["state"], found["events_per_second"]) == ("running", 0.0)
    assert found["steps"][0]["events_in_per_second"] == 0.0


def test_rates_are_over_the_time_between_two_looks_and_not_over_a_restart():
    def look(when_s: float, rows: float, busy_ms: float, epoch: int = 1) -> Look:
        tasks = {f"v[{n}]": {"rows_in": rows, "busy_ms": busy_ms, "queued_bytes": 5} for n in range(2)}
        vertex = {"id": "v", "name": "v", "parallelism": 2}
        return Look(when_s=when_s, found={"epoch": epoch, "tasks": tasks, "plan": {"vertices": [vertex]}})

    (step,) = step_numbers(look(10, 100, 500), look(12, 300, 1_500))
    assert (step["events_in_per_second"], step["busy_share"], step["queued_bytes"]) == (200, 0.5, 10)
    (step,) = step_numbers(look(10, 100, 500), look(12, 10, 50, epoch=2))
    assert (step["events_in_per_second"], step["busy_share"]) == (None, None)


def test_the_report_is_one_page_that_runs_nothing(job, tmp_path):
    path = tmp_path / "report.html"
    assert penstock("report", "counts", "-o", str(path)).exit_code == 0
    page = path.read_text("utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "default-src 'none'" in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    for text in ("window[0] took 2.4 s to write 38 MB.", "<svg", "slot.spares", "score &lt;b&gt;"):
        assert text in page
    assert json.loads(penstock("report", "counts", "-o", str(path), "--json").output)["report"] == str(path)


def test_a_report_that_cannot_be_written_is_one_line(job, tmp_path):
    failed = penstock("report", "counts", "-o", str(tmp_path / "none" / "r.html"))
    assert failed.exit_code == 2
    assert len(failed.stderr.splitlines()) == 1


# --- a driver elsewhere ----------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere() -> Iterator[tuple[str, list[tuple[str, str, Any]]]]:
    """A server that answers as Flink's REST interface does, to those who have the token."""
    asked: list[tuple[str, str, Any]] = []

    class Answering(BaseHTTPRequestHandler):
        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"null")
            if self.headers.get("Authorization") != "Bearer secret":
                return self.send(401, {"errors": ["give the token"]})
            asked.append((self.command, self.path, body))
            return self.send(*flink_answers.answer(self.command, self.path))

        do_GET = do_POST = do_PATCH = answer  # noqa: N815  # the names that the server looks for

        def send(self, status: int, found: Any) -> None:
            data = found.encode() if isinstance(found, str) else json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def by_url(elsewhere, tmp_path):
    url, asked = elsewhere
    token = tmp_path / "token"
    token.write_text("secret\n")

    def run(*arguments: str) -> Result:
        return penstock(*arguments, "--url", url, "--token-file", str(token))

    run.url, run.asked = url, asked  # type: ignore[attr-defined]
    return run


def test_jobs_elsewhere_are_shown_as_those_here(by_url):
    assert "counts" in by_url("list").output
    found = json.loads(by_url("info", "counts", "--json").output)
    assert (found["name"], found["state"], found["rows_read"]) == ("counts", "running", 70)
    assert found["tasks"][f"{flink_answers.SOURCE}[1]"]["rows_in"] == 40
    shown = by_url("info", "counts").output
    assert "Source: clicks" in shown
    assert "hash" in shown
    assert "ValueError: no" in by_url("exceptions", "counts").output
    assert by_url("logs", "counts").output == "a line\nanother\n"
    assert by_url("top", "counts", "--once", "--interval", "0.2").exit_code == 0


def test_checkpoints_elsewhere_have_their_timeline(by_url):
    assert "completed" in by_url("checkpoints", "counts").output
    shown = by_url("checkpoints", "counts", "--timeline").output.splitlines()
    assert shown[0] == "checkpoint 12: completed, aligned"
    assert shown[1].startswith("window[0] waited 2.0 s for the barrier of Source: clicks[1]")


def test_what_is_asked_of_a_driver_elsewhere_is_waited_for(by_url):
    assert by_url("checkpoint", "counts").output == "checkpoint 13 is complete\n"
    assert by_url("savepoint", "counts", "/save").output == "savepoint: /save/savepoint-1\n"
    assert by_url("stop", "counts", "--drain").output == "stopped; savepoint: /save/savepoint-1\n"
    assert by_url("cancel", "counts").exit_code == 0
    posted = [(method, path, body) for method, path, body in by_url.asked if method != "GET"]
    job = flink_answers.JOB
    assert posted == [
        ("POST", f"/jobs/{job}/checkpoints", {"checkpointType": "CONFIGURED"}),
        (
            "POST",
            f"/jobs/{job}/savepoints",
            {"formatType": "CANONICAL", "cancel-job": False, "target-directory": "/save"},
        ),
        ("POST", f"/jobs/{job}/stop", {"drain": True, "formatType": "CANONICAL"}),
        ("PATCH", f"/jobs/{job}?mode=cancel", {}),
    ]
    failed = by_url("rescale", "counts", "9")
    assert (failed.exit_code, failed.stderr) == (2, "penstock: there are only 4 cores\n")


def test_what_keeps_a_driver_from_being_reached_is_one_line(by_url, tmp_path):
    without = penstock("list", "--url", by_url.url)
    assert (without.exit_code, without.stderr.count("\n")) == (2, 1)
    assert "give the token of the driver with --token-file" in without.stderr
    assert "no address of a page" in penstock("list", "--url", "host:80").stderr
    assert "cannot be reached" in penstock("list", "--url", "http://127.0.0.1:9").stderr
    assert "without --url" in penstock("list", "--token-file", str(tmp_path / "token")).stderr
    assert "no job at" in by_url("info", "sums").stderr
