"""Slots as Spark tasks: each slot is a Spark job with one task, submitted from a driver thread of its own.

Each slot is a Spark job of its own, because Spark then kills, replaces and shows each slot by itself: a dead worker
fails one Spark job while the other slots go on. The Spark job fails about a fifth of a second after the worker has
died, or not at all where Spark tries the task again. The job master notices the death sooner, because its connection to
the slot ends, and then has the Spark job cancelled.

A Spark job is one incarnation of a slot. Only the slot itself knows how often Spark has tried its task: `stop` and
`ended` of this module are about all tries of the task.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Any

from py4j.clientserver import JavaClient

from penstock.core.ids import JobId, SlotId, SlotIndex
from penstock.ports import SlotEnded
from penstock.spark import connect, quiet
from penstock.spark.clock import WallClock
from penstock.spark.worker import SlotSpec, run_slot

log = logging.getLogger(__name__)

_Key = tuple[SlotIndex, int]
"""The key of a Spark job: the number of the slot, and its incarnation."""

ASK_AGAIN_S = 0.5
"""How long to wait before Spark is asked once more to end a Spark job. At the time of the first request, Spark may not
have had the job yet."""
_PY4J_CALL = "An error occurred while calling "
STOPPED = "the SparkSession was stopped"
_NOT_THE_REASON = ("JVM stacktrace:", "=== Streaming Query ===")
"""Lines that begin with these texts, and the lines behind them, tell where an exception was raised, and not why."""


class SparkSlots:
    """`Slots` on a SparkSession. `wake` is called whenever a slot has ended."""

    def __init__(
        self, session: Any, *, job: JobId, job_name: str, spec: Callable[[SlotId], SlotSpec], wake: Callable[[], None]
    ) -> None:
        self._session = session
        self._job = job
        self._job_name = job_name
        self._spec = spec
        self._wake = wake
        self._ended: deque[SlotEnded] = deque()
        self._threads: dict[_Key, threading.Thread] = {}
        self._unwanted: set[_Key] = set()

    def start(self, slot: SlotId) -> None:
        """Submit the Spark job of a slot."""
        thread = threading.Thread(target=self._host, args=(slot,), name=f"penstock-{slot}", daemon=True)
        self._threads[_key(slot)] = thread
        thread.start()

    def stop(self, slot: SlotId) -> None:
        """Have Spark kill the task, which takes Spark 2 to 4 seconds, or not try the task again."""
        self._unwanted.add(_key(slot))
        # If the Connect server or the JVM is gone, the call is repeated for minutes. The master must not wait for that.
        call = threading.Thread(target=self._cancel, args=(slot,), name=f"penstock-stop-{slot}", daemon=True)
        call.start()

    def ended(self) -> list[SlotEnded]:
        """Slots that have ended since the last call."""
        news: list[SlotEnded] = []
        while self._ended:
            news.append(self._ended.popleft())
            self._threads.pop(_key(news[-1].slot), None)
        return news

    def close(self, timeout_s: float) -> None:
        """Wait until the Spark jobs of all slots are over, for `timeout_s` at most."""
        clock = WallClock()
        until_ms = clock.precise_ms() + 1_000 * timeout_s
        for (number, incarnation), thread in self._threads.items():
            while thread.is_alive() and (left_s := (until_ms - clock.precise_ms()) / 1_000) > 0:
                thread.join(min(left_s, ASK_AGAIN_S))
                if thread.is_alive() and (number, incarnation) in self._unwanted:
                    # Spark may not have had the Spark job when the slot was stopped. Without another request, the slot
                    # would come up, and wait for its master on a core.
                    self.stop(SlotId(number, incarnation))

    def _tag(self, slot: SlotId) -> str:
        return f"{job_group(self._job)}-slot-{slot.number}.{slot.incarnation}"

    def _host(self, slot: SlotId) -> None:
        ended = SlotEnded(slot, None)
        try:
            self._submit(slot)
        except Exception as failure:  # noqa: BLE001  # py4j, Spark and network errors alike mean: this slot is gone
            error = short_reason(str(failure))
            if error.startswith(_PY4J_CALL):
                # The text has no exception of the JVM: there was no answer.
                error = "the connection over which Spark would have told of the end of its Spark job was closed"
            gone = STOPPED if error == STOPPED else why_gone(self._session)
            ended = SlotEnded(slot, gone or error, host_gone=gone is not None)
            if gone is None:
                # After such an error the Spark job may still run, and must not run beside the next incarnation.
                self.stop(slot)
        self._ended.append(ended)
        self._wake()

    def _cancel(self, slot: SlotId) -> None:
        try:
            if connect.is_connect(self._session):
                self._session.interruptTag(self._tag(slot))
            elif self._session.sparkContext._jsc is not None:  # noqa: SLF001  # None: the context was stopped
                self._session.sparkContext.cancelJobsWithTag(self._tag(slot))
        except Exception as error:  # noqa: BLE001  # py4j, Spark and network errors alike: without Spark the task ends, too
            # If Spark is gone, the slot has ended with it, and `_host` tells the master.
            level = logging.WARNING if why_gone(self._session) is None else logging.DEBUG
            text = "Spark could not be asked to end %s of job %r: %s"
            log.log(level, text, slot, self._job_name, short_reason(str(error)))

    def _mark(self, slot: SlotId) -> None:
        """Give the Spark jobs that this thread submits the group, the tags and the description of a slot."""
        group = job_group(self._job)
        if connect.is_connect(self._session):
            connect.mark(self._session, group, self._tag(slot))
            return
        context = self._session.sparkContext
        context.setJobGroup(group, f"{self._job_name}: slot {slot.number}, start {slot.incarnation}")
        context.addJobTag(group)
        context.addJobTag(self._tag(slot))
        context.setLocalProperty("callSite.short", f"penstock: {self._job_name}, slot {slot.number}")
        context.setLocalProperty("callSite.long", f"job {self._job}\n{slot}")
        quiet.mark_thread(self._session)

    def _submit(self, slot: SlotId) -> None:
        if _key(slot) in self._unwanted:
            return
        self._mark(slot)
        spec = self._spec(slot)

        def task(batches: Iterator[Any]) -> Iterator[Any]:
            # PySpark ends a worker, without a message, if the task has not read all of its input: so a process that
            # must not be used again is ended.
            if run_slot(spec):
                for _ in batches:
                    pass
            # Nothing is yielded: a task that ends without output leaves its worker fit for reuse.
            yield from ()

        frame = self._session.range(0, 1, 1, 1).mapInArrow(task, "slot long")
        writer = frame.write.format("noop").mode("overwrite")
        if not connect.is_connect(self._session):
            _ask_once(self._session)
        writer.save()


def _ask_once(session: Any) -> None:
    """Have the next call of this thread fail if the connection is closed before the answer has come. Otherwise Py4J
    would repeat the call, on another thread of the JVM: this would start a second Spark job for the same slot, without
    a tag by which the second Spark job could be ended."""
    client = session.sparkContext._gateway._gateway_client  # noqa: SLF001  # Py4J has no setting for it
    # A `JavaClient` has a connection per thread, which is PySpark's default.
    if isinstance(client, JavaClient) and (connection := client.get_thread_connection()) is not None:
        # Py4J repeats only calls over connections that Python has opened.
        connection.initiated_from_client = False


def why_gone(session: Any) -> str | None:
    """Why nothing can ever be run on a session again; None if something may still be run. None also for a Connect
    server that does not answer: the server may come back."""
    if connect.is_connect(session):
        return STOPPED if session.is_stopped else None
    java_context = session.sparkContext._jsc  # noqa: SLF001  # Python has no other way to ask
    if java_context is None:
        return STOPPED
    try:
        return STOPPED if java_context.sc().isStopped() else None
    except ConnectionRefusedError:
        # The JVM listens as long as it lives.
        return "Spark's JVM is gone"
    except Exception:  # noqa: BLE001  # py4j and network errors alike: Spark does not answer
        return None


def _key(slot: SlotId) -> _Key:
    return slot.number, slot.incarnation


def job_group(job: JobId) -> str:
    """The Spark job group of all slots of a job, which is also a tag of each slot: by this name the slots are found in
    Spark's own tools."""
    return f"penstock-{job}"


def short_reason(text: str) -> str:
    """The line in the text of a Spark exception that says why it was raised."""
    # Py4J begins with the name of its own call. Behind a colon follows the exception of the JVM.
    said = [line.strip().removeprefix(": ") for line in text.splitlines()]
    lines = [line for line in said if line and not line.startswith(_PY4J_CALL)] or said[:1]
    for line in lines:
        if "PythonException" in line or line.startswith("Traceback"):
            break
        if "Python worker exited unexpectedly" in line:
            return "its Python worker exited unexpectedly (killed, or crashed)"
        if "ExecutorLostFailure" in line:
            return line[line.index("ExecutorLostFailure") :][:300]
        if "SparkContext was shut down" in line:
            return STOPPED
        if ("cancelled" in line.lower() and "job" in line.lower()) or "[OPERATION_CANCELED]" in line:
            return "its Spark job was cancelled"
    own = list(takewhile(lambda line: not line.startswith(_NOT_THE_REASON), lines))
    errors = [line for line in own if not line.startswith(("at ", "File ", "Traceback", "...", "Driver stacktrace"))]
    ours = [line for line in errors if line.startswith("penstock.")]
    if ours:
        return ours[-1].partition(": ")[2][:500]
    python = [line for line in errors if "Error" in line.split(":")[0] or "Exception" in line.split(":")[0]]
    chosen = python[-1] if python else (errors[0] if errors else "unknown error")
    return chosen[:500]
