"""What the seed decides before a world begins: the job, its settings, the network's and storage's pace, the faults, and
what the user asks for."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from penstock.runtime.task.slices import MOST_ROWS
from penstock.settings import JobSettings, NoRestart
from penstock.sim.again import Again
from penstock.sim.faults import Fault, end_ms
from penstock.sim.jobs import Workload
from penstock.sim.marking_hook import Hooked
from penstock.sim.programs import Rerun
from penstock.sim.user import UserRequest

LIVENESS_MS = 120_000
"""Many times as long as the longest of the drawn jobs needs, time-outs and restarts included."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """All drawn parameters of a world. Equal scenarios run equally."""

    seed: int
    world_seed: int
    """Decides every delay and every order of events."""
    workload: Workload
    settings: JobSettings
    latency_us: tuple[int, int]
    spike_share: float
    """The share of messages that are late by up to 200 ms."""
    work_us: tuple[int, int]
    """Time of half a piece of background work."""
    start_us: tuple[int, int]
    """Time until a slot is up."""
    failing_starts: int
    """How many times a replaced slot does not come up."""
    cancel_at_ms: int | None
    """When the user cancels the job; None: never."""
    safety_ms: int
    """No fault begins after this."""
    faults: tuple[Fault, ...]
    seen_share: float = 0.0
    """The share of deaths that the followers of a process, such as the master, are told of."""
    lasting: bool = False
    """Whether another driver takes the job over when a driver dies."""
    loses_unsynced: bool = False
    """Whether a crash may undo changes to the storage that are not synced."""
    requests: tuple[UserRequest, ...] = ()
    """What else the user asks for."""
    again: Again | None = None
    """How a second job goes on from what this job leaves; None: there is no second job."""
    rerun: Rerun | None = None
    """How the program is run again by its name; None: a second job starts from a snapshot instead."""
    hook: Hooked | None = None
    """How the hook of the job behaves; None: the job has no hook."""
    slice_rows: int = MOST_ROWS
    """Slots do at most so many rows, timers or results before they look for barriers again."""
    liveness_ms: int = LIVENESS_MS
    """How long the job may take once all faults are over."""

    @property
    def calm_from_ms(self) -> int:
        """From this time on no fault strikes."""
        return max([self.safety_ms, *(end_ms(fault) for fault in self.faults)])

    @property
    def deadline_ms(self) -> int:
        """The job must have ended by this time."""
        return self.calm_from_ms + self.liveness_ms

    def second(self, again: Again, *, from_ms: int) -> Scenario:
        """The scenario of the second job, which begins at `from_ms`."""
        return replace(
            self,
            settings=replace(
                self.settings,
                parallelism=again.parallelism,
                restart=NoRestart() if again.gives_up else self.settings.restart,
            ),
            faults=tuple(replace(fault, at_ms=fault.at_ms + from_ms) for fault in again.faults),
            safety_ms=from_ms + again.safety_ms,
            requests=tuple(replace(request, at_ms=request.at_ms + from_ms) for request in again.requests),
            cancel_at_ms=None,
            again=None,
        )

    def header(self) -> list[str]:
        """Every parameter, one line each."""
        lines = [f"seed {self.seed}"]
        lines += [
            f"  {field.name}: {getattr(self, field.name)}"
            for field in fields(self)
            if field.name not in ("seed", "faults", "settings", "requests", "again")
        ]
        lines += [f"  {field.name}: {getattr(self.settings, field.name)}" for field in fields(self.settings)]
        lines += [f"  request: {request}" for request in self.requests]
        lines += [f"  fault: {fault}" for fault in self.faults] or ["  no faults"]
        lines += [f"  again: {self.again}"] if self.again is not None else []
        return lines
