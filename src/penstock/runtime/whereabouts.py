"""Where the loop of a process is, seen from another thread: in the code of which step, and at which line.

The stack of the loop's thread shows both. The loop itself does not write down which step it calls, and so pays nothing.
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
"""How many calls of a stack are shown at most: the innermost calls."""

_OURS = str(Path(__file__).parent.parent)


def of_thread(name: str) -> Callable[[], Whereabouts]:
    """A function that tells where the thread of that name is. Any thread may call the function."""

    def tell() -> Whereabouts:
        ident = next((thread.ident for thread in threading.enumerate() if thread.name == name), None)
        # In spite of the underscore, this is the documented way to look at another thread.
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
        operator=context.name,
        subtask=context.task.subtask,
        doing=operator.doing,
        stack=_told(innermost, frame),
        call=id(frame),
    )


def _step_of(innermost: FrameType) -> tuple[Operator, FrameType] | None:
    """The innermost operator on a stack, and the outermost frame of that operator. The search ends at the first frame
    of another operator. None if no operator is on the stack."""
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
    """File, line and function of each call from `outermost` on. Calls of this package before the first other call are
    left out."""
    calls: list[traceback.FrameSummary] = []
    frame: FrameType | None = innermost
    while frame is not None and len(calls) < MOST_CALLS:
        calls += traceback.extract_stack(frame, limit=1)
        frame = None if frame is outermost else frame.f_back
    calls.reverse()
    first = next((at for at, call in enumerate(calls) if not call.filename.startswith(_OURS)), 0)
    return "".join(traceback.format_list(calls[first:])).rstrip()
