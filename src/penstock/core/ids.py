"""Identifiers and time as types, so that an epoch is never passed where a checkpoint id belongs."""

from __future__ import annotations

from typing import NamedTuple, NewType

Instant = NewType("Instant", int)
"""Milliseconds since 1970 on the clock of the process that drives the machine. The driver makes sure that the time
never goes back. The clock is a wall clock, because one process measures the age of a barrier that another process
made."""

CheckpointId = NewType("CheckpointId", int)
"""The id of a checkpoint or savepoint. The id grows by one with every checkpoint or savepoint of a job, over restarts
and changes of driver, and starts at 1."""

Epoch = NewType("Epoch", int)
"""The number of the job's attempt. Whatever carries an older epoch is refused."""

Term = NewType("Term", int)
"""The number of a driver's time with a job. The first driver has term 0; a driver that takes the job over has the next
term."""

JobId = NewType("JobId", str)
VertexId = NewType("VertexId", str)
"""The id of a chain of operators that run together; stable while the program keeps the steps' names."""

OperatorId = NewType("OperatorId", str)
"""The id of one operator of a chain. A restore finds the operator of a saved state by this id."""

SlotIndex = NewType("SlotIndex", int)
"""Position of a slot in the job: slot i runs subtask i of every vertex that has a subtask i."""

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
    """One life of a slot. A replaced slot keeps its number and gets the next incarnation. `attempt` counts how often
    the cluster itself started that incarnation again; it is not the attempt of the job."""

    number: SlotIndex
    incarnation: int
    attempt: int = 0

    def __str__(self) -> str:
        return f"slot-{self.number}.{self.incarnation}.{self.attempt}"
