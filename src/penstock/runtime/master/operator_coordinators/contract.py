"""What an operator coordinator is: the part of a source or sink that runs on the driver, beside the master.

    start ──► run ──► snapshot, completed, …  ──► stop          once per attempt
    end                                                         once per job: the connector lets go of what it has

Work that blocks runs in the coordinator's own background. Results of work for an attempt that has stopped are dropped.

Before each piece of such work the driver's hold on the job is looked at, in the background too. If another driver has
the job, the work is not done, and the master is told. If it cannot be found out which driver has the job, the work is
not done, and is asked for again later. The attempt does not fail because of the doubt.
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
    """What an operator coordinator may use."""

    name: str
    """The name of the operator, for people."""
    job: str = ""
    background: Background
    say: Callable[[int, bytes], None]
    """(subtask, event): have the event sent to the subtask. A gateway keeps the event on the right side of barriers."""
    fail: Callable[[FailureCause], None]
    catching_up: Callable[[bool], None] = lambda _: None
    """Tell the checkpoint coordinator whether the operator is behind."""
    guard: Guard = field(default_factory=Guard)
    """Lets work run only while this driver has the job."""


class OperatorCoordinator(ABC):
    """The coordinator of one operator. All calls but `close` come from the master's loop, and never block."""

    parts_name: str
    """The name of the operator's list state whose parts this coordinator gets with every checkpoint."""
    outlives_slots: bool = False
    """Whether the coordinator ends only when no slot is left and every checkpoint is decided. Otherwise the coordinator
    ends when the outcome of the job is decided."""

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
        """Work that was not done because it could not be found out which driver has the job, and all work that was
        asked for since."""
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
        """An attempt is deployed. `restored` is the state of this coordinator, and `parts` are the parts of the
        operator's subtasks, in the checkpoint that the attempt starts from; None and no parts if the attempt starts
        without state. `saved` are the parts in savepoints of earlier attempts. With `more_data`, the data had come to
        its end in the checkpoint, and the job goes on with the data that has come since."""
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
        """The state of the coordinator, as of now."""

    @abstractmethod
    def completed(self, checkpoint: CheckpointId, parts: Sequence[bytes]) -> None:
        """`checkpoint` is complete. `parts` are the parts of the subtasks in the checkpoint."""

    def saved_with(self, checkpoint: CheckpointId, parts: Sequence[bytes]) -> None:  # noqa: B027
        """A savepoint that does not stop the job is complete. `parts` are the parts of the subtasks in the savepoint.
        The next checkpoint has these parts, too."""

    @abstractmethod
    def aborted(self, checkpoint: CheckpointId) -> None:
        """`checkpoint` will never complete."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything. Runs off the loop, may block."""

    def splits_read(self, subtask: int, count: int) -> None:  # noqa: B027  # only an enumerator's part needs it
        """A subtask has read so many splits to their ends since the attempt began."""

    def not_needed(self) -> None:  # noqa: B027  # only an enumerator's part needs it
        """Nothing needs the records of the source any more."""

    def turn(self, now: Instant) -> None:  # noqa: B027  # not every coordinator does something by itself
        """Time has passed."""

    def next_deadline(self) -> Instant | None:
        """When `turn` must be called at the latest."""
        return None

    def tell_all(self, event: bytes) -> None:
        """Send the same event to every subtask."""
        for subtask in range(self.parallelism):
            self.host.say(subtask, event)

    def off_loop(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run `work`, which may block, in the background. `done` gets the value, on the loop, if the attempt still goes
        on. An error fails the attempt. If the attempt is over before the turn of the work comes, or if another driver
        has the job, the work is not run at all."""
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
                    text = "which driver has job %s cannot be found out now; the part of %r on this driver waits: %s"
                    log.warning(text, self.host.job, self.host.name, why, extra=extra)
                self._doubtful.append((work, done))
            elif outcome.error is not None:
                self.host.fail(driver_cause(self.host.name, outcome.error))
            else:
                self._take(outcome.value, done)

        self.host.guard.submit(self.host.background, work, ended, is_wanted=is_wanted)

    def _take(self, value: Any, done: Callable[[Any], None]) -> None:
        """Hand the value that a connector returned to `done`. The value may be of any type, and an error must not end
        the master's loop."""
        try:
            done(value)
        except BaseException as error:  # noqa: BLE001
            self.host.fail(driver_cause(self.host.name, error))

    def ask_again(self, now: Instant) -> None:
        """Ask again, in the same order, for the work that waits because of doubt, when the time has come."""
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
        """The job has ended: close, after all work that is under way. `has_ended` is true when the coordinator is
        closed."""
        self.stop()

        def ended(outcome: WorkResult) -> None:
            self.has_ended = True
            # If another driver has the job, that driver does the rest.
            if outcome.error is not None and not self.host.guard.hold.is_lost:
                why = one_line(outcome.error)
                extra = {"job": self.host.job, "operator": self.host.name, "error": why}
                text = "the connector of %r in job %s could not be closed: %s"
                log.warning(text, self.host.name, self.host.job, why, extra=extra)

        self.host.background.submit(self.close, ended)
