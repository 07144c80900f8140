"""The progress of a job, as its slots report the progress with their heartbeats, and the failures of the job."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from penstock.core.ids import Instant, JobId, SlotId, TaskId
from penstock.core.job.events import AttemptEnded, FailureCause, RegionEnded, SlotLoading, SlotMute, SlotStuck
from penstock.core.job.stuck import Stuckness
from penstock.core.messages import LoopStuck, Register, TaskFailed, TasksLoading, WorkerLog
from penstock.plan.graph import Plan
from penstock.runtime import worker_logs
from penstock.runtime.facts import SlotFacts
from penstock.runtime.master.chronicle import Chronicle
from penstock.runtime.pulse import Stuck
from penstock.runtime.views import FailureView, StuckView, failure_view, place_of, slot_view

log = logging.getLogger(__name__)

FAILURES_SHOWN = 16


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What the tasks of the last attempt have done; see `JobView` for what each number means."""

    rows_in: int
    rows_read: int
    rows_out: int
    watermark_us: int | None
    late_dropped: int
    timeless_dropped: int
    beyond_time_dropped: int
    lines_skipped: int
    tasks: dict[str, dict[str, float]]


class JobProgress:
    """Collects the reports of slots, one attempt after another."""

    def __init__(
        self,
        job: JobId,
        plan: Plan,
        *,
        stuck_after_ms: int = 0,
        lines: Callable[[WorkerLog], None] = lambda _: None,
    ) -> None:
        """A mute slot is shown as stuck when its loop has not turned for `stuck_after_ms`. `lines` keeps what slots log
        and print, for those who ask."""
        self._job = job
        self._lines = lines
        self._stuck_after_ms = stuck_after_ms
        self._plan = plan
        """The plan of the attempt that the metrics belong to."""
        self.failures: deque[FailureView] = deque(maxlen=FAILURES_SHOWN)
        self.restarts = 0
        self._told: deque[str] = deque([""], maxlen=FAILURES_SHOWN)
        """Tracebacks that are in the log already. The empty traceback, of a cause without a traceback, needs no place
        in the log."""
        self._metrics: dict[str, dict[str, float]] = {}
        self._rows_before = 0
        self._stuck: dict[SlotId, StuckView] = {}
        self._loading: dict[SlotId, TasksLoading] = {}
        self._mute: set[SlotId] = set()
        self._turned: dict[SlotId, Instant] = {}
        """When the loop of each slot turned last, as far as is known."""
        self._processes: dict[SlotId, dict[str, float]] = {}
        self.chronicle = Chronicle()

    def slot_stuck(self, message: LoopStuck, now: Instant) -> SlotStuck:
        """The loop of a slot does not turn. Returns the event for the job's lifecycle."""
        slot = message.slot
        self._mute.discard(slot)
        self._turned[slot] = Instant(now - message.stuck_ms)
        told = self._stuck[slot] = StuckView(
            slot=slot.number,
            stuck_ms=message.stuck_ms,
            operator=message.operator,
            subtask=message.subtask,
            step_ms=message.step_ms,
            stack=message.stack,
        )
        return SlotStuck(slot=slot, stuck_ms=message.stuck_ms, where=_where(told, is_mute=False))

    def slot_mute(self, slot: SlotId, stacks: str, now: Instant) -> SlotMute:
        """Native code in a slot holds Python's lock. `stacks` are the stacks of all threads of the slot, each with the
        most recent call first. Returns the event for the job's lifecycle."""
        stuck_ms = now - self._turned.setdefault(slot, now)
        if not stacks:
            return SlotMute(slot=slot, stuck_ms=stuck_ms, where=None)
        before = self._stuck.get(slot)
        # Only a slot that can run Python says which step its loop is in: the step that the slot has named last counts.
        told = StuckView(
            slot=slot.number,
            stuck_ms=stuck_ms,
            operator=None if before is None else before.operator,
            subtask=None if before is None else before.subtask,
            step_ms=stuck_ms if before is None else before.step_ms + stuck_ms - before.stuck_ms,
            stack=stacks,
        )
        if stuck_ms >= self._stuck_after_ms:
            self._mute.add(slot)
            self._stuck[slot] = told
        return SlotMute(slot=slot, stuck_ms=stuck_ms, where=_where(told, is_mute=True))

    def slot_loading(self, message: TasksLoading) -> SlotLoading:
        """The tasks of a slot take long to load. Returns the event for the job's lifecycle."""
        self._loading = {slot: told for slot, told in self._loading.items() if told.epoch == message.epoch}
        self._loading[message.slot] = message
        where = "the start of its tasks, in no step"
        if message.operator is not None:
            where = (
                f"the start of step {message.operator!r}, subtask {message.subtask}: {message.doing} "
                f"for {message.step_ms / 1_000:.1f} s"
            )
        return SlotLoading(slot=message.slot, epoch=message.epoch, loading_ms=message.loading_ms, where=where)

    def tell_loading(self, slot: SlotId) -> None:
        """Log what a slot does whose tasks take long to load."""
        told = self._loading[slot]
        where = "no step is at work"
        if told.operator is not None:
            step_s = told.step_ms / 1_000
            where = f"step {told.operator!r}, subtask {told.subtask}, has been {told.doing} for {step_s:.1f} s"
        text = "slot %d of job %s has been restoring its tasks for %.1f s, and its process lives; %s:\n%s"
        log.warning(text, slot.number, self._job, told.loading_ms / 1_000, where, told.stack or "(no stack)")

    def said(self, message: WorkerLog) -> None:
        """A slot hands over what its code has logged and printed."""
        worker_logs.tell(message, self._job)
        self._lines(message)

    def slot_turns(self, slot: SlotId, now: Instant) -> None:
        """The loop of a slot turns."""
        self._turned[slot] = now
        self._mute.discard(slot)
        self._stuck.pop(slot, None)

    def stuck_of(self, slots: Iterable[SlotId]) -> tuple[StuckView, ...]:
        """The slots among `slots` whose loops do not turn. Reports of other slots are forgotten."""
        known = tuple(slots)
        self._mute.intersection_update(known)
        self._turned = {slot: self._turned[slot] for slot in known if slot in self._turned}
        self._processes = {slot: self._processes[slot] for slot in known if slot in self._processes}
        self._stuck = {slot: self._stuck[slot] for slot in known if slot in self._stuck}
        return tuple(self._stuck.values())

    def tell_stuck(self, slot: SlotId) -> None:
        """Log what a slot is stuck in."""
        if (told := self._stuck.get(slot)) is not None:
            text = "slot %d of job %s has been in %s for %.1f s, and its process lives:\n%s"
            for_s = (told.stuck_ms if told.operator is None else told.step_ms) / 1_000
            log.warning(
                text,
                slot.number,
                self._job,
                _where(told, is_mute=slot in self._mute),
                for_s,
                told.stack or "(no stack)",
            )

    def tell_turning(self, slot: SlotId) -> None:
        """Log that a slot is not stuck any more."""
        log.warning("slot %d of job %s goes on: the code that it was in has returned", slot.number, self._job)

    def process_is(self, slot: SlotId, process: dict[str, float]) -> None:
        """A slot has told the memory and the processor time of its process."""
        self._processes[slot] = process

    def slot_facts(
        self, slots: Iterable[SlotId], registered: Mapping[SlotId, Register], *, spare: bool
    ) -> list[SlotFacts]:
        """What these slots have told about themselves."""
        found = []
        for slot in slots:
            seen = slot_view(slot, registered.get(slot))
            found.append(
                SlotFacts(
                    number=seen.number,
                    incarnation=seen.incarnation,
                    name=str(slot),
                    host=seen.host,
                    pid=seen.pid,
                    spare=spare,
                    heard=self._turned.get(slot),
                    process=self._processes.get(slot, {}),
                )
            )
        return found

    def heard(self, metrics: dict[str, dict[str, float]]) -> None:
        """A slot has reported running totals of its tasks, in the attempt that was deployed last."""
        self._metrics.update(metrics)

    def begins(self, plan: Plan, tasks: Iterable[TaskId] | None) -> None:
        """These tasks, or all tasks of `plan`, are deployed: their totals begin at zero. Until now the totals of the
        tasks' earlier deployment were shown. The totals of a task whose slot died may lack its last work."""
        names = list(self._metrics) if tasks is None else [str(task) for task in tasks]
        before = self.totals().rows_in
        for name in names:
            self._metrics.pop(name, None)
        self._rows_before += before - self.totals().rows_in
        self._plan = plan

    def attempt_failed(self, effect: AttemptEnded, now: Instant) -> None:
        """The running attempt has failed."""
        self._tell("attempt", effect)
        self.failures.append(failure_view(effect, now))
        self.restarts += effect.restart_in_ms is not None

    def region_failed(self, effect: RegionEnded, now: Instant) -> None:
        """Regions of the running attempt have failed."""
        self._tell("region", effect)
        self.failures.append(failure_view(effect, now))
        self.restarts += 1

    def _tell(self, what: str, effect: AttemptEnded | RegionEnded) -> None:
        cause, pause_ms = effect.cause, effect.restart_in_ms
        why = f": {cause.why_final}" if cause.why_final else ""
        follows = f"the job is not restarted{why}" if pause_ms is None else f"a restart follows in {pause_ms} ms"
        known = {"job": self._job, "epoch": effect.epoch, "cause": cause.text}
        # A traceback is logged once: an error that comes back with every attempt would bury the rest of the log.
        told = f"\n{cause.traceback.rstrip()}" if cause.traceback and cause.traceback not in self._told else ""
        self._told.append(cause.traceback)
        text = "job %s: %s failed%s: %s; %s%s"
        log.warning(text, self._job, what, place_of(cause), cause.text, follows, told, extra=known)

    def totals(self) -> Totals:
        """The totals over all tasks of the attempt that was deployed last."""
        plan = self._plan
        tasks = {name: dict(values) for name, values in self._metrics.items()}
        watermarks = [int(values["watermark_us"]) for values in tasks.values() if "watermark_us" in values]
        sources = [str(task) for vertex in plan.vertices if vertex.is_source for task in vertex.tasks]
        ends = [str(task) for vertex in plan.vertices if not plan.outputs_of(vertex.vertex) for task in vertex.tasks]
        rows_in = sum(int(tasks[task]["rows_in"]) for task in sources if task in tasks)
        return Totals(
            rows_in=rows_in,
            rows_read=self._rows_before + rows_in,
            rows_out=sum(int(tasks[task]["rows_in"]) for task in ends if task in tasks),
            watermark_us=min(watermarks, default=None),
            late_dropped=_total("late_dropped", tasks),
            timeless_dropped=_total("timeless_dropped", tasks),
            beyond_time_dropped=_total("beyond_time_dropped", tasks),
            lines_skipped=_total("lines_skipped", tasks),
            tasks=tasks,
        )


def _total(name: str, tasks: dict[str, dict[str, float]]) -> int:
    return sum(int(values.get(name, 0)) for values in tasks.values())


class MasterStuck:
    """Logs that the loop of the master itself does not turn: at once, and then each time the loop has been stuck for
    twice as long."""

    def __init__(self, job: JobId) -> None:
        self._job = job
        self._told_of = Stuckness()
        self._stuck_ms = 0

    def tell(self, stuck: Stuck) -> None:
        """The loop of the master has not turned for `stuck.stuck_ms`."""
        if stuck.stuck_ms < self._stuck_ms:
            self._told_of.end()
        self._stuck_ms = stuck.stuck_ms
        if self._told_of.hear(stuck.stuck_ms, ""):
            text = "the loop of the master of job %s has not turned for %.1f s:\n%s"
            log.warning(text, self._job, stuck.stuck_ms / 1_000, stuck.at.stack or "(no stack)")


def _where(told: StuckView, *, is_mute: bool) -> str:
    if told.operator is None:
        return "native code that holds Python's lock" if is_mute else "one turn of its loop"
    lock = ", in native code that holds Python's lock" if is_mute else ""
    return f"the code of step {told.operator!r}, subtask {told.subtask}{lock}"


def cause_of(message: TaskFailed) -> FailureCause:
    """What made a task fail, as its slot says."""
    return FailureCause(
        text=message.error,
        traceback=message.traceback,
        operator=message.operator,
        subtask=message.task.subtask,
        user_code=message.user_code,
        fault=message.fault,
    )
