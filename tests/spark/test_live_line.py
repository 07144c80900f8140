"""The progress that `env.run` shows: one line on a terminal, lines elsewhere, nothing if quiet. Needs no Spark."""

from __future__ import annotations

import io
import logging
import sys
import threading
from typing import Any

import pytest
from job_views import make_view

from penstock.core.ids import Instant
from penstock.core.job.events import JobState
from penstock.spark import live_line
from penstock.spark.live_line import PLAIN_EVERY_MS, last_line, shown_progress


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


class Played:
    """A job and its clock: each look is `step_ms` later than the look before."""

    def __init__(self, step_ms: int) -> None:
        self.looks = 0
        self._step_ms = step_ms
        self.seen = threading.Event()

    def now(self) -> Any:
        return Instant(1_763_000_000_000 + self.looks * self._step_ms)

    def view(self) -> Any:
        self.looks += 1
        if self.looks > 5:
            self.seen.set()
        state = JobState.FINISHED if self.seen.is_set() else JobState.RUNNING
        return make_view(state=state, rows_in=1_000 * self.looks, completed=3)


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(live_line, "REFRESH_S", 0.005)


def shown(stream, monkeypatch, *, step_ms=1_000, quiet=False):
    played = Played(step_ms)
    monkeypatch.setattr(sys, "stderr", stream)
    with shown_progress("orders", played.view, played, quiet=quiet):
        if not quiet:
            assert played.seen.wait(60)
    return stream.getvalue()


def test_on_a_terminal_one_line_stays_in_its_place_and_the_last_one_remains(monkeypatch):
    written = shown(Terminal(), monkeypatch)
    assert "orders" in written
    assert "events/s" in written
    *_, last = written.rstrip().splitlines()
    assert "orders finished after" in last
    # Between the lines the cursor goes back: no line of progress is left.
    assert written.count("\n") <= 2


def test_elsewhere_a_line_comes_every_ten_seconds_and_one_at_the_end(monkeypatch):
    written = shown(io.StringIO(), monkeypatch, step_ms=PLAIN_EVERY_MS)
    first, *_, last = written.splitlines()
    assert first.startswith("orders: ")
    # The whole time, not the time since the line before: at least six looks, ten seconds apart.
    assert last.startswith("orders finished after ")
    assert "min" in last.partition(":")[0]
    assert "\x1b" not in written


def test_a_short_job_that_nobody_watches_says_nothing(monkeypatch):
    assert shown(io.StringIO(), monkeypatch, step_ms=1) == ""


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_a_quiet_run_shows_nothing(stream, monkeypatch):
    assert shown(stream(), monkeypatch, quiet=True) == ""


def test_a_second_job_of_the_program_shows_nothing_beside_the_first(monkeypatch):
    stream = Terminal()
    played = Played(1_000)
    monkeypatch.setattr(sys, "stderr", stream)
    with shown_progress("first", played.view, played, quiet=False):
        with shown_progress("second", played.view, played, quiet=False):
            assert played.seen.wait(60)
        assert "second" not in stream.getvalue()


def test_the_log_is_written_above_the_line(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "__stderr__", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    handler = logging.StreamHandler(stream)
    logging.getLogger().addHandler(handler)
    try:
        played = Played(1_000)
        with shown_progress("orders", played.view, played, quiet=False):
            assert played.seen.wait(60)
            logging.getLogger("mine").error("something is odd")
        assert handler.stream is stream
    finally:
        logging.getLogger().removeHandler(handler)
    assert "something is odd\n" in stream.getvalue()


def test_a_terminal_that_goes_away_does_not_stop_the_job(monkeypatch):
    stream = io.StringIO()
    played = Played(PLAIN_EVERY_MS)
    monkeypatch.setattr(sys, "stderr", stream)
    with shown_progress("orders", played.view, played, quiet=False):
        stream.close()


def test_the_last_line_counts_restarts():
    view = make_view(state=JobState.FINISHED, epoch=3, rows_in=5)
    assert last_line("orders", view, 61_000) == (
        "orders finished after 1 min 1 s: 5 events read, 0 checkpoints, 2 restarts"
    )
