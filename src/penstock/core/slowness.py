"""Where the time of a checkpoint went: the phases of each subtask, and one sentence that says why the checkpoint took
as long as it did.

A subtask's part of a checkpoint has phases, one after another. The times of the phases are those that the subtask has
measured; what is left until its acknowledgement is the last phase.

    trigger ── delay ──► first barrier ── alignment ──► all barriers ── sync ── async ── answer ──► acknowledged

The sentence follows the chain of causes: the subtask that acknowledged last, the phase that took it longest and, if
that phase was waiting for a barrier, the subtask upstream whose barrier came last. A barrier that left early and came
late was behind data in its channel: that is back-pressure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

import msgspec

from penstock.core.view_texts import count_of, duration_text, size_text

QUICK_MS = 100
"""A checkpoint that took less than this is not slow."""


class Phase(Enum):
    """A phase of a subtask's part of a checkpoint."""

    DELAY = "start delay"
    """From the trigger to the first barrier."""
    ALIGNMENT = "alignment"
    """From the first barrier to the last barrier."""
    SYNC = "freezing"
    """The state is frozen; the subtask does nothing else."""
    ASYNC = "writing"
    """The state is written, beside the work of the subtask."""
    ANSWER = "answer"
    """From the end of the writing until the master has the acknowledgement."""


class Details(Protocol):
    """A checkpoint with its subtasks: `penstock.core.views.CheckpointDetails`, whose printed form is made with this
    file."""

    @property
    def status(self) -> Enum:
        """In progress, completed or failed."""
        ...

    @property
    def kind(self) -> Any:
        """A checkpoint or a savepoint."""
        ...

    @property
    def triggered(self) -> int:
        """When the checkpoint was triggered."""
        ...

    @property
    def ended(self) -> int | None:
        """When the checkpoint completed or failed."""
        ...

    @property
    def queued_ms(self) -> int:
        """How long the request had waited."""
        ...

    @property
    def duration_ms(self) -> int:
        """From the trigger to the last acknowledgement."""
        ...

    @property
    def totals(self) -> Any:
        """The sums over all subtasks."""
        ...

    @property
    def vertices(self) -> Sequence[Any]:
        """The vertices, with their subtasks."""
        ...

    def why_failed(self) -> str:
        """Why the checkpoint failed."""
        ...


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One subtask in the timeline of a checkpoint."""

    vertex: str
    subtask: int
    total_ms: float
    """From the trigger to the acknowledgement. 0 if the subtask has not acknowledged the checkpoint."""
    phases: dict[str, float] = {}
    """The name of each phase and how long it took, in ms, in the order of the phases."""
    is_missing: bool = False
    """The subtask has not acknowledged the checkpoint."""
    unaligned: bool = False

    @property
    def name(self) -> str:
        """`window[1]`."""
        return f"{self.vertex}[{self.subtask}]"


def timeline(details: Details) -> tuple[Bar, ...]:
    """The subtasks of a checkpoint: those that have not acknowledged it, then the others, the slowest first."""
    bars = [_bar(str(vertex.vertex), subtask) for vertex in details.vertices for subtask in vertex.subtasks]
    return tuple(sorted(bars, key=lambda bar: (not bar.is_missing, -bar.total_ms, bar.vertex, bar.subtask)))


def _bar(vertex: str, one: Any) -> Bar:
    if one.acknowledged is None:
        return Bar(vertex=vertex, subtask=one.subtask, total_ms=0, is_missing=True)
    measured = {
        Phase.DELAY: float(one.start_delay_ms),
        Phase.ALIGNMENT: float(one.alignment_ms),
        Phase.SYNC: one.sync_ms,
        Phase.ASYNC: one.async_ms,
    }
    # Clocks of two hosts differ: the phases may add up to more than the whole.
    measured[Phase.ANSWER] = max(0.0, one.duration_ms - sum(measured.values()))
    return Bar(
        vertex=vertex,
        subtask=one.subtask,
        total_ms=float(one.duration_ms),
        phases={phase.value: took for phase, took in measured.items()},
        unaligned=one.unaligned,
    )


def diagnosis(details: Details, inputs: Mapping[str, Sequence[str]] | None = None) -> str:
    """One sentence: why the checkpoint took as long as it did, or what it waits for, or why it failed. `inputs` says
    which vertices send to each vertex; without it, the sentence names no subtask upstream."""
    bars = timeline(details)
    missing = [bar.name for bar in bars if bar.is_missing]
    if details.status.value == "FAILED":
        left = f"; {_names(missing)} had not acknowledged it" if missing else ""
        return f"The checkpoint failed: {details.why_failed() or 'no reason is known'}{left}."
    if details.status.value == "IN_PROGRESS":
        if not missing:
            return "All subtasks have acknowledged the checkpoint; its metadata are being written."
        return f"The checkpoint waits for {_names(missing)}{_behind(missing, inputs or {})}."
    answered = [bar for bar in bars if not bar.is_missing]
    if not answered:
        return "No subtask took part in the checkpoint."
    if details.duration_ms < QUICK_MS and details.queued_ms < QUICK_MS and _finishing_ms(details) < QUICK_MS:
        return f"Nothing was slow: the checkpoint took {duration_text(details.duration_ms)}."
    return _why_slow(details, {bar.name: bar for bar in answered}, answered[0], inputs or {})


def _why_slow(details: Details, bars: Mapping[str, Bar], slowest: Bar, inputs: Mapping[str, Sequence[str]]) -> str:
    finishing_ms = _finishing_ms(details)
    if details.queued_ms > max(details.duration_ms, finishing_ms):
        waited = f"The request waited {duration_text(details.queued_ms)} for its turn, behind other checkpoints."
        if details.duration_ms < QUICK_MS:
            return waited
        rest = msgspec.structs.replace(details, queued_ms=0) if isinstance(details, msgspec.Struct) else details
        return f"{waited} Then {_why_slow(rest, bars, slowest, inputs)}"
    if finishing_ms > details.duration_ms:
        return (
            f"All subtasks had acknowledged after {duration_text(details.duration_ms)}, and storing the metadata took "
            f"{duration_text(finishing_ms)} more: the checkpoint storage is slow."
        )
    phase = max(slowest.phases, key=lambda name: slowest.phases[name])
    took = duration_text(slowest.phases[phase])
    if phase == Phase.SYNC.value:
        return f"{slowest.name} took {took} to freeze its state, and did nothing else meanwhile."
    if phase == Phase.ASYNC.value:
        return f"{slowest.name} took {took} to write {size_text(_written(details, slowest))}."
    if phase == Phase.ANSWER.value:
        return (
            f"{slowest.name} had written its state, and its acknowledgement came {took} later: the loop of its slot, "
            "or of the master, was busy."
        )
    return _why_late(details, bars, slowest, inputs)


def _why_late(details: Details, bars: Mapping[str, Bar], late: Bar, inputs: Mapping[str, Sequence[str]]) -> str:
    """Why a subtask had its barriers late: follow the latest barrier upstream, until a barrier was on its way for long,
    or was late for another reason."""
    waited = late
    for _ in range(len(bars)):
        told = f"{waited.name} waited {duration_text(_came_ms(waited))}"
        senders = [bar for bar in bars.values() if bar.vertex in inputs.get(waited.vertex, ())]
        if not senders:
            break
        last = max(senders, key=_left_ms)
        travelled_ms = _came_ms(waited) - _left_ms(last)
        if travelled_ms * 2 >= _came_ms(waited):
            return (
                f"{told} for the barrier of {last.name}, which was {duration_text(travelled_ms)} on its way: the "
                f"channel between them was full{_better(details, late, travelled_ms)}."
            )
        if last.phases[Phase.SYNC.value] * 2 >= _left_ms(last):
            return (
                f"{told} for the barrier of {last.name}, which took {duration_text(last.phases[Phase.SYNC.value])} to "
                "freeze its state."
            )
        waited = last
    if inputs and not inputs.get(waited.vertex):
        return (
            f"{waited.name}, a source, began {duration_text(_came_ms(waited))} after the trigger: its slot was busy "
            "with other work, such as a long call of a function."
        )
    came_ms = _came_ms(waited)
    return f"{waited.name} waited {duration_text(came_ms)} for its barriers{_better(details, late, came_ms)}."


def _came_ms(bar: Bar) -> float:
    """When the subtask had all its barriers, after the trigger."""
    return bar.phases[Phase.DELAY.value] + bar.phases[Phase.ALIGNMENT.value]


def _left_ms(bar: Bar) -> float:
    """When the subtask had sent its own barrier, after the trigger."""
    return _came_ms(bar) + bar.phases[Phase.SYNC.value]


def _better(details: Details, late: Bar, saved_ms: float) -> str:
    if details.totals.unaligned or late.unaligned or details.kind.is_savepoint:
        return ""
    left_ms = max(0.0, details.duration_ms - saved_ms)
    return f"; an unaligned checkpoint would have taken about {duration_text(left_ms)}"


def _behind(missing: Sequence[str], inputs: Mapping[str, Sequence[str]]) -> str:
    """If the first of the missing subtasks are downstream of others that are missing, the others hold them up."""
    vertices = {name.rpartition("[")[0] for name in missing}
    roots = [name for name in missing if not vertices.intersection(inputs.get(name.rpartition("[")[0], ()))]
    if not inputs or not roots or len(roots) == len(missing):
        return ""
    return f"; the barrier is at {_names(roots)}"


def _finishing_ms(details: Details) -> float:
    if details.ended is None or details.status.value != "COMPLETED":
        return 0.0
    return max(0.0, details.ended - details.triggered - details.duration_ms)


def _written(details: Details, bar: Bar) -> int:
    for vertex in details.vertices:
        if str(vertex.vertex) == bar.vertex:
            return sum(int(one.checkpointed_bytes) for one in vertex.subtasks if one.subtask == bar.subtask)
    return 0


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {count_of(len(names) - 3, 'other subtask')}"
