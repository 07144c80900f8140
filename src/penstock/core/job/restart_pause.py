"""Whether a job starts again after a failure, and the pause before the restart.

`fail_fast.py` knows which failures end the job at once, whatever the strategy says. The strategy, in `restart.py`, says
how long the pause is, or that there were too many failures. A failure that is the price of a request of the user is
free: the job starts again at once, and the strategy is not asked.

A slot that cannot even be started begins a pause, too. All slots that fail to start during a pause share that pause: a
host that cannot start slots must not be asked all the time. Before the job has run for the first time there is no pause
for slots, and only a few starts are tried.
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
    """The pause of one job, if a pause is on, and the decision whether the job starts again."""

    def __init__(self, restart: Restart | None, *, ran_before: bool, draws: tuple[float, ...]) -> None:
        """`ran_before` says that the job ran with an earlier driver; `draws` are random numbers from 0 to 1."""
        self._strategy = make_restart_strategy(restart)
        self._fail_fast = FailFast(restart, has_progressed=ran_before)
        self._draws = draws
        self._failures = 0
        self._ever_ran = ran_before
        self.until: Instant | None = None
        """When the pause is over; None if no pause is on."""

    def ran(self) -> None:
        """All tasks of the job run."""
        self._ever_ran = True

    def progressed(self) -> None:
        """A checkpoint of the job has completed."""
        self._fail_fast.progressed()
        self._strategy.progressed()

    def lasts(self, now: Instant) -> bool:
        """Whether the pause is not over yet."""
        return self.until is not None and now < self.until

    def begin(self, cause: FailureCause, now: Instant) -> tuple[FailureCause, int | None]:
        """Something has failed: begin the pause. Returns the cause, and the length of the pause in milliseconds. If the
        length is None, the job is given up, and `why_final` of the cause says why."""
        cause, delay_ms = self._decide(cause, now)
        self.until = None if delay_ms is None else Instant(now + delay_ms)
        return cause, delay_ms

    def begin_for_slot(self, cause: FailureCause, failed_starts: int, now: Instant) -> FailureCause | None:
        """A slot could not be started, `failed_starts` times in a row: begin a pause, unless a pause is on or the job
        has never run. Returns the cause of the job's end if the job is given up; otherwise None."""
        if not self._ever_ran:
            return cause if failed_starts >= START_FAILURES_BEFORE_FIRST_RUN else None
        if self.lasts(now):
            return None
        cause, delay_ms = self.begin(cause, now)
        return cause if delay_ms is None else None

    def keeps_slots_waiting(self, now: Instant) -> bool:
        """Whether a slot that could not be started is asked for again only when the pause is over."""
        return self._ever_ran and self.lasts(now)

    def end(self) -> None:
        """End the pause. Called when the job starts again or ends, and when the time of the pause is over."""
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
