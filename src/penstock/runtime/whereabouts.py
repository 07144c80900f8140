"""Where the loop of a process is, seen from another thread: which step's code, and where in it.

The stack of the loop's thread tells both. Nothing is written down on the way into user code, so the loop pays nothing
for it.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from penstock.runtime.pulse import NOWHERE, Whereabouts
from penstock.runtime.task.operators.base import Operator

MOST_CALLS = 30
"""How many calls of a stack are shown: the innermost ones."""

_OURS = str(Path(__file__).parent.parent)


def of_thread(name: str) -> Callable[[], Whereabouts]:
    """What tells, on whichever thread it is called, where the thread of that name is."""

    def tell() -> Whereabouts:
        ident = next((thread.ident for thread in threading.enumerate() if thread.name == name), None)
        # The documented way to look at another thread, underscore or not.
        frames = sys._current_frames()  # noqa: SLF001
        return NOWHERE if ident is None else _whereabouts(frames.get(ident))

    return tell


def _whereabouts(innermost: FrameType | None) -> Whereabouts:
    if innermost is None:
        return NOWHERE
    step = _step_of(innermost)
    if step is None:
        return Whereabouts(stack=_told(innermost, None), call=id(innermost))
    operator, frame = step
    context = operator.context
    return Whereabouts(
        operator=context.name, subtask=context.task.subtask, stack=_told(innermost, frame), call=id(frame)
    )


def _step_of(innermost: FrameType) -> tuple[Operator, FrameType] | None:
    """The innermost step on a stack, with its outermost frame that no frame of another step parts from it."""
    found: tuple[Operator, FrameType] | None = None
    frame: FrameType | None = innermost
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Operator) and hasattr(owner, "context"):
            if found is not None and owner is not found[0]:
                break
            found = owner, frame
        frame = frame.f_back
    return found


def _told(innermost: FrameType, outermost: FrameType | None) -> str:
    """File, line and function of each call from `outermost` on; without our own calls before the user's first."""
    calls: list[traceback.FrameSummary] = []
    frame: FrameType | None = innermost
    while frame is not None and len(calls) < MOST_CALLS:
        calls += traceback.extract_stack(frame, limit=1)
        frame = None if frame is outermost else frame.f_back
    calls.reverse()
    first = next((at for at, call in enumerate(calls) if not call.filename.startswith(_OURS)), 0)
    return "".join(traceback.format_list(calls[first:])).rstrip()
