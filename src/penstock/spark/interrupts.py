"""Ctrl-C, and the end of the program, while jobs run.

PySpark answers Ctrl-C by cancelling every Spark job, the slots of all jobs included. So while a job runs, Penstock
answers Ctrl-C, and cancels only the Spark jobs that the main thread itself has started: an action at the prompt ends,
and the job goes on.

An interrupt in the middle of a call over Py4J has Py4J close the connections of all threads. Each thread that waits for
an answer then asks again, so that every slot would be started a second time, under the same name. To prevent this, the
main thread's own connection is closed before the interrupt is raised, and Py4J has nothing to close.

A program that ends while a job runs ends the job's Spark, too. Before that, the job is stopped in order, and a log
message says so.
"""

from __future__ import annotations

import atexit
import logging
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from py4j.clientserver import ClientServerConnection, JavaClient

from penstock.spark import connect

log = logging.getLogger(__name__)

Handler = Callable[[int, FrameType | None], Any]

PYSPARK = "pyspark.core.context"
"""The module whose handler of Ctrl-C is replaced. A handler that the user has set is not replaced."""
GROUP = "spark.jobGroup.id"
STOP_TIMEOUT_S = 30.0
CANCEL_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Running:
    """A job that this program runs."""

    name: str
    leave: Callable[[], str]
    """Has this driver leave the job, because the program ends. Returns, for people, what becomes of the job."""
    over: threading.Event


class _Jobs:
    """The jobs of this program that have not ended."""

    def __init__(self) -> None:
        self._running: list[Running] = []
        self._is_watched = False

    @property
    def running(self) -> list[Running]:
        """The jobs that have not ended."""
        self._running = [job for job in self._running if not job.over.is_set()]
        return self._running

    def add(self, job: Running) -> None:
        """A job begins."""
        self._running = [*self.running, job]
        if not self._is_watched:
            self._is_watched = True
            # Functions are called in reverse order: this one before PySpark's, which ends Spark.
            atexit.register(self.end_all)

    def end_all(self) -> None:
        """The program ends: leave all jobs, and wait until they are over."""
        left = self.running
        for job in left:
            log.warning("the program ended while job %r ran, and %s", job.name, job.leave())
        for job in left:
            job.over.wait(STOP_TIMEOUT_S)


JOBS = _Jobs()


def spare_jobs(session: Any) -> None:
    """Have Ctrl-C cancel no slot of a job that runs. Does nothing on a thread other than the main thread, over Spark
    Connect, or if Ctrl-C has a handler that is not PySpark's."""
    if connect.is_connect(session) or threading.current_thread() is not threading.main_thread():
        return
    before = signal.getsignal(signal.SIGINT)
    if callable(before) and getattr(before, "__module__", None) == PYSPARK:
        context = session.sparkContext
        signal.signal(signal.SIGINT, _handler(context, context.getLocalProperty(GROUP), before))


def _handler(context: Any, group: str | None, before: Handler) -> Handler:
    def interrupted(number: int, frame: FrameType | None) -> Any:
        if not JOBS.running:
            return before(number, frame)
        # On a thread of its own: the main thread may be in the middle of a call to Spark, and has only one connection.
        cancel = threading.Thread(target=_cancel, args=(context, group), name="penstock-interrupt", daemon=True)
        cancel.start()
        cancel.join(CANCEL_TIMEOUT_S)
        _hang_up(frame)
        raise KeyboardInterrupt

    return interrupted


def _hang_up(frame: FrameType | None) -> None:
    """If the interrupted thread waits for an answer of Spark, close the connection over which the answer would come.
    The next call has a new connection."""
    while frame is not None:
        caller, connection = frame.f_locals.get("self"), frame.f_locals.get("connection")
        if isinstance(caller, JavaClient) and isinstance(connection, ClientServerConnection):
            connection.close()
        frame = frame.f_back


def _cancel(context: Any, group: str | None) -> None:
    try:
        cancel_own(context, group)
    except Exception as error:  # noqa: BLE001  # py4j and network errors alike: Ctrl-C must get through
        log.debug("the Spark jobs of the main thread could not be cancelled: %s", error)


def cancel_own(context: Any, group: str | None) -> None:
    """Cancel the Spark jobs that have no job group, and the Spark jobs of `group`, which is the job group that the main
    thread had when a job was started. Slots, functions that are called for checkpoints, and streaming queries have
    groups of their own."""
    tracker = context.statusTracker()
    own = {*tracker.getJobIdsForGroup(None), *(() if group is None else tracker.getJobIdsForGroup(group))}
    for number in tracker.getActiveJobsIds():
        if number in own:
            context._jsc.sc().cancelJob(number)  # noqa: SLF001  # Python has no other way to cancel one job
