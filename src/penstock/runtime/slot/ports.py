"""What a shell supplies to a slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.ports import AsyncCalls, Background, Clock, Store, Transport
from penstock.runtime.pulse import NOWHERE, Whereabouts
from penstock.runtime.task.operators.sorted_runs import RunOptions
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
    """Says where the loop is. Called from a thread beside the loop."""
    load_whereabouts: Callable[[], Whereabouts] = lambda: NOWHERE
    """Says where the thread of `background` is. Called from the loop."""
    process: Callable[[], dict[str, float]] = dict
    """Memory and processor time of the process, by name."""
    logs: WorkerLogs | None = None
    """Keeps what code in the process logs until the slot sends it to the master. None: nothing is sent."""
    owns_process: bool = False
    """Whether nothing but the slot runs in the process. Then only user code raises `KeyboardInterrupt`, and the error
    fails a task instead of the process."""
    slice_rows: int = MOST_ROWS
    """A slice of work has at most this many rows, timers or results, however fast they are."""
    calls: AsyncCalls | None = None
    """Runs async functions of the user's. None: the program must not have async functions."""
    make_backend: MakeBackend | None = None
    """Makes the back end of keyed state. None: the back end that the settings name."""
    runs: RunOptions = field(default_factory=RunOptions)
    """How the runs of columnar state are kept."""
