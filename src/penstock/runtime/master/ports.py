"""What a shell supplies to the master."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.api.hooks import CheckpointHook
from penstock.ports import Background, Clock, JobRecords, Slots, Store, Transport
from penstock.runtime.pulse import NOWHERE, Whereabouts


@dataclass(frozen=True, kw_only=True)
class MasterPorts:
    """What the shell supplies to the master."""

    clock: Clock
    transport: Transport
    background: Background
    store: Store
    slots: Slots
    landing: Store | None = None
    """Where DataFrames were landed, if not in `store`."""
    records: JobRecords | None = None
    """What outlives the driver, if it is not kept in `store`."""
    workers: Callable[[str], Background] | None = None
    """Makes a background of its own for an operator's part on the driver, which may block for long, by a name for its
    thread. Without it all use the master's."""
    whereabouts: Callable[[], Whereabouts] = lambda: NOWHERE
    """Where the loop is, asked from beside it."""
    hooks: Mapping[str, CheckpointHook] = field(default_factory=dict)
    """The hooks that the plan names."""
    is_run: bool = False
    """Whether the job ends with its driver, and goes on when its program is run again. Else a job that was taken over
    may outlive this driver, too."""
    when_safe: Callable[[], None] | None = None
    """Called once, in the background, when the job has completed a checkpoint with this driver: from then on nothing of
    earlier jobs of the same name is needed. May raise `StorageError`."""
