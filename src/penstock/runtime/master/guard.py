"""Work off the loop that is done only while this driver has the job.

    work is asked for ──► its turn comes ──► the hold is looked at ─┬─► held:       the work is done      ──► done
                                                                    ├─► unknown:    not done, HoldUnknown ──► done
                                                                    └─► taken over: not done, the master
                                                                                    is told once          ──► lost

The loss of the job can show before the work, in the work itself, or in other work meanwhile. In each case the hold is
let go, so that no later work is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.api.hold import Hold
from penstock.core.errors import JobTakenOver
from penstock.ports import Background, WorkResult

Done = Callable[[WorkResult], None]


def _always() -> bool:
    return True


def _nobody_waits(_: WorkResult) -> None:
    """The default for `lost`: there is nothing to do when the job is lost."""


class Guard:
    """Lets work run while a hold lasts. Belongs to the master's loop; the hold may be used from any thread."""

    def __init__(self, hold: Hold | None = None, taken_over: Callable[[], None] = lambda: None) -> None:
        """`taken_over` is called when it turns out that another driver has the job. Without `hold`, the guard lets all
        work run: the job ends with its driver, and no other driver can have the job."""
        self.hold = Hold() if hold is None else hold
        self._taken_over = taken_over

    def submit(
        self,
        background: Background,
        work: Callable[[], Any],
        done: Done,
        *,
        is_wanted: Callable[[], bool] = _always,
        lost: Done = _nobody_waits,
    ) -> None:
        """Have `work` done in the background, if `is_wanted` says so when the turn of the work comes; if not, the value
        is None. `done` is called on the loop with the result. The error in the result is `HoldUnknown` if it could not
        be found out which driver has the job. If another driver has the job, `lost` is called instead of `done`,
        whether the work was done or not."""

        def guarded() -> Any:
            if not is_wanted():
                return None
            self.hold.check()
            return work()

        def ended(outcome: WorkResult) -> None:
            if not self.hold.is_lost and not isinstance(outcome.error, JobTakenOver):
                done(outcome)
                return
            if not self.hold.has_let_go:
                self.hold.let_go()
                self._taken_over()
            lost(outcome)

        background.submit(guarded, ended)
