"""The handle of a running job, and the thread of the job master behind the handle."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, TypeVar

from penstock.api.boundary import at_user_line
from penstock.core.coordinator.effects import RequestFailure
from penstock.core.coordinator.events import CheckpointForm, RequestKind
from penstock.core.errors import (
    InvariantError,
    JobCancelled,
    JobFailed,
    JobTakenOver,
    RescaleFailed,
    SnapshotFailed,
    StreamError,
    UsageError,
    UserCodeError,
)
from penstock.core.ids import JobId
from penstock.core.job.events import FailureCause, JobState
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.core.recovery.places import is_full
from penstock.core.recovery.roots import below
from penstock.core.recovery.tenure import Tenure
from penstock.core.timeline_html import timeline_html
from penstock.core.views import CheckpointDetails, CheckpointStatus
from penstock.net.control_server import ControlServer
from penstock.net.zeromq import ZmqTransport
from penstock.plan.graph import Plan
from penstock.plan.picture import as_svg
from penstock.ports import Leader
from penstock.runtime.facts import JobFacts
from penstock.runtime.master.driver import MasterDriver, SnapshotRequest
from penstock.runtime.master.readings import Reading
from penstock.runtime.views import JobView, place_of, tell_dropped
from penstock.spark import shared_folders
from penstock.spark.background import ThreadBackground
from penstock.spark.clock import WallClock
from penstock.spark.control import handle
from penstock.spark.described import inputs_of
from penstock.spark.interrupts import JOBS, Running
from penstock.spark.job_lines import JobLines
from penstock.spark.live_state import HeldCheckpoint, LiveState, held_while
from penstock.spark.pulse import PulseThread
from penstock.spark.savepoint_targets import SavepointTargets
from penstock.spark.slots import SparkSlots

log = logging.getLogger(__name__)

AnswerT = TypeVar("AnswerT")

VIEW_EVERY_MS = 100
"""How often the view is made anew. A change of the job's stage is shown at once."""


@dataclass(frozen=True, kw_only=True)
class MasterParts:
    """Everything that the thread of the job master uses, and must close at the end."""

    driver: MasterDriver
    transport: ZmqTransport
    background: ThreadBackground
    workers: Sequence[ThreadBackground]
    """The backgrounds of operator coordinators."""
    slots: SparkSlots
    clock: WallClock
    socket_folder: Path
    signs: Sequence[str]
    """Files by which a slot recognises the folders that the slot shares with this program."""
    temporary_root: Path | None
    """The storage of a job without a checkpoint directory: a temporary folder, which is deleted when the job ends."""
    advice: Callable[[FailureCause], str | None]
    """What to do about a failure for lack of room in Spark or of a fitting interpreter; None for other failures."""
    lines: JobLines | None = None
    """The last lines of the job's log."""
    refreshes: AbstractContextManager[object] = field(default_factory=nullcontext)
    """Reads tables anew while the job runs."""
    leader: Leader | None = None
    """The driver's hold on a job that may outlive the driver, or that is run again."""
    announcement: str | None = None
    """One line about the earlier runs of the job, for the user who starts the job."""


Seek = Callable[[threading.Event, Callable[[], None]], MasterParts | None]
"""Waits until this driver has the job, and makes the parts. Returns None if the event was set before this driver had
the job. The event may also be set while the parts are being made. The second argument is a function to call when the
job is lost; the leader's `is_lost` is then true."""


@dataclass(frozen=True, kw_only=True)
class _About:
    """What the environment knows of a job."""

    spark: Any
    targets: SavepointTargets
    cores: Callable[[], int]
    settings: Mapping[str, Any]
    one_reader: threading.Lock = field(default_factory=threading.Lock)
    """Held while state is read from a checkpoint of the job."""


@at_user_line
class Job:
    """A job that was started. All methods may be called from any thread."""

    def __init__(  # noqa: PLR0913  # what the environment knows of the job
        self,
        *,
        job: JobId,
        name: str,
        targets: SavepointTargets,
        cores: Callable[[], int],
        attempt: Callable[[Callable[[], None]], MasterParts | None],
        seek: Seek,
        waiting: JobView,
        spark: Any = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`attempt` is called at once and makes the parts of the master; its argument is a function to call when the
        job is lost. If `attempt` returns None, another driver has the job: `seek` then waits for the job, on the job's
        thread, and `waiting` is the view until this driver has the job. `cores` says how many slots, without spare
        slots, the job may have. `spark` is the session that reads state."""
        self.id = job
        self.name = name
        self._about = _About(spark=spark, targets=targets, cores=cores, settings=settings or {})
        self._seek = seek
        self._clock = WallClock()
        self._commands: deque[Callable[[MasterDriver], None]] = deque()
        self._left = threading.Event()
        self._decision = threading.Lock()
        """Held while it is decided whether this driver leaves the standby or has the job: a `cancel` that comes while
        this driver gets ready must have the driver leave, and must neither get lost nor cancel the job."""
        self._over = threading.Event()
        self._waiting: dict[object, None] = {}
        """A token for each call that waits for the end of the job. Calls of several threads add and remove their own
        tokens, each in a single operation of the dict, so that no lock is needed. A number would be read and written
        in two operations, and a thread between them would be forgotten."""
        self._crash: BaseException | None = None
        self._parts: MasterParts | None = None
        self._control: ControlServer | None = None
        self._view = waiting
        self._last: JobFacts | None = None
        """What was known about the job when it was over; None before."""
        parts = attempt(self._lose)
        if parts is not None:
            self._take(parts)
        else:
            log.warning(
                "this driver is on standby: another driver has job %r, with the id %s; this driver takes the job over "
                "when the other driver is gone",
                name,
                job,
            )
        self._thread = threading.Thread(target=self._run, name=master_thread(job), daemon=True)
        self._thread.start()
        JOBS.add(Running(name=name, leave=self._leave, over=self._over))

    def __repr__(self) -> str:
        return f"<Job {self.name!r} {self._view.state.value}>"

    def _repr_html_(self) -> str:
        """The job in a notebook: its view, its graph, and the timeline of its newest checkpoint that has ended."""
        plan, view = self.plan(), self._view
        ended = next((c for c in self.checkpoints if c.status is not CheckpointStatus.IN_PROGRESS), None)
        newest = "" if ended is None else f"<div><strong>{escape(ended.summary())}</strong>"
        if ended is not None:
            newest += f"{timeline_html(ended, inputs_of(plan))}</div>"
        # The graph is drawn in dark lines, and a notebook may be dark.
        graph = "" if plan is None else f'<div style="background:#fff;overflow-x:auto">{as_svg(plan)}</div>'
        return f"<div><strong>{escape(self.name)}</strong>{view._repr_html_()}{graph}{newest}</div>"

    def view(self) -> JobView:
        """The job as it was at most a tenth of a second ago. The state, the attempt and the number of restarts are
        shown as soon as they change."""
        return self._view

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the job, as plain values."""
        return self._about.settings

    def plan(self) -> Plan | None:
        """The plan that the job runs, with today's parallelism. None on a driver that is on standby."""
        return None if self._parts is None else self._parts.driver.plan

    @property
    def checkpoints(self) -> list[CheckpointDetails]:
        """The checkpoints of the job, newest first, each with its vertices and their subtasks: how long each part took,
        how long barriers travelled, how long barriers waited for the barriers of other channels, and how much was
        written. Checkpoints that are under way are included. Of the checkpoints that have ended, the last few are
        remembered (`Checkpointing.history`)."""
        answered: queue.SimpleQueue[tuple[CheckpointDetails, ...]] = queue.SimpleQueue()
        if self._parts is not None and not self._over.is_set():
            self._command(lambda driver: answered.put(driver.checkpoints()))
            # If the job ends before it answers, `_last` has the last list.
            ended = SnapshotFailed(f"job {self.name!r} has ended")
            with contextlib.suppress(SnapshotFailed):
                found = self._answer(answered, what="list of checkpoints", timeout=None, ended=ended)
                return list(found)
        return [] if self._last is None else list(self._last.checkpoints)

    def _ask_facts(self, answer: Callable[[JobFacts], None]) -> None:
        """Have `answer` called once with everything that is known about the job: at once, or soon from the job's
        thread."""
        if self._parts is not None and not self._over.is_set():
            self._command(lambda driver: answer(driver.facts()))
        else:
            answer(self._last or JobFacts(now=self._clock.now(), view=self._view, plan=None))

    def traced(self, provider: Any = None) -> AbstractContextManager[None]:
        """While the block runs, OpenTelemetry is told of the checkpoints of the job as they end: one trace per
        checkpoint, with a span for each subtask and for each phase. `provider` is a tracer provider of OpenTelemetry.
        Default: the provider that the program has set up. Needs the extra `otel`.

            with job.traced():
                job.wait()

        The job remembers as many ended checkpoints as `Checkpointing(history=...)` says, and is looked at every second:
        if more checkpoints end in a second, not all are told.
        """
        try:
            from penstock.metrics.traces import traced_checkpoints
        except ImportError as error:
            raise UsageError(f"OpenTelemetry is not installed: {error}", hint="pip install 'penstock[otel]'") from error
        return traced_checkpoints(self, provider)

    def log_lines(self, *, after: int = 0, slot: int | None = None, lines: int = 200) -> dict[str, Any]:
        """The last lines that the code of the program has logged or printed in slots, or in one `slot`, and that the
        driver has logged about the job: `lines`, each with its time, slot, level, operator, subtask, checkpoint and
        text; `next`, to be given as `after` to get only the lines that come later; and `left_out`, how many lines
        behind `after` are not there."""
        parts = self._parts
        if parts is None or parts.lines is None:
            return {"lines": [], "next": after, "left_out": 0}
        return parts.lines.after(after, slot=slot, lines=lines)

    @property
    def is_over(self) -> bool:
        """Whether the job has ended and everything is cleaned up."""
        return self._over.is_set()

    def state(self, operator: str, name: str) -> LiveState:
        """A state of the running job, as of its newest completed checkpoint: as a DataFrame, or of one key. The job
        goes on, and keeps the files of the checkpoint while they are read. `operator` is the id of the operator, or the
        name of its step; `name` is the name of the state, as in `Savepoint.state`.

            job.state("totals", "orders").where("value > 100").show()
            job.state("totals", "orders").get("customer 7")

        A job that is over is read from the checkpoint that is left of it.
        """
        return LiveState(self._about.spark, self._held_checkpoint, operator=operator, name=name)

    @contextmanager
    def _held_checkpoint(self) -> Iterator[HeldCheckpoint]:
        """The newest completed checkpoint, kept while the block runs. Only one block runs at a time: if more deletions
        than one waited for readers, no further checkpoint would begin."""
        with self._about.one_reader, self._held_by_master() as held:
            yield held

    @contextmanager
    def _held_by_master(self) -> Iterator[HeldCheckpoint]:
        parts = self._parts
        if parts is None:
            raise UsageError(self._is_waiting, hint="ask that driver")
        answered: queue.SimpleQueue[Reading | None] = queue.SimpleQueue()
        held: Reading | None = None
        if not self._over.is_set():
            self._command(lambda driver: answered.put(driver.hold_newest()))
            # A job that is over deletes nothing more.
            with contextlib.suppress(SnapshotFailed):
                held = self._answer(answered, what="reading", timeout=None, ended=SnapshotFailed("the job has ended"))
        latest = self._view.checkpoints.latest_completed
        left = None if latest is None or latest.path is None else (latest.path, latest.checkpoint)
        found = left if held is None else (held.completed.path, held.completed.checkpoint)
        if found is None:
            raise UsageError(
                f"job {self.name!r} has completed no checkpoint yet, and its state is read from a checkpoint",
                hint="call job.checkpoint() first",
            )
        path, number = found
        root = parts.driver.store.location
        with held_while(path if is_full(path) else below(root, path), number, partial(self._let_go, held)) as kept:
            yield kept

    def _let_go(self, held: Reading | None) -> None:
        if held is not None:
            self._command(lambda driver: driver.let_go(held))

    def wait(self, timeout: float | None = None) -> JobView:
        """Wait until the job has ended. Returns the last view of the job.

        Raises:
            JobFailed: the job failed for good; the cause is in the text.
            JobCancelled: the job was cancelled.
            JobTakenOver: the job has not ended, and another driver has the job.
            TimeoutError: `timeout` seconds have passed, and the job still runs.

        """
        clock = self._clock
        deadline = None if timeout is None else clock.precise_ms() + 1_000 * timeout
        token = object()
        self._waiting[token] = None
        try:
            # In slices, so that Ctrl-C gets through.
            while not self._over.wait(0.2):
                if deadline is not None and clock.precise_ms() >= deadline:
                    raise TimeoutError(f"job {self.name!r} is still {self._view.state.value} after {timeout} s")
        finally:
            del self._waiting[token]
        self._thread.join()
        if self._parts is None and isinstance(self._crash, StreamError):
            # This driver had won the job, and could not make its parts.
            raise self._crash
        if self._crash is not None:
            raise InvariantError(f"the master of job {self.name!r} broke: {self._crash}") from self._crash
        if self._parts is None:
            raise JobCancelled(
                f"this driver has left the standby for job {self.name!r}; another driver has the job, or can take the "
                "job over"
            )
        driver = self._parts.driver
        if driver.outcome is JobState.SUSPENDED:
            raise JobTakenOver(
                f"this driver has lost job {self.name!r}, and has let go of the job: another driver has the job, or "
                "can take the job over",
                hint="this driver has committed nothing since; start the program again to have this driver wait on "
                "standby",
            )
        if driver.outcome is JobState.CANCELLED:
            raise JobCancelled(f"job {self.name!r} was cancelled")
        if driver.outcome is JobState.FAILED:
            hint = None if driver.cause is None else self._parts.advice(driver.cause)
            raise _failed(self.name, driver.cause, self._view, hint)
        for dropped in tell_dropped(self.name, self._view):
            log.warning("%s", dropped)
        return self._view

    def finish(self) -> None:
        """Wait until the job has ended, whatever its outcome."""
        while not self._over.wait(0.2):
            pass

    def _stop_interrupted(self) -> None:
        """Cancel the job because of Ctrl-C, wait for its end, and log what becomes of the job."""
        self.cancel()
        self.finish()
        parts = self._parts
        was_stopped = parts is None or parts.driver.outcome is JobState.CANCELLED
        ended = "was stopped" if was_stopped else f"is {self._view.state.value}"
        log.warning("interrupted; job %r %s%s", self.name, ended, self._what_follows())

    def _what_follows(self) -> str:
        record = None if self._parts is None else self._parts.driver.goes_on_from
        return "" if record is None else f"; run the program again to go on from {record.title}"

    def _tell_failure(self, driver: MasterDriver) -> None:
        """Log that the job has failed, if no thread waits for the job: a thread that waits gets the error."""
        if driver.outcome is JobState.FAILED and not self._waiting:
            why = "" if driver.cause is None else f": {driver.cause.text}"
            log.warning("job %r has ended in failure%s%s", self.name, why, self._what_follows())

    def _leave(self) -> str:
        """The program ends: stop the job, or let go of a job that may outlive this driver. Returns at once, with what
        becomes of the job, for people."""
        parts = self._parts
        if parts is None or parts.leader is None or parts.driver.is_run:
            self.cancel()
            return "the job was stopped; call job.wait(), or env.run(), to let the job run to its end"
        self._command(lambda driver: driver.lose("the program of this driver ended"))
        return "leaves the job to another driver; call job.wait(), or env.run(), to keep the job in this program"

    def cancel(self) -> None:
        """End the job without waiting for its data to be processed. Returns at once; `wait` returns when the job has
        ended. On a driver that is on standby, or that gets ready to take the job over, only the driver leaves, and the
        job goes on."""
        with self._decision:
            if self._parts is None:
                self._left.set()
                return
        self._command(lambda driver: driver.cancel())

    def checkpoint(self, *, full: bool = False, timeout: float | None = None) -> int:
        """Take a checkpoint now, and wait until it is complete. Returns the id of the checkpoint. A `full` checkpoint
        refers to no files of earlier checkpoints.

        Raises:
            SnapshotFailed: the checkpoint was not taken; the job goes on.

        """
        form = CheckpointForm.FULL if full else CheckpointForm.CONFIGURED
        return self._request(SnapshotRequest(kind=RequestKind.CHECKPOINT, form=form), timeout).checkpoint

    def savepoint(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        native: bool = False,
        timeout: float | None = None,
    ) -> str:
        """Take a savepoint, and wait until it is complete. Returns the folder of the savepoint, which lies below
        `directory`, a path or URI. Without `directory`, the savepoint goes below the folder `savepoints` of the
        checkpoint directory. The job goes on.

        Every state back end can restore the savepoint. A `native` savepoint takes less time: it has the format of the
        job's state back end, and only that back end can restore it.

        Raises:
            UsageError: the savepoint would not outlive the job: a job without a checkpoint directory must be given a
                `directory`.
            SnapshotFailed: the savepoint was not taken; the job goes on.

        """
        request = SnapshotRequest(
            kind=RequestKind.SAVEPOINT, target=self._about.targets.choose(directory), canonical=not native
        )
        return self._request(request, timeout).location

    def stop(
        self,
        *,
        savepoint: str | os.PathLike[str] | None = None,
        drain: bool = False,
        native: bool = False,
        timeout: float | None = None,
    ) -> str:
        """End the job with a savepoint, and wait for both. Returns the folder of the savepoint, which lies below
        `savepoint`, a path or URI. `native` means the same as for the method `savepoint`.

        With `drain` event time goes to its end first: windows close and operators finish, as if all data had been
        seen. Without `drain`, a job can go on from the savepoint as if nothing had happened.

        Raises:
            UsageError: the savepoint would not outlive the job, see the method `savepoint`; the job goes on.
            SnapshotFailed: the savepoint was not taken, and the job goes on; or the savepoint was taken (the field
                `savepoint` of the error names it), and the job did not stop as it should.

        """
        request = SnapshotRequest(
            kind=RequestKind.STOP, target=self._about.targets.choose(savepoint), drain=drain, canonical=not native
        )
        location = self._request(request, timeout).location
        self.finish()
        return location

    def rescale(self, parallelism: int, *, timeout: float | None = None) -> None:
        """Change the parallelism of the running job, and wait until the job runs with the changed parallelism.

        Additional slots come up first, while the job goes on. Then a checkpoint is taken, and the tasks start from this
        checkpoint with the changed parallelism. Slots that stay keep their processes. If the parallelism cannot be
        changed, the job goes on with the parallelism that it had. A `TimeoutError` after `timeout` seconds does not
        stop the change.

        Raises:
            UsageError: the parallelism is higher than the number of Spark's cores, or no whole number from 1.
            RescaleFailed: the parallelism was not changed; the text says why.

        """
        if isinstance(parallelism, bool) or not isinstance(parallelism, int) or parallelism < 1:
            raise UsageError(f"parallelism is {parallelism!r}; give a whole number from 1")
        cores = self._about.cores()
        if parallelism > cores:
            raise UsageError(
                f"a parallelism of {parallelism} needs {parallelism} slots, and Spark has {cores} cores for them",
                hint=f"give Spark more cores, or rescale to at most {cores}",
            )
        answered: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        ended = RescaleFailed(f"job {self.name!r} has ended")
        if self._over.is_set():
            raise ended
        if self._parts is None:
            raise RescaleFailed(self._is_waiting)
        self._command(lambda driver: driver.rescale(parallelism, answered.put))
        refusal = self._answer(answered, what="rescale", timeout=timeout, ended=ended)
        if refusal is not None:
            raise RescaleFailed(f"job {self.name!r} was not rescaled to {parallelism}: {refusal}")

    def _request(self, request: SnapshotRequest, timeout: float | None) -> CompletedCheckpoint:
        answered: queue.SimpleQueue[CompletedCheckpoint | RequestFailure] = queue.SimpleQueue()
        if self._over.is_set():
            raise SnapshotFailed(f"job {self.name!r} has ended")
        if self._parts is None:
            raise SnapshotFailed(self._is_waiting)
        self._command(lambda driver: driver.request(request, answered.put))
        ended = SnapshotFailed(f"job {self.name!r} ended before the {request.kind.value} was done")
        answer = self._answer(answered, what=request.kind.value, timeout=timeout, ended=ended)
        if isinstance(answer, RequestFailure):
            is_early = answer.reason is CheckpointFailure.NOT_ALL_REQUIRED_TASKS_RUNNING
            raise SnapshotFailed(
                f"the {request.kind.value} of job {self.name!r} failed: {answer.text or 'no reason given'}",
                savepoint=answer.savepoint,
                hint='ask when job.view().state.value is "running"' if is_early else None,
            )
        return answer

    @property
    def _is_waiting(self) -> str:
        return f"this driver is on standby: another driver has job {self.name!r}, and that driver can be asked"

    def _take(self, parts: MasterParts) -> bool:
        """Have the job from here on. Returns False if this driver was asked to leave before."""
        with self._decision:
            if self._left.is_set():
                return False
            self._parts = parts
            self._view = parts.driver.view()
        if parts.announcement is not None:
            log.warning("%s", parts.announcement)
        elif parts.leader is not None and not parts.driver.is_run:
            _tell_found(self.name, parts.leader.tenure)
        self._control = self._open_control()
        return True

    def _lose(self) -> None:
        """Called when a leader has lost the job. The leader may be one of an earlier term of this driver, which lost
        the job while it got ready: then the present term goes on."""
        self._command(self._lose_if_lost)

    def _lose_if_lost(self, driver: MasterDriver) -> None:
        leader = None if self._parts is None else self._parts.leader
        if leader is not None and leader.is_lost:
            driver.lose()

    def _open_control(self) -> ControlServer | None:
        try:
            return ControlServer(self.id, lambda request: handle(self, request), clock=self._clock)
        except (OSError, UsageError) as error:
            log.warning("job %r cannot be controlled from the command line: %s", self.name, error)
            return None

    def _answer(
        self, answered: queue.SimpleQueue[AnswerT], *, what: str, timeout: float | None, ended: Exception
    ) -> AnswerT:
        deadline = None if timeout is None else self._clock.precise_ms() + 1_000 * timeout
        while True:
            try:
                return answered.get(timeout=0.2)
            except queue.Empty:
                if self._over.is_set():
                    raise ended from None
                if deadline is not None and self._clock.precise_ms() >= deadline:
                    raise TimeoutError(f"the {what} was not done after {timeout} s") from None

    def _command(self, call: Callable[[MasterDriver], None]) -> None:
        self._commands.append(call)
        if self._parts is not None:
            self._parts.transport.wake()

    def _run(self) -> None:
        try:
            if self._parts is None:
                found = self._seek(self._left, self._lose)
                if found is not None and not self._take(found):
                    _release(found)
            if self._parts is not None:
                self._drive(self._parts)
        except BaseException as error:  # noqa: BLE001  # mostly a bug of Penstock; `wait` raises the error
            self._crash = error
        finally:
            self._close()

    def _drive(self, parts: MasterParts) -> None:
        driver, clock = parts.driver, parts.clock
        driver.start(clock.now())
        self._view = driver.view()
        with PulseThread(driver.beat, clock, name=f"penstock-pulse-{self.id}"), parts.refreshes:
            self._turn_until_over(parts)

    def _turn_until_over(self, parts: MasterParts) -> None:
        driver, clock, transport = parts.driver, parts.clock, parts.transport
        shown, viewed = driver.stage, clock.now()
        while driver.outcome is None:
            while self._commands:
                self._commands.popleft()(driver)
            now = clock.now()
            deadline = driver.turn(now)
            if driver.stage != shown or now - viewed >= VIEW_EVERY_MS:
                shown, viewed = driver.stage, now
                self._view = driver.view()
            if driver.outcome is None:
                until = viewed + VIEW_EVERY_MS if deadline is None else min(viewed + VIEW_EVERY_MS, deadline)
                transport.wait(max(0, until - clock.now()))

    def _close(self) -> None:
        parts = self._parts
        try:
            if parts is None:
                return
            self._view = parts.driver.view()
            self._last = parts.driver.facts()
            self._tell_failure(parts.driver)
            _release(parts)
        finally:
            self._over.set()
            # Closed last: a request to stop the job is answered when the job is over.
            if self._control is not None:
                self._control.close()


def master_thread(job: JobId) -> str:
    """The name of the thread that is the job's master."""
    return f"penstock-master-{job}"


def _release(parts: MasterParts) -> None:
    """Close the parts of a master, and let go of the job."""
    parts.slots.close(timeout_s=10.0)
    for background in (*parts.workers, parts.background):
        background.close()
    parts.transport.close()
    if parts.lines is not None:
        parts.lines.close()
    if parts.leader is not None:
        parts.leader.resign()
    shutil.rmtree(parts.socket_folder, ignore_errors=True)
    shared_folders.remove(parts.signs)
    if parts.temporary_root is not None:
        shutil.rmtree(parts.temporary_root, ignore_errors=True)


def _tell_found(name: str, found: Tenure) -> None:
    """Log what becomes of a job that had another driver before, or that has ended."""
    if found.outcome is not None:
        log.warning(
            "job %r has ended before with the outcome %s, and is not started again", name, found.outcome.state.value
        )
    elif found.term > 0:
        newest = f"checkpoint {found.completed[-1].checkpoint}" if found.completed else "its beginning"
        log.warning("this driver has taken job %r over; the job goes on from %s", name, newest)


def _failed(name: str, cause: FailureCause | None, view: JobView, hint: str | None) -> JobFailed:
    if cause is None:
        return JobFailed(f"job {name!r} failed", hint=hint)
    tried = f" after {view.restarts} restarts" if view.restarts else ""
    text = f"job {name!r} failed{tried}{place_of(cause)}: {cause.text}"
    if cause.why_final:
        text += f" (not started again: {cause.why_final})"
    if cause.traceback:
        text += f"\n{cause.traceback.rstrip()}"
    failure = JobFailed(text, cause_text=cause.text, hint=hint)
    if cause.user_code:
        failure.__cause__ = UserCodeError(
            operator=cause.operator or "?", subtask=cause.subtask or 0, traceback_text=cause.traceback
        )
    return failure
