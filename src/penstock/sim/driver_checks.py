"""The checks of the parts of sources and sinks that run on the driver.

A split must be in exactly one place at any time: not found yet, with one reader, or read to its end. The checker looks
at the messages of each attempt, and at each checkpoint that becomes durable. In a checkpoint, the enumerator's position
and the readers' splits were saved by different processes, at different times, and must fit together all the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.ids import CheckpointId, TaskId
from penstock.core.messages import Deploy, OperatorEvent
from penstock.core.recovery.tenure import EPOCHS_PER_TERM
from penstock.runtime.master.orders import restore_of
from penstock.runtime.task.operators.events import SplitsAdded, decode_reader_event
from penstock.runtime.task.operators.source import SPLITS
from penstock.sim.checkers import Ledger, MessageChecker
from penstock.sim.external import ExternalSystem
from penstock.sim.inputs import decode_positions
from penstock.sim.jobs import Workload
from penstock.sim.on_driver import next_splits
from penstock.sim.rules import Rule
from penstock.sim.world import World
from penstock.storage.metadata import decode_metadata
from penstock.wire.codec import decode_to_slot
from penstock.wire.frames import Kind, unpack


class SplitChecker:
    """Follows where the splits are that sources have found."""

    def __init__(
        self, world: World, ledger: Ledger, external: ExternalSystem, workload: Workload, *, master: str
    ) -> None:
        self._world = world
        self._ledger = ledger
        self._external = external
        self._workload = workload
        self._master = master
        self._epoch = 0
        self._deployed: dict[TaskId, int] = {}
        self._readers: dict[int, TaskId] = {}
        """By split: the task that has the split in this epoch, or had the split."""
        ledger.on_durable.append(self.checkpoint_durable)

    def __call__(self, sender: str, receiver: str, frames: list[bytes]) -> None:  # noqa: ARG002
        """Look at one message."""
        if sender != self._master:
            return
        for header, payload in unpack(frames):
            if header.kind is not Kind.CONTROL:
                continue
            message = decode_to_slot(payload)
            if isinstance(message, Deploy):
                self._began(message)
            elif isinstance(message, OperatorEvent):
                self._said(message)

    def _began(self, message: Deploy) -> None:
        if message.epoch > self._epoch:
            self._epoch, self._readers = message.epoch, {}
        if message.epoch < self._epoch:
            # The message comes from a driver whose job was taken over.
            return
        for task in message.tasks:
            self._deployed[task] = message.epoch
            for states in restore_of(message, task).operators.values():
                for state in states:
                    self._assigned(task, state.split_lists.get(SPLITS, ()))

    def _said(self, message: OperatorEvent) -> None:
        if message.epoch // EPOCHS_PER_TERM < self._epoch // EPOCHS_PER_TERM:
            return
        task = message.task
        if message.epoch != self._deployed.get(task):
            text = f"an event of epoch {message.epoch} was sent to {task}, which is in epoch {self._deployed.get(task)}"
            self._world.violate(Rule.FENCING, text)
        if message.operator.startswith("source"):
            event = decode_reader_event(message.event)
            if isinstance(event, SplitsAdded):
                self._assigned(task, event.splits)

    def _assigned(self, task: TaskId, splits: Sequence[bytes]) -> None:
        for split in (position.split for position in decode_positions(splits)):
            if split in self._readers:
                text = f"split {split} was given to {task}, and {self._readers[split]} has it, in epoch {self._epoch}"
                self._world.violate(Rule.SPLITS, text)
            if split in self._external.let_go:
                self._world.violate(Rule.SPLITS, f"split {split} is read again, although its source has let go of it")
            self._readers[split] = task

    def checkpoint_durable(self) -> None:
        """Check that the enumerator's position and the readers' splits in the newest checkpoint fit together."""
        checkpoint, data = next(reversed(self._ledger.durable.items()))
        metadata = decode_metadata("_metadata", data)
        for operator, (splits, begin) in next_splits(self._workload, metadata).items():
            known = metadata.operators.get(operator)
            states = [] if known is None else [known.subtasks[subtask] for subtask in sorted(known.subtasks)]
            unread = [p.split for s in states for p in decode_positions(s.split_lists.get(SPLITS, ()))]
            early = [split for split in unread if split >= begin]
            twice = [split for split in dict.fromkeys(unread) if unread.count(split) > 1]
            read = [split for split in range(splits.start, begin) if split not in unread]
            lost = [split for split in read if split not in self._external.read_to_end]
            for what, wrong in (("not found yet, and with a reader", early), ("with two readers", twice)):
                if wrong:
                    self._world.violate(Rule.SPLITS, f"in checkpoint {checkpoint} splits {wrong} are {what}")
            if lost:
                text = f"in checkpoint {checkpoint} splits {lost} are found, have no reader, and were never read"
                self._world.violate(Rule.SPLITS, text)


class GroupChecker:
    """Checks that the driver commits the results of each barrier once, whole, and in the order of the barriers."""

    def __init__(self, world: World, ledger: Ledger, messages: MessageChecker, external: ExternalSystem) -> None:
        self._world = world
        self._ledger = ledger
        self._messages = messages
        self._external = external
        self._groups: dict[tuple[str, int], tuple[bytes, ...]] = {}
        """By sink and checkpoint: the committables of the first call, in the order of the first calls."""
        self._last: dict[str, tuple[int, int]] = {}
        """By sink: the epoch and the checkpoint of the last call."""
        external.on_group = self._called

    def go_on_from(self, before: GroupChecker) -> None:
        """Another job, or another run of the job, goes on from what the job before has left."""
        self._groups = before._groups

    def _called(self, target: str, checkpoint: int, tokens: tuple[bytes, ...]) -> None:
        self._world.note(self._name, f"commits checkpoint {checkpoint} to {target} ({len(tokens)} transactions)")
        if not self._ledger.is_held_by(self._world.acting):
            self._world.violate(Rule.FENCING, f"{self._name} commits to {target}, although another driver has the job")
        content = tuple(sorted(tokens))
        epoch, newest = self._last.get(target, (0, 0))
        if epoch == self._messages.epoch and checkpoint <= newest:
            text = f"checkpoint {checkpoint} was committed to {target} after checkpoint {newest}, in epoch {epoch}"
            self._world.violate(Rule.COMMITS, text)
        self._last[target] = (self._messages.epoch, checkpoint)
        is_new = (target, checkpoint) not in self._groups
        if self._groups.setdefault((target, checkpoint), content) != content:
            text = f"checkpoint {checkpoint} was committed to {target} again, with other transactions"
            self._world.violate(Rule.COMMITS, text)
        later = [known for name, known in self._groups if name == target and known > checkpoint]
        if is_new and later:
            text = f"checkpoint {checkpoint} was first committed to {target} after checkpoint {max(later)}"
            self._world.violate(Rule.COMMITS, text)
        # A second job must not start from an older snapshot: the job would show these results again.
        self._messages.relied_on[CheckpointId(checkpoint)] = None

    @property
    def _name(self) -> str:
        return self._world.acting.name if self._world.acting is not None else "nobody"
