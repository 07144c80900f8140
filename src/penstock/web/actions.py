"""What users have asked jobs to do: an action is begun by one request, and other requests ask how it goes.

A client may name an action itself. If the client repeats the request with the same name, nothing is begun anew: so a
request can be repeated whose answer was lost.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from penstock.core.errors import StreamError
from penstock.web.answers.asking import Refused
from penstock.web.ids import is_id

KEPT_MS = 5 * 60_000
"""How long the result of an action is kept after its end."""
MOST_UNDER_WAY = 16
MOST_KEPT = 1_000

Document = dict[str, Any]


@dataclass(slots=True)
class _Action:
    result: Document | None = None
    failure: BaseException | None = None
    ended_ms: float | None = None


class Actions:
    """The actions of one server. Belongs to the server's loop, except for the calls themselves."""

    def __init__(self, executor: Executor, clock_ms: Callable[[], float], draw_name: Callable[[], str]) -> None:
        """`draw_name` makes the name of an action: 32 hexadecimal digits that nobody can guess."""
        self._draw_name = draw_name
        self._executor = executor
        self._clock_ms = clock_ms
        self._actions: dict[tuple[str, str, str], _Action] = {}

    def begin(self, kind: str, job: str, call: Callable[[], Document], *, trigger: object = None) -> Document:
        """Begin an action, unless the client has begun one with the same name. Returns the answer to the client."""
        self._forget()
        if trigger is not None and not (isinstance(trigger, str) and is_id(trigger)):
            raise Refused(400, "Request did not match expected format: triggerId must be 32 hexadecimal digits.")
        name = trigger if isinstance(trigger, str) else self._draw_name()
        key = (kind, job, name)
        if key not in self._actions:
            if sum(action.ended_ms is None for action in self._actions.values()) >= MOST_UNDER_WAY:
                raise Refused(503, f"{MOST_UNDER_WAY} actions are under way; try again later")
            action = self._actions[key] = _Action()
            self._executor.submit(self._run, action, call)
        return {"request-id": name}

    def status(self, kind: str, job: str, name: str) -> Document:
        """How an action goes."""
        if not is_id(name):
            raise Refused(400, f'Cannot resolve path parameter (triggerid) from value "{name}".')
        action = self._actions.get((kind, job, name))
        if action is None:
            raise Refused(404, f"There is no savepoint operation with triggerId={name} for job {job}.")
        if action.ended_ms is None:
            return {"status": {"id": "IN_PROGRESS"}, "operation": None}
        if action.failure is not None:
            return {"status": {"id": "COMPLETED"}, "operation": {"failure-cause": _cause(action.failure)}}
        return {"status": {"id": "COMPLETED"}, "operation": action.result}

    def _run(self, action: _Action, call: Callable[[], Document]) -> None:
        try:
            action.result = call()
        except BaseException as error:  # noqa: BLE001  # whatever it is, the client is told
            action.failure = error
        finally:
            action.ended_ms = self._clock_ms()

    def _forget(self) -> None:
        now = self._clock_ms()
        ended = [(key, a.ended_ms) for key, a in self._actions.items() if a.ended_ms is not None]
        for place, (key, ended_ms) in enumerate(ended):
            if now - ended_ms > KEPT_MS or len(ended) - place > MOST_KEPT:
                del self._actions[key]


def _cause(error: BaseException) -> Document:
    """A failure as clients are told: without the stack of this process, whose files are nobody's business."""
    text = str(error)
    hint = error.hint if isinstance(error, StreamError) else None
    return {
        "class": f"penstock.{type(error).__name__}" if isinstance(error, StreamError) else type(error).__name__,
        "stack-trace": text if not hint or hint in text else f"{text}\n  hint: {hint}",
    }
