"""One pending checkpoint: which parties still have to answer, and the answers that have come.

    LOCATING ──► COORDINATORS ──► HOOKS ──► TASKS ──► WRITING ──► READY ──► STORING
    an id and    operator         master    barriers  metadata    waits     pointer
    a folder     coordinators     hooks     in-band               its turn

Before STORING the checkpoint can be aborted at any moment. From STORING on only the store of completed checkpoints
knows whether the checkpoint exists, so the coordinator waits for the answer of the store. Every party answers exactly
once; a second answer changes nothing.
"""

from __future__ import annotations

from enum import Enum

from penstock.core.coordinator.effects import AckVerdict
from penstock.core.coordinator.participants import CheckpointPlan
from penstock.core.coordinator.requests import Request
from penstock.core.elements import CheckpointOptions
from penstock.core.ids import CheckpointId, Instant, OperatorId, TaskId
from penstock.core.messages import SubtaskState
from penstock.core.recovery.metadata import CheckpointMetadata, CompletedCheckpoint, SnapshotKind


class Phase(Enum):
    """How far a checkpoint has come."""

    LOCATING = "locating"
    COORDINATORS = "coordinators"
    HOOKS = "hooks"
    TASKS = "tasks"
    WRITING = "writing"
    READY = "ready"
    STORING = "storing"


EARLY_PHASES = (Phase.LOCATING, Phase.COORDINATORS, Phase.HOOKS)
"""The phases in which no task has been triggered yet."""


class PendingCheckpoint:
    """Everything that is known about a checkpoint until it completes or is aborted."""

    def __init__(
        self,
        *,
        checkpoint: CheckpointId,
        kind: SnapshotKind,
        request: Request,
        plan: CheckpointPlan,
        options: CheckpointOptions,
        created: Instant,
    ) -> None:
        self.checkpoint = checkpoint
        self.kind = kind
        self.request = request
        self.plan = plan
        self.options = options
        self.created = created
        self.phase = Phase.LOCATING
        self.location: str | None = None
        self.metadata: CheckpointMetadata | None = None
        """Set from WRITING on."""
        self.completed: CompletedCheckpoint | None = None
        """Set from READY on."""
        self.files_are_doubtful = False
        """The record of the checkpoint may have been stored although the store reported a failure: the files of the
        checkpoint must stay."""
        self.states: dict[TaskId, SubtaskState | None] = {}
        self.coordinator_states: dict[OperatorId, bytes] = {}
        self.hook_states: dict[str, bytes] = {}
        self._awaited_tasks = set(plan.wait)
        self._awaited_coordinators: set[OperatorId] = set()
        self.hooks_asked: Instant | None = None
        """When the hooks were asked to run."""
        self._awaited_hooks: dict[str, None] = {}
        self._events_before: dict[OperatorId, set[int]] = {}

    # --- operator coordinators ----------------------------------------------------------------------------------------

    def await_coordinators(self, operators: tuple[OperatorId, ...]) -> None:
        """The folder has been made; the coordinators of these operators have been asked for their snapshots."""
        self.phase = Phase.COORDINATORS
        self._awaited_coordinators = set(operators)

    def acknowledge_coordinator(self, operator: OperatorId, state: bytes, events_before: set[int]) -> AckVerdict:
        """An operator coordinator has taken its snapshot. The snapshot counts when the events that the operator
        coordinator sent before the snapshot have arrived."""
        if operator in self.coordinator_states:
            return AckVerdict.DUPLICATE
        if operator not in self._awaited_coordinators:
            return AckVerdict.UNKNOWN
        self.coordinator_states[operator] = state
        if events_before:
            self._events_before[operator] = set(events_before)
        else:
            self._awaited_coordinators.discard(operator)
        return AckVerdict.ACCEPTED

    def waits_for_event(self, operator: OperatorId, number: int) -> bool:
        """Whether this event was sent before the operator's snapshot and has not arrived yet."""
        return number in self._events_before.get(operator, ())

    def event_arrived(self, operator: OperatorId, number: int) -> None:
        """An event for which `waits_for_event` is true has arrived."""
        waiting = self._events_before[operator]
        waiting.discard(number)
        if not waiting:
            del self._events_before[operator]
            self._awaited_coordinators.discard(operator)

    def awaits_coordinator(self, operator: OperatorId) -> bool:
        """Whether this operator coordinator, or an event that it sent before its snapshot, is still waited for."""
        return operator in self._awaited_coordinators

    @property
    def awaits_coordinators(self) -> bool:
        """Whether any operator coordinator, or an event that it sent before its snapshot, is still waited for."""
        return bool(self._awaited_coordinators)

    # --- hooks --------------------------------------------------------------------------------------------------------

    def await_hooks(self, hooks: tuple[str, ...]) -> None:
        """These hooks have been asked to run."""
        self.phase = Phase.HOOKS
        self._awaited_hooks = dict.fromkeys(hooks)

    def acknowledge_hook(self, hook: str, state: bytes | None) -> AckVerdict:
        """A hook has run."""
        if hook not in self._awaited_hooks:
            return AckVerdict.UNKNOWN
        del self._awaited_hooks[hook]
        if state is not None:
            self.hook_states[hook] = state
        return AckVerdict.ACCEPTED

    def awaits_hook(self, hook: str) -> bool:
        """Whether this hook still has to answer."""
        return hook in self._awaited_hooks

    @property
    def awaited_hooks(self) -> tuple[str, ...]:
        """The hooks that still have to answer."""
        return tuple(self._awaited_hooks)

    # --- tasks --------------------------------------------------------------------------------------------------------

    def acknowledge_task(self, task: TaskId, state: SubtaskState | None) -> AckVerdict:
        """A task's part is durable; `state` is None if the task has no state."""
        if task in self._awaited_tasks:
            self._awaited_tasks.discard(task)
            self.states[task] = state
            return AckVerdict.ACCEPTED
        return AckVerdict.DUPLICATE if task in self.states else AckVerdict.UNKNOWN

    def awaits_task(self, task: TaskId) -> bool:
        """Whether the task still has to acknowledge."""
        return task in self._awaited_tasks

    @property
    def is_acknowledged(self) -> bool:
        """Whether the tasks have been triggered and all of them have acknowledged."""
        return self.phase is Phase.TASKS and not self._awaited_tasks

    @property
    def num_awaited(self) -> int:
        """How many tasks still have to acknowledge."""
        return len(self._awaited_tasks)

    # --- files --------------------------------------------------------------------------------------------------------

    def own_files(self) -> tuple[str, ...]:
        """Paths of the files that exist for this checkpoint alone, each once."""
        shares = not self.kind.is_savepoint
        states = (state for state in self.states.values() if state is not None)
        return tuple(dict.fromkeys(path for state in states for path in own_files_of(state, shares=shares)))


def own_files_of(state: SubtaskState, *, shares: bool) -> list[str]:
    """Paths of the files that exist only because of this acknowledgement. A checkpoint `shares` files with other
    checkpoints, and shared files belong to the registry. A savepoint shares no file."""
    return [
        f.path for f in state.files if f.path is not None and not f.placeholder and (f.shared_key is None or not shares)
    ]
