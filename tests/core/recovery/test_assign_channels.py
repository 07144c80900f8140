"""In-flight data goes back to the task that saved it, and is refused when there is no such task any more."""

from __future__ import annotations

import msgspec
import pytest

from penstock.core.errors import UsageError
from penstock.core.graph import CheckpointGraph, CheckpointVertex
from penstock.core.ids import CheckpointId, Instant, JobId, OperatorId, TaskId, VertexId
from penstock.core.messages import ChannelState, OperatorState, StateFile, TaskRestore
from penstock.core.recovery.assign import assign, encode_restore
from penstock.core.recovery.metadata import CheckpointMetadata, OperatorSnapshot, SnapshotKind, TaskChannels

UP, DOWN = VertexId("up"), VertexId("down")


def operator_of(vertex: VertexId) -> OperatorId:
    return OperatorId(f"op-{vertex}")


def graph(parallelism: int, *vertices: VertexId) -> CheckpointGraph:
    return CheckpointGraph(
        vertices=tuple(
            CheckpointVertex(vertex=v, parallelism=parallelism, operators=(operator_of(v),), is_source=v == UP)
            for v in vertices
        )
    )


def saved(upstream: int, downstream: int) -> ChannelState:
    """What was in the channel between two subtasks."""
    file = StateFile(path=None, size=4, checksum=0, inline=b"data")
    return ChannelState(edge=0, upstream=upstream, downstream=downstream, file=file, ranges=((0, 4),))


def taken_unaligned() -> CheckpointMetadata:
    """Two subtasks each: one saved what its barrier overtook on the way out, another what it had not read."""
    operators = {
        operator_of(v): OperatorSnapshot(
            operator=operator_of(v), vertex=v, parallelism=2, max_parallelism=128, subtasks={}
        )
        for v in (UP, DOWN)
    }
    return CheckpointMetadata(
        job=JobId("job"),
        checkpoint=CheckpointId(7),
        timestamp=Instant(0),
        kind=SnapshotKind.CHECKPOINT,
        operators=operators,
        channels=(
            TaskChannels(task=TaskId(UP, 0), outputs=(saved(0, 1),)),
            TaskChannels(task=TaskId(DOWN, 1), inputs=(saved(1, 1),)),
        ),
    )


def test_in_flight_data_goes_to_the_task_that_saved_it():
    restores = assign(taken_unaligned(), graph(2, UP, DOWN))
    assert restores[TaskId(UP, 0)].output_channels == (saved(0, 1),)
    assert restores[TaskId(DOWN, 1)].input_channels == (saved(1, 1),)
    others = [restores[TaskId(UP, 1)], restores[TaskId(DOWN, 0)]]
    assert all(not r.input_channels and not r.output_channels for r in others)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_in_flight_data_cannot_be_dealt_out_to_another_parallelism(parallelism):
    with pytest.raises(UsageError, match="checkpoint 7 has in-flight data and was taken with another parallelism"):
        assign(taken_unaligned(), graph(parallelism, UP, DOWN))


def test_in_flight_data_of_a_step_that_is_gone_is_refused():
    """No operator of the vertex had state, and so only its channels tell that it is missing."""
    with pytest.raises(UsageError, match="checkpoint 7 has in-flight data"):
        assign(taken_unaligned(), graph(2, UP))


def test_a_share_can_be_read_back_as_it_was_sent():
    state = OperatorState(operator=operator_of(DOWN), split_lists={"offsets": (b"1", b"2")})
    restore = TaskRestore(operators={operator_of(DOWN): (state,)}, input_channels=(saved(1, 1),))
    assert msgspec.msgpack.decode(encode_restore(restore), type=TaskRestore) == restore
