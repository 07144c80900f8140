"""Calls the checkpoint hooks of a job: with every checkpoint, before the tasks of an attempt start, and at the end.

Each hook has a background of its own, so that a hook that hangs does not hold up other hooks. The calls of a hook are
made one after another, in the order in which they were asked for. A call is not made if its checkpoint or its attempt
is over before the turn of the call comes. Before each call but `close` the driver's hold on the job is looked at. If
another driver has the job, the call is not made, and the master is told. If it cannot be found out which driver has the
job, a checkpoint fails, and a restore is tried again until its time is over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from penstock.api.hold import ASK_AGAIN_MS, HoldUnknown
from penstock.api.hooks import CheckpointHook
from penstock.core.coordinator.effects import TriggerHook
from penstock.core.coordinator.events import CoordinatorEvent, HookFailed, HookTriggered
from penstock.core.errors import ExternalError, UsageError
from penstock.core.ids import CheckpointId, Epoch, Instant
from penstock.core.job.events import FailureCause
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.hook_states import HookRestores
from penstock.ports import Background, WorkResult
from penstock.runtime.master.guard import Guard
from penstock.runtime.task.operators.user_code import driver_cause, one_line

log = logging.getLogger(__name__)


class MasterHooks:
    """All checkpoint hooks of a job. Belongs to the master's loop."""

    def __init__(
        self,
        hooks: Mapping[str, CheckpointHook],
        *,
        timeout_ms: int,
        guard: Guard,
        background: Callable[[str], Background],
        feed: Callable[[CoordinatorEvent], None],
        fail: Callable[[FailureCause], None],
    ) -> None:
        self._hooks = dict(hooks)
        self._backgrounds = {name: background(f"hook-{name}") for name in hooks}
        self._timeout_ms = timeout_ms
        self._guard = guard
        self._feed = feed
        self._fail = fail
        self._triggering: CheckpointId | None = None
        self._restores = HookRestores(timeout_ms)
        self._restored: Callable[[], None] = lambda: None
        self._again: list[Callable[[], None]] = []
        """Restores that were not made because it could not be found out which driver has the job."""
        self._again_at: Instant | None = None
        self._open: dict[str, None] = {}
        self._is_ending = False
        self._close_until: Instant | None = None
        self._now = Instant(0)
        for hook in hooks.values():
            hook.bind_hold(guard.hold)

    # --- checkpoints ---------------------------------------------------------------------

    def trigger(self, effect: TriggerHook) -> None:
        """Have a hook take its part in a checkpoint. Only one checkpoint is triggered at a time."""
        name, checkpoint = effect.hook, effect.checkpoint
        self._triggering = checkpoint

        def work() -> bytes | None:
            return _as_state(name, self._hooks[name].trigger(checkpoint, effect.timestamp))

        def done(outcome: WorkResult) -> None:
            if outcome.error is None:
                self._feed(HookTriggered(hook=name, checkpoint=checkpoint, state=outcome.value))
                return
            error = one_line(outcome.error)
            extra = {"hook": name, "checkpoint": checkpoint, "error": error}
            log.warning("hook %r failed checkpoint %d: %s", name, checkpoint, error, extra=extra)
            away = isinstance(outcome.error, OSError | ExternalError | HoldUnknown)
            reason = CheckpointFailure.IO if away else CheckpointFailure.TRIGGER_FAILED
            self._feed(HookFailed(hook=name, checkpoint=checkpoint, reason=reason, error=error))

        self._submit(name, work, done, is_wanted=lambda: self._triggering == checkpoint)

    def aborted(self, checkpoint: CheckpointId) -> None:
        """The checkpoint is aborted: calls for the checkpoint that have not begun are not made any more."""
        if self._triggering == checkpoint:
            self._triggering = None

    # --- restores ------------------------------------------------------------------------

    def restore(
        self, checkpoint: CheckpointId | None, states: Mapping[str, bytes], epoch: Epoch, then: Callable[[], None]
    ) -> None:
        """Have all hooks go back to a checkpoint, or to the beginning, for an attempt. `then` is called when all hooks
        have gone back, unless the attempt is over by then. An error of a hook fails the attempt."""
        if not self._hooks:
            then()
            return
        self._again, self._again_at = [], None
        self._restored = then
        self._restores.begin(self._hooks, epoch, self._now)
        for name, hook in self._hooks.items():
            call = hook.reset if checkpoint is None else partial(hook.restore, checkpoint, states.get(name))
            self._restore(name, epoch, call)

    def _restore(self, name: str, epoch: Epoch, call: Callable[[], None]) -> None:
        def is_wanted() -> bool:
            return self._restores.is_wanted(name, epoch)

        def done(outcome: WorkResult) -> None:
            if not is_wanted():
                return
            if isinstance(outcome.error, HoldUnknown):
                self._again.append(lambda: self._restore(name, epoch, call))
                self._again_at = Instant(self._now + ASK_AGAIN_MS)
            elif outcome.error is not None:
                self._restores.give_up()
                self._fail(driver_cause(f"hook {name}", outcome.error))
            elif self._restores.restored(name):
                self._restored()

        self._submit(name, call, done, is_wanted=is_wanted)

    def stop(self) -> None:
        """The attempt is over: the restores of its hooks do not count any more."""
        self._restores.give_up()
        self._again, self._again_at = [], None

    # --- time ----------------------------------------------------------------------------

    def turn(self, now: Instant) -> None:
        """Time has passed, or a call has ended."""
        self._now = now
        for background in self._backgrounds.values():
            background.collect()
        if self._again_at is not None and now >= self._again_at:
            again, self._again, self._again_at = self._again, [], None
            for call in again:
                call()
        if late := self._restores.late(now):
            names = ", ".join(map(repr, late))
            text = f"after {self._timeout_ms} ms these hooks were not restored: {names}"
            self._fail(FailureCause(text=text))
        if self._close_until is not None and now >= self._close_until:
            self._close_until = None
            log.warning(
                "hooks that did not close in time were left alone: %s",
                ", ".join(self._open),
                extra={"hooks": [*self._open]},
            )
            self._open = {}

    def next_deadline(self) -> Instant | None:
        """When `turn` must be called at the latest."""
        times = (self._again_at, self._restores.next_deadline(), self._close_until)
        return min((time for time in times if time is not None), default=None)

    # --- the end -------------------------------------------------------------------------

    def end(self) -> None:
        """No checkpoint and no attempt follows: have all hooks closed, each hook after its calls that are under way. A
        hook that hangs is left alone when its time is over."""
        if self._is_ending:
            return
        self._is_ending = True
        self.stop()
        self._triggering = None
        self._open = dict.fromkeys(self._hooks)
        self._close_until = Instant(self._now + self._timeout_ms) if self._hooks else None
        for name, hook in self._hooks.items():
            self._backgrounds[name].submit(hook.close, partial(self._closed, name))

    def _closed(self, name: str, outcome: WorkResult) -> None:
        if outcome.error is not None:
            error = one_line(outcome.error)
            log.warning("hook %r could not be closed: %s", name, error, extra={"hook": name, "error": error})
        self._open.pop(name, None)
        if not self._open:
            self._close_until = None

    @property
    def have_ended(self) -> bool:
        """Whether `end` is done."""
        return not self._hooks or (self._is_ending and not self._open)

    def _submit(
        self, name: str, work: Callable[[], Any], done: Callable[[WorkResult], None], *, is_wanted: Callable[[], bool]
    ) -> None:
        self._guard.submit(self._backgrounds[name], work, done, is_wanted=is_wanted)


def _as_state(name: str, given: object) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    raise UsageError(f"hook {name!r} returned {given!r} from trigger; trigger must return bytes or None")
