"""What an operator coordinator is: the part of a source or sink that runs on the driver, beside the master.

    start ──► run ──► snapshot, completed, …  ──► stop          once per attempt
    end                                                         once per job: the connector lets go of what it has

Whatever blocks runs in the coordinator's own background. What comes back from an attempt that has stopped is dropped.

Before each piece of such work the driver's hold on the job is looked at, in the background too. If another driver has
the job, the work is not done, and the master is told. If nobody can say who has the job, the work is asked for again
later: nothing is done in doubt, and no attempt fails because of it.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.api.hold import ASK_AGAIN_MS, HoldUnknown
from penstock.core.ids import CheckpointId, Instant
from penstock.core.job.events import FailureCause
from penstock.ports import Background, WorkResult
from penstock.runtime.master.guard import Guard
from penstock.runtime.task.operators.user_code import driver_cause, one_line

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CoordinatorHost:
    """What a coordinator may use."""

    name: str
    """What people call the operator."""
    job: str = ""
    background: Background
    say: Callable[[int, bytes], None]
    """(subtask, event): have it sent, when no barrier is in between."""
    fail: Callable[[FailureCause], None]
    catching_up: Callable[[bool], None] = lambda _: None
    """Tell the checkpoint coordinator whether the operator is behind."""
    guard: Guard = field(default_factory=Guard)
    """Lets work run only while this driver has the job."""


class OperatorCoordinator(ABC):
    """The coordinator of one operator. All calls come from the master's loop, and never block."""

    parts_name: str
    """The name of the operator's list state that it wants to see of every checkpoint."""
    outlives_slots: bool = False
    """Whether it ends only when no subtask can do anything any more, and every checkpoint is decided."""

    def __init__(self, host: CoordinatorHost) -> None:
        self.host = host
        self.has_ended = False
        self.parallelism = 0
        self.epoch = 0
        self.saved: Sequence[bytes] = ()
        self.more_data = False
        self._attempt = 0
        self._running = False
        self._doubtful: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        """Work that was not done because nobody could say who has the job, and what was asked for since."""
        self._ask_at: Instant | None = None

    @property
    def running(self) -> bool:
        """Whether the tasks of an attempt run."""
        return self._running

    def start(
        self,
        restored: bytes | None,
        parts: Sequence[bytes],
        *,
        parallelism: int,
        epoch: int = 1,
        saved: Sequence[bytes] = (),
        more_data: bool = False,
    ) -> None:
        """An attempt is deployed, from the state and the operator's parts of a checkpoint, or from nothing; `saved` are
        parts that savepoints have, of earlier attempts. With `more_data` the data had come to its end in that
        checkpoint, and the job goes on with what is new since."""
        self._attempt += 1
        self.more_data = more_data
        self.parallelism = parallelism
        self.epoch = epoch
        self.saved = saved
        self.reset(restored, parts)

    @abstractmethod
    def reset(self, restored: bytes | None, parts: Sequence[bytes]) -> None:
        """Take up the state of a checkpoint, or begin at the beginning."""

    def run(self) -> None:
        """The tasks of the attempt run: events reach them from here on."""
        self._running = True

    def stop(self) -> None:
        """The attempt is over."""
        self._attempt += 1
        self._running = False
        self._doubtful, self._ask_at = [], None

    @abstractmethod
    def snapshot(self, checkpoint: CheckpointId) -> bytes:
        """The state, as of now."""

    @abstractmethod
    def completed(self, checkpoint: CheckpointId, parts: Sequence[bytes]) -> None:
        """`checkpoint`, in which the subtasks have these parts, is durable."""

    def saved_with(self, checkpoint: CheckpointId, parts: Sequence[bytes]) -> None:  # noqa: B027
        """A savepoint is complete in which the subtasks have these parts; the job goes on, and is told of them again
        with the next checkpoint."""

    @abstractmethod
    def aborted(self, checkpoint: CheckpointId) -> None:
        """`checkpoint` will never complete."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything. Runs off the loop, may block."""

    def splits_read(self, subtask: int, count: int) -> None:  # noqa: B027  # only an enumerator's part needs it
        """A subtask has read so many splits to their ends since the attempt began."""

    def turn(self, now: Instant) -> None:  # noqa: B027  # not all of them do something by themselves
        """Time has passed."""

    def next_deadline(self) -> Instant | None:
        """When `turn` must be called at the latest."""
        return None

    def tell_all(self, event: bytes) -> None:
        """Say the same to every subtask."""
        for subtask in range(self.parallelism):
            self.host.say(subtask, event)

    def off_loop(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run what may block; `done` gets its value, on the loop, if the attempt still goes on; an error fails the
        attempt. If the attempt is over before its turn comes, or another driver has the job, it is not run at all."""
        if self._doubtful:
            self._doubtful.append((work, done))
            return
        attempt = self._attempt

        def is_wanted() -> bool:
            return self._attempt == attempt

        def ended(outcome: WorkResult) -> None:
            if not is_wanted():
                return
            if isinstance(outcome.error, HoldUnknown):
                if not self._doubtful:
                    why = one_line(outcome.error)
                    extra = {"job": self.host.job, "operator": self.host.name, "error": why}
                    text = "who has job %s cannot be found out now; the driver's part of %r waits: %s"
                    log.warning(text, self.host.job, self.host.name, why, extra=extra)
                self._doubtful.append((work, done))
            elif outcome.error is not None:
                self.host.fail(driver_cause(self.host.name, outcome.error))
            else:
                self._take(outcome.value, done)

        self.host.guard.submit(self.host.background, work, ended, is_wanted=is_wanted)

    def _take(self, value: Any, done: Callable[[Any], None]) -> None:
        """Go on with what a connector returned. It may be anything, and must not end the master's loop."""
        try:
            done(value)
        except BaseException as error:  # noqa: BLE001
            self.host.fail(driver_cause(self.host.name, error))

    def ask_again(self, now: Instant) -> None:
        """Do, in its order, what could not be done in doubt, when it is time to."""
        if not self._doubtful:
            return
        if self._ask_at is None:
            self._ask_at = Instant(now + ASK_AGAIN_MS)
        elif now >= self._ask_at:
            waiting, self._doubtful, self._ask_at = self._doubtful, [], None
            for work, done in waiting:
                self.off_loop(work, done)

    @property
    def asks_at(self) -> Instant | None:
        """When `ask_again` must be called at the latest."""
        return self._ask_at

    def end(self) -> None:
        """The job has ended: close, behind everything that is under way; `has_ended` says when it is done."""
        self.stop()

        def ended(outcome: WorkResult) -> None:
            self.has_ended = True
            # What another driver has is its to close.
            if outcome.error is not None and not self.host.guard.hold.is_lost:
                why = one_line(outcome.error)
                extra = {"job": self.host.job, "operator": self.host.name, "error": why}
                text = "the connector of %r in job %s could not be closed: %s"
                log.warning(text, self.host.name, self.host.job, why, extra=extra)

        self.host.background.submit(self.close, ended)
