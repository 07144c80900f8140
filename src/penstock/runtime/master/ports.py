"""What a shell supplies to the master."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.api.hooks import CheckpointHook
from penstock.core.messages import WorkerLog
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
    """The records of the job, which outlive the driver; None: the records are files in `store`."""
    workers: Callable[[str], Background] | None = None
    """Makes a background for one operator's part on the driver, or for one hook, since these may block for long. The
    argument is a name for the thread of the background. None: all of them use the background of the master."""
    whereabouts: Callable[[], Whereabouts] = lambda: NOWHERE
    """Tells where the loop is. Called from a thread beside the loop."""
    lines: Callable[[WorkerLog], None] = lambda _: None
    """Keeps what slots log and print, for those who ask."""
    hooks: Mapping[str, CheckpointHook] = field(default_factory=dict)
    """The hooks that the plan names."""
    is_run: bool = False
    """If true, the job ends with its driver, and goes on when its program is run again. If false, a job that has a
    tenure may outlive this driver: another driver can take the job over."""
    when_safe: Callable[[], None] | None = None
    """Called once, in the background, when the job has completed a checkpoint with this driver: from then on nothing of
    earlier jobs of the same name is needed. May raise `StorageError`."""
