"""What a shell supplies to a slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.ports import Background, Clock, Store, Transport
from penstock.runtime.pulse import NOWHERE, Whereabouts
from penstock.runtime.task.slices import MOST_ROWS
from penstock.runtime.worker_logs import WorkerLogs
from penstock.state.backends import MakeBackend


@dataclass(frozen=True, kw_only=True)
class SlotPorts:
    """What the shell supplies to a slot."""

    clock: Clock
    transport: Transport
    background: Background
    store: Store
    whereabouts: Callable[[], Whereabouts] = lambda: NOWHERE
    """Where the loop is, asked from beside it."""
    logs: WorkerLogs | None = None
    """What code in the process logs, if it is to be handed on."""
    owns_process: bool = False
    """Whether nothing else runs in the process: then nobody but user code raises `KeyboardInterrupt` there."""
    slice_rows: int = MOST_ROWS
    """A slice of work has at most so many rows, timers or results, however fast they are."""
    make_backend: MakeBackend | None = None
    """Makes what holds keyed state. None: what the settings name."""
