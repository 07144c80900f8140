"""The inside of a slot's Spark task: one Python process, one loop.

Everything that starts threads or opens sockets is made inside the task, after Spark's daemon has forked the worker, and
closed before the task returns. Settings of the process are set back. For Spark reuses the process for any other task.
Imported modules, and objects that libraries keep once per process, stay, and make the next start fast. Two settings
stay because they cannot be set back: Polars has one thread, and the C library keeps freed memory. A process in which a
thread of Penstock does not end is not used again.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import cloudpickle

from penstock.core.errors import SlotLost
from penstock.core.ids import JobId, SlotId
from penstock.net.keys import JobKeys
from penstock.settings import JobSettings
from penstock.spark import shared_folders
from penstock.spark.jvm_watch import JvmWatch, jvm_socket
from penstock.storage.seals import PLAIN, StoreOptions

if TYPE_CHECKING:
    from penstock.net.zeromq import ZmqTransport
    from penstock.runtime.addresses import SlotAddress
    from penstock.runtime.slot.driver import SlotDriver
    from penstock.spark.clock import WallClock
    from penstock.spark.lock_watch import LockWatch
    from penstock.spark.pulse import PulseThread

POLARS_THREADS = "POLARS_MAX_THREADS"
READS_AHEAD = "SPARK_PIPELINED_UDF"
"""The variable is 1 if PySpark reads the input of tasks on a thread of its own."""
PATIENCE_S = 1.0
"""How long threads may take to end after the slot has left."""
ARROW_POOL = "ARROW_DEFAULT_MEMORY_POOL"
"""The environment variable by which the allocator of Arrow is chosen."""
SWITCH_S = 0.0001
"""How long the loop may hold the interpreter lock while the thread that writes snapshots waits for the lock. That
thread lets go of the lock whenever it encodes a batch, writes or syncs, and may then wait this long again. A checkpoint
has a few dozen such calls."""

_LOADER = "penstock-slot-background"
"""The name of the thread that loads tasks."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SlotSpec:
    """Everything that a slot's process must know to register with the master. Travels inside the Spark task."""

    slot: SlotId
    job: JobId
    settings: JobSettings
    storage_root: str
    master_ipc: str | None
    """The address at which processes on the driver's host call the master; None if the master listens by TCP only."""
    master_tcp: str | None
    driver_host: str
    """The name of the driver's host, by which a slot knows whether it is on this host."""
    socket_folder: str | None
    """The job's private folder for sockets on the driver's host."""
    keys: JobKeys
    signs: tuple[str, ...] = ()
    """The signs (`shared_folders`): a slot that finds these files shares their folders with the driver."""
    options: StoreOptions = PLAIN
    """How the files of checkpoints are written and read."""
    program: bytes = b""
    """The plan, pickled. A slot unpickles the plan before it registers, so that the modules of the plan are imported
    before a deployment has to wait for the imports. Empty if the plan is too large to be sent twice."""


def run_slot(spec: SlotSpec) -> bool:
    """Run the slot until the master tells the slot to leave. Returns whether the process may be used again. Raises
    `SlotLost` if the slot ended in any other way."""
    from pyspark import TaskContext

    context = TaskContext.get()
    attempt = context.attemptNumber() if context is not None else 0
    with _one_core(), _kept_memory():
        _import_program(spec.program)
        _Slot(spec, SlotId(spec.slot.number, spec.slot.incarnation, attempt)).run()
        return _is_fit()


def _import_program(program: bytes) -> None:
    import pyarrow as pa

    # An error is ignored here. The deployment unpickles the plan again, and its error reaches the user.
    with suppress(BaseException):
        cloudpickle.loads(program)
    # The first array makes pyarrow import pandas, which takes longer than all other imports.
    pa.array(())


@contextmanager
def _one_core() -> Iterator[None]:
    """While the block runs, thread pools have one thread, and Python's own threads take short turns: a slot has one
    core. Only Polars keeps one thread after the block, because Polars reads its variable when it is first imported."""
    unset = POLARS_THREADS not in os.environ
    if unset:
        os.environ[POLARS_THREADS] = "1"
    import pyarrow as pa

    before, switch_s = pa.cpu_count(), sys.getswitchinterval()
    pa.set_cpu_count(1)
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(switch_s)
        pa.set_cpu_count(before)
        if unset:
            del os.environ[POLARS_THREADS]


@contextmanager
def _kept_memory() -> Iterator[None]:
    """While the block runs, Arrow keeps memory that was freed for about a second. Its default allocator gives such
    memory back to the system, and new memory costs more than what a batch is computed for."""
    import pyarrow as pa

    if ARROW_POOL in os.environ or "jemalloc" not in pa.supported_memory_backends():
        yield
        return
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.jemalloc_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


class _Slot:
    """The ports of one slot, from their opening to their closing."""

    def __init__(self, spec: SlotSpec, slot: SlotId) -> None:
        self._spec = spec
        self._slot = slot

    def run(self) -> None:
        spec = self._spec
        lacking = shared_folders.lacking(spec.signs)
        if lacking:
            raise SlotLost(shared_folders.told(socket.gethostname(), ", ".join(lacking)))
        here = socket.gethostname() == spec.driver_host
        transport_kind = spec.settings.network.transport
        own_folder: tempfile.TemporaryDirectory[str] | None = None
        # Only the user of the program may use the folder, and Spark's workers may run as another user.
        shares = here and spec.socket_folder is not None and os.access(spec.socket_folder, os.W_OK | os.X_OK)
        if transport_kind == "tcp":
            folder = None
        elif shares:
            folder = spec.socket_folder
        else:
            own_folder = tempfile.TemporaryDirectory(prefix="penstock-")
            folder = own_folder.name
        master = spec.master_ipc if shares and spec.master_ipc and folder else spec.master_tcp or spec.master_ipc
        if master is None:
            raise SlotLost(f"the master of job {spec.job} listens at no address that {self._slot} could call")
        try:
            # A slot that calls the master by a socket file may still share channels with slots on other hosts.
            self._loop(folder=folder, host=_own_address(spec.master_tcp or master), master=master)
        finally:
            if own_folder is not None:
                own_folder.cleanup()

    def _loop(self, *, folder: str | None, host: str | None, master: str) -> None:
        # Imported inside the task, after the fork. A worker that is reused does not import these modules again.
        from penstock.net.zeromq import ZmqTransport, keep_message_memory
        from penstock.runtime.slot.driver import SlotDriver
        from penstock.runtime.slot.ports import SlotPorts
        from penstock.runtime.whereabouts import of_thread
        from penstock.runtime.worker_logs import WorkerLogs, collected
        from penstock.spark.async_calls import AsyncioCalls
        from penstock.spark.background import ThreadBackground
        from penstock.spark.clock import WallClock
        from penstock.spark.collector import out_of_sight
        from penstock.spark.process_numbers import process_numbers
        from penstock.storage.locations import open_store

        spec = self._spec
        keep_message_memory()
        clock = WallClock()
        transport = ZmqTransport(str(self._slot), keys=spec.keys, ipc_dir=folder, host=host)
        background = ThreadBackground(transport.wake, name=_LOADER)
        calls = AsyncioCalls(transport.wake, name="penstock-slot-calls")
        logs = WorkerLogs(spec.settings.slot.log_level)
        watch = JvmWatch(jvm_socket(), transport.wake)
        try:
            driver = SlotDriver(
                self._slot,
                job=spec.job,
                settings=spec.settings,
                ports=SlotPorts(
                    clock=clock,
                    transport=transport,
                    background=background,
                    calls=calls,
                    store=open_store(spec.storage_root, options=spec.options),
                    owns_process=True,
                    process=process_numbers,
                    logs=logs,
                    whereabouts=of_thread(threading.current_thread().name),
                    load_whereabouts=of_thread(_LOADER),
                ),
                address=_address(transport, folder),
                master_address=master,
            )
            try:
                lock_watch, beside = self._signs_of_life(driver, clock, master)
                with watch, out_of_sight(), collected(logs), lock_watch, beside:
                    _take_turns(driver, watch, clock, transport)
                # The last message, that the slot leaves, may not be sent yet.
                transport.wait(20)
            finally:
                driver.close()
        finally:
            calls.close()
            background.close()
            transport.close()
        # An error ends the process, so that it is not reused.
        if watch.closed:
            raise SlotLost("Spark has closed its connection to the worker")
        if driver.error is not None:
            raise SlotLost(driver.error)

    def _signs_of_life(self, driver: SlotDriver, clock: WallClock, master: str) -> tuple[LockWatch, PulseThread]:
        from penstock.spark.lock_watch import LockWatch
        from penstock.spark.pulse import PulseThread

        spec = self._spec
        lock_watch = LockWatch(str(self._slot), master, keys=spec.keys, settings=spec.settings.slot)
        return lock_watch, PulseThread(lock_watch.before(driver.beat), clock, name="penstock-slot-pulse")


def _take_turns(driver: SlotDriver, watch: JvmWatch, clock: WallClock, transport: ZmqTransport) -> None:
    """The loop of a slot, until the slot leaves or Spark lets go of the slot."""
    while not driver.left and not watch.closed:
        now = clock.now()
        deadline = driver.turn(now)
        if deadline is None or deadline > now:
            transport.wait(None if deadline is None else max(0, deadline - clock.now()))


def _is_fit() -> bool:
    """Whether the process may be used again: not if a thread of Penstock is left. A thread that is blocked inside a
    data source or a storage cannot be ended."""
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("penstock-")]
    for thread in ours:
        thread.join(PATIENCE_S / len(ours))
    left = [thread.name for thread in ours if thread.is_alive()]
    if left and os.environ.get(READS_AHEAD) == "1":
        # PySpark has then read all input of the task, and unread input would not end the process: only an error does.
        raise SlotLost(f"the worker must not be used again, since threads did not end: {', '.join(left)}")
    if left:
        log.warning("this worker is not used again, since threads did not end: %s", ", ".join(left))
    return not left


def _address(transport: ZmqTransport, folder: str | None) -> SlotAddress:
    """Where other processes reach the slot. `folder` has the slot's socket files; None if there are none."""
    from penstock.runtime.addresses import SlotAddress

    return SlotAddress(
        host=socket.gethostname(),
        pid=os.getpid(),
        ipc_scope="" if folder is None else _ipc_scope(folder),
        ipc_address=transport.ipc_address,
        tcp_address=transport.tcp_address,
    )


def _ipc_scope(folder: str) -> str:
    """A text that is the same for all processes that have the same kernel and see the same files beside the folder with
    a slot's sockets. The name of the host would not do: several hosts may have the same name, and containers on one
    host have files of their own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = socket.gethostname()
    beside = Path(folder).parent.stat()
    return f"{boot}/{beside.st_dev}/{beside.st_ino}"


def _own_address(master: str) -> str | None:
    """The address of this host at which other slots can call this slot: the address from which this host calls the
    master. None if all slots are on one host."""
    if not master.startswith("tcp://"):
        return None
    host, _, port = master.removeprefix("tcp://").rpartition(":")
    with socket.socket(socket.AF_INET6 if host.startswith("[") else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # To connect a datagram socket sends nothing; the call only asks the routing table.
        probe.connect((host.strip("[]"), int(port)))
        return str(probe.getsockname()[0])
