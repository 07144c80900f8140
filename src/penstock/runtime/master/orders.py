"""The messages that deploy tasks: all tasks of a job, or the tasks of restarted regions while other tasks run. And how
a slot reads such a message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from penstock.core.ids import CheckpointId, Epoch, JobId, SlotId, TaskId
from penstock.core.job.events import DeployTasks
from penstock.core.messages import Deploy, Register, TaskRestore
from penstock.core.recovery.assign import Assignment, encode_restore
from penstock.plan.graph import Plan
from penstock.runtime.addresses import peer_address
from penstock.runtime.master.saved_results import Saved


@dataclass(frozen=True, kw_only=True)
class Orders:
    """The parts of a deployment that are the same for all slots."""

    job: JobId
    plan: Plan
    pickled_plan: bytes
    restored: CheckpointId | None
    first_checkpoint: CheckpointId
    attempt: Epoch
    """The epoch in which all tasks were deployed last."""
    saved: Saved
    """Results that savepoints name, and that must not be removed."""


def deployments(
    effect: DeployTasks, assignment: Assignment, slots: Mapping[SlotId, Register], orders: Orders
) -> Iterator[tuple[SlotId, Deploy]]:
    """One message for every slot that gets tasks. When all tasks are deployed, every slot gets the plan and the
    addresses of all slots. When only some tasks are deployed, a joining slot gets the plan, and every slot that gets
    tasks learns the address of the joining slot."""
    wanted = None if effect.tasks is None else dict.fromkeys(effect.tasks)
    peers = tuple(peer_address(slots[slot]) for slot in effect.slots)
    for place, slot in enumerate(effect.slots):
        tasks = tuple(t for t in orders.plan.tasks_of_slot(place) if wanted is None or t in wanted)
        is_new = wanted is None or slot in effect.joining
        if tasks:
            yield (
                slot,
                Deploy(
                    epoch=effect.epoch,
                    job=orders.job,
                    plan=orders.pickled_plan if is_new else b"",
                    tasks=tasks,
                    peers=peers if wanted is None or effect.joining else (),
                    restored_checkpoint=orders.restored,
                    restore={str(t): encode_restore(assignment.tasks[t]) for t in tasks if t in assignment.tasks},
                    first_checkpoint=orders.first_checkpoint,
                    beside_others=wanted is not None,
                    attempt=orders.attempt if slot in effect.joining else Epoch(0),
                    saved=orders.saved,
                ),
            )


def restore_of(message: Deploy, task: TaskId) -> TaskRestore:
    """The state that a task of the message starts from."""
    encoded = message.restore.get(str(task))
    return msgspec.msgpack.decode(encoded, type=TaskRestore) if encoded else TaskRestore()
