"""Whether a job starts again after a failure, and the pause before it does.

A failure that ends the job at once, whatever the strategy says, is for `fail_fast.py` to know; how long the pause is,
or whether there were too many failures, is for the strategy, in `restart.py`. A failure that is the price of what a
user asked for is free: the job starts again at once, and the strategy is not asked.

A slot that cannot even be started has a pause, too, one pause for all slots that fail in it: a host that cannot start
slots must not be asked all the time. Before the job ever ran there is no pause, and few starts are tried.
"""

from __future__ import annotations

from msgspec import structs

from penstock.core.ids import Instant
from penstock.core.job.events import FailureCause
from penstock.core.job.fail_fast import FailFast
from penstock.core.job.restart import make_restart_strategy
from penstock.settings import Restart

START_FAILURES_BEFORE_FIRST_RUN = 3
"""A job with a slot that dies this often in a row, before the job ever ran, has a wrong environment, not bad luck."""


class RestartPause:
    """Of one job."""

    def __init__(self, restart: Restart | None, *, ran_before: bool, draws: tuple[float, ...]) -> None:
        """`ran_before` says that the job ran with an earlier driver; `draws` are random numbers from 0 to 1."""
        self._strategy = make_restart_strategy(restart)
        self._fail_fast = FailFast(restart, has_progressed=ran_before)
        self._draws = draws
        self._failures = 0
        self._ever_ran = ran_before
        self.until: Instant | None = None
        """When the pause is over; None if there is none."""

    def ran(self) -> None:
        """All tasks of the job run."""
        self._ever_ran = True

    def progressed(self) -> None:
        """A checkpoint of the job has completed."""
        self._fail_fast.progressed()
        self._strategy.progressed()

    def lasts(self, now: Instant) -> bool:
        """Whether it is too early to start again."""
        return self.until is not None and now < self.until

    def begin(self, cause: FailureCause, now: Instant) -> tuple[FailureCause, int | None]:
        """Something has failed: begin the pause, and say how long it is. None instead of a pause means that the job is
        given up, and the cause then says why."""
        cause, delay_ms = self._decide(cause, now)
        self.until = None if delay_ms is None else Instant(now + delay_ms)
        return cause, delay_ms

    def begin_for_slot(self, cause: FailureCause, failed_starts: int, now: Instant) -> FailureCause | None:
        """A slot could not be started, for the so-manieth time in a row: begin a pause, if none is on. Returns why the
        job is given up, if it is."""
        if not self._ever_ran:
            return cause if failed_starts >= START_FAILURES_BEFORE_FIRST_RUN else None
        if self.lasts(now):
            return None
        cause, delay_ms = self.begin(cause, now)
        return cause if delay_ms is None else None

    def keeps_slots_waiting(self, now: Instant) -> bool:
        """Whether the next one of a slot that could not be started is asked for only when the pause is over."""
        return self._ever_ran and self.lasts(now)

    def end(self) -> None:
        """The job starts again, or ends."""
        self.until = None

    def _decide(self, cause: FailureCause, now: Instant) -> tuple[FailureCause, int | None]:
        if cause.free:
            return cause, 0
        why = self._fail_fast.failed(cause)
        if why is not None:
            return structs.replace(cause, why_final=why), None
        self._failures += 1
        delay_ms = self._strategy.failed(now, self._draws[self._failures % len(self._draws)])
        if delay_ms is None:
            return structs.replace(cause, why_final=self._strategy.why_not), None
        return cause, delay_ms
