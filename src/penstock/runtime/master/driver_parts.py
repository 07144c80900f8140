"""What runs for a job on the driver, beside the master: operator coordinators, hooks, watermark groups, and the end of
sources that nothing needs any more."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.ids import Instant
from penstock.runtime.full_steps import UnneededSources
from penstock.runtime.master.alignment import GroupTimes
from penstock.runtime.master.hook_calls import MasterHooks
from penstock.runtime.master.operator_coordinators.of_job import OperatorCoordinators
from penstock.runtime.master.saved_results import SavedResults


@dataclass(frozen=True, kw_only=True)
class DriverParts:
    """The parts of one job on the driver, and what sinks prepared for savepoints."""

    coordinators: OperatorCoordinators
    hooks: MasterHooks
    saved: SavedResults
    groups: GroupTimes
    unneeded: UnneededSources

    def leave_attempt(self) -> None:
        """The attempt is over."""
        self.saved.attempt_over()
        self.groups.stop()
        self.unneeded.stop()
        self.hooks.stop()
        self.coordinators.stop()

    def turn(self, now: Instant) -> None:
        """Time has passed, or work has ended."""
        self.groups.turn(now)
        self.hooks.turn(now)
        self.coordinators.turn(now)

    def next_deadline(self) -> Instant | None:
        """When `turn` must be called at the latest."""
        parts = (self.groups, self.hooks, self.coordinators)
        times = [part.next_deadline() for part in parts]
        return min((time for time in times if time is not None), default=None)

    def end(self) -> None:
        """No slot is left, and every checkpoint is decided: all parts let go of what they have."""
        self.hooks.end()
        self.coordinators.end()

    @property
    def have_ended(self) -> bool:
        """Whether `end` is done."""
        return self.hooks.have_ended and self.coordinators.have_ended
