"""What people see: a panel on a terminal, a line a second elsewhere, nothing if they want nothing."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from penstock.terminal.screen import (
    LastCheckpoint,
    LiveDisplay,
    PlainDisplay,
    Progress,
    QuietDisplay,
    make_display,
    size_text,
    sparkline,
    time_text,
)

HALF_WAY = Progress(
    state="running",
    elapsed_s=12.3,
    events_read=5_000_000,
    events_total=10_000_000,
    events_per_second=1_234_567.0,
    rates=(0.0, 500_000.0, 1_000_000.0),
    watermark_us=1_436_918_400_000_000,
    checkpoint=LastCheckpoint(number=7, duration_ms=37, size_bytes=1_234_000),
    completed=7,
    failed=1,
    restarts=2,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_stream_that_is_no_terminal_gets_lines_that_hold_everything():
    stream = io.StringIO()
    with make_display(stream, title="demo", quiet=False) as display:
        display.update(HALF_WAY)
    (line,) = stream.getvalue().splitlines()
    for part in (
        "12.3 s",
        "running",
        "5,000,000 events",
        "1,234,567/s",
        "2015-07-15 00:00:00.000",
        "7 (37 ms, 1.2 MB)",
    ):
        assert part in line
    assert "completed 7 failed 1 restarts 2" in line


def test_lines_come_once_a_second_and_notes_at_once():
    stream = io.StringIO()
    display = PlainDisplay(stream)
    for elapsed_s in (0.0, 0.5, 0.9, 1.0, 1.5):
        display.update(replace(HALF_WAY, elapsed_s=elapsed_s))
    display.note("killed worker pid 4711 of slot 1 (SIGKILL)")
    lines = stream.getvalue().splitlines()
    assert [line.split(" s ")[0].strip() for line in lines] == ["0.0", "1.0", "1.5"]
    assert lines[-1].endswith("* killed worker pid 4711 of slot 1 (SIGKILL)")


def test_a_terminal_gets_a_panel_with_the_notes_below_it():
    stream = Terminal()
    with LiveDisplay(Console(file=stream, width=100, force_terminal=True), title="penstock demo") as display:
        display.update(HALF_WAY)
        display.note("restored from checkpoint 7")
    shown = stream.getvalue()
    for part in ("penstock demo", "5,000,000 of 10,000,000 (50%)", "1,234,567", "▁▅█", "7 (37 ms, 1.2 MB)"):
        assert part in shown
    assert shown.index("restored from checkpoint 7") > shown.index("7 completed, 1 failed")


def test_the_terminal_is_given_back_after_an_interrupt():
    stream = Terminal()
    display = LiveDisplay(Console(file=stream, force_terminal=True), title="demo")
    with pytest.raises(KeyboardInterrupt), display:
        raise KeyboardInterrupt
    assert stream.getvalue().rstrip().endswith("\x1b[?25h"), "the cursor is shown again"


def test_the_display_suits_the_stream():
    assert isinstance(make_display(Terminal(), title="x", quiet=False), LiveDisplay)
    assert isinstance(make_display(io.StringIO(), title="x", quiet=False), PlainDisplay)
    quiet = make_display(Terminal(), title="x", quiet=True)
    assert isinstance(quiet, QuietDisplay)
    assert not isinstance(quiet, PlainDisplay)


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (None, "-"),
        (1_436_918_400_123_456, "2015-07-15 00:00:00.123"),
        (2**63 - 1, "end of time"),
        (-(2**63), "-"),
    ],
)
def test_event_time_is_shown_as_a_time(time_us, text):
    assert time_text(time_us) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1_000, "1.0 kB"), (1_250_000, "1.2 MB"), (7_500_000_000, "7.5 GB")],
)
def test_sizes_are_readable(size, text):
    assert size_text(size) == text


@pytest.mark.parametrize(("values", "bars"), [([], ""), ([0, 0], "▁▁"), ([0, 1, 2, 4], "▁▃▅█"), ([-1, 1], "▁█")])
def test_a_sparkline_goes_from_nothing_to_the_highest(values, bars):
    assert sparkline(values) == bars
