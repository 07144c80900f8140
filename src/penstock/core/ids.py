"""Identifiers and time as types, so that an epoch is never passed where a checkpoint id belongs."""

from __future__ import annotations

from typing import NamedTuple, NewType

Instant = NewType("Instant", int)
"""Milliseconds since 1970 on the clock of the process that drives the machine. The driver makes it never go back;
it is a wall clock because the age of a barrier is told across processes."""

CheckpointId = NewType("CheckpointId", int)
"""Grows by one with every checkpoint or savepoint of a job, over restarts and changes of driver. Starts at 1."""

Epoch = NewType("Epoch", int)
"""The number of the job's attempt. Whatever carries an older epoch is refused."""

Term = NewType("Term", int)
"""The number of the driver that runs a job: the first is 0, one that takes the job over has the next."""

JobId = NewType("JobId", str)
VertexId = NewType("VertexId", str)
"""A chain of operators that run together; stable while the program keeps the steps' names."""

OperatorId = NewType("OperatorId", str)
"""One operator of a chain; state finds its operator again by this."""

SlotIndex = NewType("SlotIndex", int)
"""Position of a slot in the job: slot i runs subtask i of every vertex that has one."""

ChannelIndex = NewType("ChannelIndex", int)
"""Position of an input channel among all input channels of one task."""

RequestId = NewType("RequestId", int)
"""Tells which caller gets the answer to a request for a checkpoint."""


class TaskId(NamedTuple):
    """One parallel subtask of a vertex."""

    vertex: VertexId
    subtask: int

    def __str__(self) -> str:
        return f"{self.vertex}[{self.subtask}]"


class SlotId(NamedTuple):
    """One life of a slot. A replaced slot keeps its index and gets the next incarnation; `attempt` counts the times
    the cluster itself started that incarnation again."""

    number: SlotIndex
    incarnation: int
    attempt: int = 0

    def __str__(self) -> str:
        return f"slot-{self.number}.{self.incarnation}.{self.attempt}"
