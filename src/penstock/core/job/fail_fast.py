"""Which failures end a job at once, whatever its restart strategy would do.

* An error that no restart can mend, always.
* An error of the program before the first checkpoint of the job, and an error of the program that comes at the same
  place several times with hardly a completed checkpoint between: only if the user has chosen no restart strategy. A
  strategy that the user has chosen decides about errors of the program, too.

A single completed checkpoint is no progress for an error that comes behind every completed checkpoint: in a commit, or
in a function that is told of checkpoints. So a few checkpoints must complete before the failures at a place are
forgotten.

A process that died, or an outside system that is away, is never such an error: the strategy decides then.
"""

from __future__ import annotations

from penstock.core.errors import Fault
from penstock.core.job.events import FailureCause
from penstock.settings import Restart

SAME_FAILURES = 3
"""An error of the program that comes this often at one place, without progress between, ends the job."""
PROGRESS_CHECKPOINTS = 3
"""So many completed checkpoints since the last failure at a place are progress: the failures there are forgotten."""

_FRAME = '  File "'
_Place = tuple[str | None, str, str]


class FailFast:
    """Decides which failures of one job end the job at once. Counts the failures at each place since the job has made
    progress there."""

    def __init__(self, restart: Restart | None, *, has_progressed: bool = False) -> None:
        """`has_progressed` says that an earlier driver has completed a checkpoint of the job."""
        self._judges_program = restart is None
        self._has_progressed = has_progressed
        self._counts: dict[_Place, int] = {}
        self._completed: dict[_Place, int] = {}
        """How many checkpoints have completed since the last failure at a place."""

    def progressed(self) -> None:
        """A checkpoint of the job has completed."""
        self._has_progressed = True
        for place in list(self._counts):
            self._completed[place] += 1
            if self._completed[place] >= PROGRESS_CHECKPOINTS:
                del self._counts[place], self._completed[place]

    def failed(self, cause: FailureCause) -> str | None:
        """Why this failure ends the job at once; None if the restart strategy decides."""
        if cause.fault is Fault.PERMANENT:
            return "no restart can mend this error"
        if cause.fault is Fault.PASSING or not self._judges_program:
            return None
        if not self._has_progressed:
            return "an error of the program before the first checkpoint is not tried again, unless restart= is given"
        place = _place_of(cause)
        self._counts[place] = self._counts.get(place, 0) + 1
        self._completed[place] = 0
        if self._counts[place] < SAME_FAILURES:
            return None
        return (
            f"the same error came {SAME_FAILURES} times, each time with fewer than {PROGRESS_CHECKPOINTS} completed "
            "checkpoints between"
        )


def _place_of(cause: FailureCause) -> _Place:
    """The step, the kind of error, and the line that raised the error. The rest of the error text is left out: it may
    name a record, and so differ each time."""
    frames = [line.strip() for line in cause.traceback.splitlines() if line.startswith(_FRAME)]
    kind = cause.text.partition(":")[0]
    return cause.operator, kind, frames[-1] if frames else ""
