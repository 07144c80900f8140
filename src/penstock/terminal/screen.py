"""What people see while a job runs: on a terminal a panel that stays in place, anywhere else a line a second.

A display gets the `Progress` of the job, and notes. A note is one sentence about something that has happened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import IO, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

BARS = "▁▂▃▄▅▆▇█"
LINE_EVERY_S = 1.0
NOTES_SHOWN = 12
REFRESH_PER_SECOND = 8


@dataclass(frozen=True, kw_only=True)
class LastCheckpoint:
    """The newest completed checkpoint."""

    number: int
    duration_ms: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A job at one moment."""

    state: str
    elapsed_s: float
    """Since the job was started."""
    events_read: int
    events_total: int
    events_per_second: float
    """Over the last seconds."""
    rates: tuple[float, ...] = ()
    """Events per second in the past, oldest first."""
    watermark_us: int | None = None
    checkpoint: LastCheckpoint | None = None
    completed: int = 0
    failed: int = 0
    restarts: int = 0


class Display(Protocol):
    """Shows progress and notes. To be used as a context manager, which leaves the terminal as it was."""

    def update(self, progress: Progress) -> None:
        """Show the progress of the job."""
        ...

    def note(self, text: str) -> None:
        """Show a note."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def make_display(stream: IO[str], *, title: str, quiet: bool) -> Display:
    """The display that suits `stream`."""
    if quiet:
        return QuietDisplay()
    if stream.isatty():
        return LiveDisplay(Console(file=stream), title=title)
    return PlainDisplay(stream)


class QuietDisplay:
    """Shows nothing."""

    def update(self, progress: Progress) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Show nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class PlainDisplay(QuietDisplay):
    """Prints one line a second, and one line for each note."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._shown_at: float | None = None
        self._elapsed_s = 0.0

    def update(self, progress: Progress) -> None:
        """Print a line, unless a line was printed less than a second ago."""
        self._elapsed_s = progress.elapsed_s
        if self._shown_at is not None and progress.elapsed_s < self._shown_at + LINE_EVERY_S:
            return
        self._shown_at = progress.elapsed_s
        self._print(summary_line(progress))

    def note(self, text: str) -> None:
        """Print the note at once."""
        self._print(f"* {text}")

    def _print(self, text: str) -> None:
        self._stream.write(f"{self._elapsed_s:7.1f} s  {text}\n")
        self._stream.flush()


class LiveDisplay:
    """A panel that stays in place, with the notes below it."""

    def __init__(self, console: Console, *, title: str) -> None:
        self._title = title
        self._notes: deque[str] = deque(maxlen=NOTES_SHOWN)
        self._progress: Progress | None = None
        self._live = Live(console=console, refresh_per_second=REFRESH_PER_SECOND, get_renderable=self._render)

    def update(self, progress: Progress) -> None:
        """Show the progress from the next refresh on."""
        self._progress = progress

    def note(self, text: str) -> None:
        """Add a line below the panel."""
        at = f"{self._progress.elapsed_s:6.1f} s" if self._progress else " " * 8
        self._notes.append(f"{at}  {text}")

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def _render(self) -> Group:
        body = _facts(self._progress) if self._progress else Text("starting ...")
        return Group(Panel(body, title=self._title, title_align="left"), *(Text(note) for note in self._notes))


def summary_line(progress: Progress) -> str:
    """The whole picture in one line."""
    parts = [
        f"{progress.state:<10}",
        f"{progress.events_read:>12,} events",
        f"{progress.events_per_second:>11,.0f}/s",
        f"watermark {time_text(progress.watermark_us)}",
        f"checkpoint {checkpoint_text(progress.checkpoint)}",
        f"completed {progress.completed} failed {progress.failed} restarts {progress.restarts}",
    ]
    return "  ".join(parts)


def time_text(time_us: int | None) -> str:
    """A point in event time, to the millisecond. A dash if there is no such point, or if the point is before the
    calendar begins."""
    if time_us is None:
        return "-"
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
    except OverflowError:
        # The watermarks before the first record and after the last record are outside of the calendar.
        return "end of time" if time_us > 0 else "-"
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1_000:03d}"


def checkpoint_text(checkpoint: LastCheckpoint | None) -> str:
    """The number, the duration and the size of the newest checkpoint."""
    if checkpoint is None:
        return "none yet"
    return f"{checkpoint.number} ({checkpoint.duration_ms} ms, {size_text(checkpoint.size_bytes)})"


def size_text(size_bytes: int) -> str:
    """A number of bytes for people."""
    if size_bytes < 1_000:
        return f"{size_bytes} B"
    for power, unit in ((1, "kB"), (2, "MB")):
        if size_bytes < 1_000 ** (power + 1):
            return f"{size_bytes / 1_000**power:.1f} {unit}"
    return f"{size_bytes / 1_000**3:.1f} GB"


def sparkline(values: Sequence[float]) -> str:
    """One bar for each value. The largest value has the highest bar."""
    highest = max(values, default=0.0)
    if highest <= 0:
        return BARS[0] * len(values)
    return "".join(BARS[min(int(max(value, 0.0) / highest * len(BARS)), len(BARS) - 1)] for value in values)


def _facts(progress: Progress) -> Table:
    share = progress.events_read / progress.events_total if progress.events_total else 0.0
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    style = "bold green" if progress.state.lower() in ("running", "finished") else "bold yellow"
    table.add_row("state", Text(progress.state, style=style))
    table.add_row("events", f"{progress.events_read:,} of {progress.events_total:,} ({share:.0%})")
    table.add_row("events/s", f"{progress.events_per_second:,.0f}  {sparkline(progress.rates)}")
    table.add_row("watermark", time_text(progress.watermark_us))
    table.add_row("last checkpoint", checkpoint_text(progress.checkpoint))
    table.add_row("checkpoints", f"{progress.completed} completed, {progress.failed} failed")
    table.add_row("restarts", str(progress.restarts))
    return table
