"""The progress that `env.run` shows: on a terminal one line that stays in place, anywhere else a line now and then.

All lines go to standard error: the standard output belongs to the program. Log lines and prints of the program appear
above the line that stays in place.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from penstock.core.job.events import JobState
from penstock.core.view_texts import count_of, duration_text
from penstock.ports import Clock
from penstock.runtime.pace import Pacing
from penstock.runtime.views import JobView

REFRESH_S = 0.25
PLAIN_EVERY_MS = 10_000
"""Where there is no terminal, a line is printed this often; a job that is shorter prints none."""

_SHOWING = threading.Lock()
"""A terminal has room for the line of one job."""


@contextmanager
def shown_progress(name: str, view: Callable[[], JobView], clock: Clock, *, quiet: bool) -> Iterator[None]:
    """Show the progress of a job while the block runs."""
    stream = sys.stderr
    if quiet or stream is None or not _SHOWING.acquire(blocking=False):
        yield
        return
    over = threading.Event()
    follow = _on_terminal if stream.isatty() else _as_lines
    thread = threading.Thread(
        target=follow, args=(name, view, clock, stream, over), name="penstock-progress", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        _SHOWING.release()


def _as_lines(name: str, view: Callable[[], JobView], clock: Clock, stream: IO[str], over: threading.Event) -> None:
    pacing, began_ms, has_printed = Pacing(), clock.now(), False
    printed_ms = began_ms
    with suppress(OSError, ValueError):  # the stream may be closed
        while not over.wait(REFRESH_S):
            now = clock.now()
            pace = pacing.look(view(), now)
            if now - printed_ms >= PLAIN_EVERY_MS:
                printed_ms, has_printed = now, True
                stream.write(f"{name}: {pace.line()}\n")
                stream.flush()
        if has_printed:
            stream.write(f"{last_line(name, view(), clock.now() - began_ms)}\n")
            stream.flush()


def _on_terminal(name: str, view: Callable[[], JobView], clock: Clock, stream: IO[str], over: threading.Event) -> None:
    pacing, began_ms = Pacing(), clock.now()
    console = Console(file=stream, highlight=False)
    with Live(console=console, auto_refresh=False, transient=True) as live, _logged_above():
        while not over.wait(REFRESH_S):
            pace = pacing.look(view(), clock.now())
            style = "green" if pace.state == JobState.RUNNING.value else "yellow"
            # One line, whatever the width of the terminal: a line that is broken would jump.
            text = Text.assemble((f"{name} ", "bold"), (pace.line(), style), no_wrap=True, overflow="ellipsis")
            live.update(text, refresh=True)
    with suppress(OSError, ValueError):
        console.print(Text(last_line(name, view(), clock.now() - began_ms)), style="dim")


def last_line(name: str, view: JobView, took_ms: int) -> str:
    """The line that stays when the job has ended."""
    counts = view.checkpoints.counts
    restarts = f", {count_of(view.restarts, 'restart')}" if view.restarts else ""
    return (
        f"{name} {view.state.value} after {duration_text(took_ms)}: {count_of(view.rows_read, 'event')} read, "
        f"{count_of(counts.completed, 'checkpoint')}{restarts}"
    )


@contextmanager
def _logged_above() -> Iterator[None]:
    """Handlers of the log that write to standard error write above the line meanwhile: `Live` has put its own stream in
    the place of `sys.stderr`."""
    handlers = [handler for handler in logging.getLogger().handlers if type(handler) is logging.StreamHandler]
    moved = [(handler, handler.stream) for handler in handlers if handler.stream is sys.__stderr__]
    for handler, _ in moved:
        handler.setStream(sys.stderr)
    try:
        yield
    finally:
        for handler, stream in moved:
            handler.setStream(stream)
