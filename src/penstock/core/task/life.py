"""The life of a task, from its restore to its end.

    RESTORING ── STARTED ──► RUNNING ── DATA_SEEN ──► FINISHING ── OPERATORS_THROUGH ──► AWAITING_CHECKPOINT
                                                                                                 │
                                    ┌──────────── LAST_CHECKPOINT_COMPLETE ──────────────────────┘
                                    ▼
                                 MAY_END ── ASKED ──► WANTS_TO_END ── LET_GO ──► LEAVING ── ALL_SENT ──► ENDED
                                    └───────────── LET_GO ────────────────────────►┘

    every state but ENDED ── STOPPED ──► CANCELLED

Rules of this file:

* A task goes through its states in this order and never back. A task that is restarted is another task.
* A task that is over, ENDED or CANCELLED, hears nothing: no event changes its state. A task may be over
  before one of its own calls returns: the call may make another task of the region fail, and then all tasks of the
  region in this slot are stopped.
* An event that is not in the table is a bug of this package, and raises `InvariantError`.
* The master may let a task go before the task has asked. The checkpoint machine checks that the last checkpoint of the
  task is complete by then.

The following facts are no states, because each of them holds in several states: whether the operators had finished
before the checkpoint that was restored; whether the inputs of the task are held back, and how the data of each channel
ended; and how far each checkpoint is.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from penstock.core.errors import InvariantError


class _Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a task does in a state of its life."""

    name: str
    takes_steps: bool = False
    takes_part: bool = False
    reads: bool = False
    emits: bool = False
    may_ask: bool = False
    is_over: bool = False


class LifeState(Enum):
    """Where a task is in its life."""

    RESTORING = _Facts(name="restoring")
    """The task is being built and loaded. The task declines checkpoints."""
    RUNNING = _Facts(name="running", takes_steps=True, takes_part=True, reads=True, emits=True)
    """The task reads its channels or its source."""
    FINISHING = _Facts(name="finishing", takes_steps=True, takes_part=True, emits=True)
    """All data of the task has been seen; the operators still have something left to do."""
    AWAITING_CHECKPOINT = _Facts(name="awaiting its last checkpoint", takes_steps=True, takes_part=True)
    """The operators are through. The last checkpoint of the task, taken after its data, is not complete."""
    MAY_END = _Facts(name="may end", takes_steps=True, takes_part=True, may_ask=True)
    """The last checkpoint is complete. Tasks downstream have not processed all data, or an operator has something under
    way."""
    WANTS_TO_END = _Facts(name="wants to end", takes_steps=True, takes_part=True)
    """The task has asked the master to let it end, and takes part in checkpoints until the master does."""
    LEAVING = _Facts(name="leaving", takes_steps=True)
    """The master has let the task go: the end of its channels goes out, and nothing else."""
    ENDED = _Facts(name="ended", is_over=True)
    """The task has come to its end."""
    CANCELLED = _Facts(name="cancelled", is_over=True)
    """The task was stopped before its end: by the master, by a failure, or with its slot."""

    def __init__(self, facts: _Facts) -> None:
        # Attributes of the member: a task looks at them with every batch, and a property would be called each time.
        self.takes_steps = facts.takes_steps
        """Whether the task runs: it makes steps, and time passes for it."""
        self.takes_part = facts.takes_part
        """Whether the task takes part in checkpoints."""
        self.reads = facts.reads
        """Whether more data may come."""
        self.emits = facts.emits
        """Whether records of the operators may still go out."""
        self.may_ask = facts.may_ask
        """Whether the master is to be asked to let the task end, as soon as all data has been processed downstream."""
        self.is_over = facts.is_over
        """Whether nothing more will happen to the task."""


class LifeEvent(Enum):
    """What moves a task to the next state of its life."""

    STARTED = "the master lets all tasks run"
    DATA_SEEN = "the data of every channel, or of the source, has ended"
    OPERATORS_THROUGH = "the operators have nothing left to do"
    LAST_CHECKPOINT_COMPLETE = "the last checkpoint of the task, or the savepoint that ends it, is complete"
    ASKED = "the master was asked to let the task end"
    LET_GO = "the master lets the task end"
    ALL_SENT = "the end of the channels of the task has gone out"
    STOPPED = "the task is to end at once"


_NEXT = {
    (LifeState.RESTORING, LifeEvent.STARTED): LifeState.RUNNING,
    (LifeState.RUNNING, LifeEvent.DATA_SEEN): LifeState.FINISHING,
    (LifeState.FINISHING, LifeEvent.OPERATORS_THROUGH): LifeState.AWAITING_CHECKPOINT,
    (LifeState.AWAITING_CHECKPOINT, LifeEvent.LAST_CHECKPOINT_COMPLETE): LifeState.MAY_END,
    (LifeState.MAY_END, LifeEvent.ASKED): LifeState.WANTS_TO_END,
    (LifeState.MAY_END, LifeEvent.LET_GO): LifeState.LEAVING,
    (LifeState.WANTS_TO_END, LifeEvent.LET_GO): LifeState.LEAVING,
    (LifeState.LEAVING, LifeEvent.ALL_SENT): LifeState.ENDED,
} | {(state, LifeEvent.STOPPED): LifeState.CANCELLED for state in LifeState if not state.is_over}


def next_state(state: LifeState, event: LifeEvent) -> LifeState:
    """The state that follows when `event` happens to a task. Raises `InvariantError` if `event` cannot happen in
    `state`."""
    if state.is_over:
        return state
    following = _NEXT.get((state, event))
    if following is None:
        raise InvariantError(f"a task that is {state.value.name} heard that {event.value}")
    return following


class TaskLife:
    """The state of one task, for all its parts to see."""

    def __init__(self) -> None:
        self.state = LifeState.RESTORING

    def handle(self, event: LifeEvent) -> None:
        """Go on to the state that follows."""
        self.state = next_state(self.state, event)
