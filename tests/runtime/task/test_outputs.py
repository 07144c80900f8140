"""Where a task's results go: which channel gets a record, who hears an element, and when the task must wait."""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from key_group_owners import owner_of

from penstock.core.elements import Barrier, CheckpointOptions, Watermark
from penstock.core.errors import UserCodeError
from penstock.core.ids import CheckpointId, Instant, OperatorId
from penstock.plan.graph import Input, Node, Partitioning, build_plan
from penstock.runtime.task.channels import ChannelKey, Subpartition
from penstock.runtime.task.outputs import OutputEdge, TaskOutputs
from penstock.runtime.task.partitioning import key_groups

WINDOW = 100_000


def batch(*keys):
    return pa.record_batch([pa.array(keys, pa.int64()), pa.array(range(len(keys)), pa.int64())], names=["key", "row"])


class Outputs:
    """The outputs of subtask 0 of a source that feeds one or more steps, and what left on each channel. Steps read the
    main output, or the side output that `sides` names for their number."""

    def __init__(self, *partitionings, parallelism=3, output_bytes=100, granted=WINDOW, partitioner=None, sides=()):
        nodes = [Node(number=0, operator=OperatorId("source"), name="source", step=None, is_source=True)]
        for number, partitioning in enumerate(partitionings, start=1):
            keys = ("key",) if partitioning is Partitioning.HASH else ()
            # Two consumers, so that a forward edge is an edge and no chain.
            source = Input(
                node=0, partitioning=partitioning, keys=keys, partitioner=partitioner, side=dict(sides).get(number)
            )
            name = f"step {number}"
            nodes.append(Node(number=number, operator=OperatorId(name), name=name, step=None, inputs=(source,)))
        self.plan = build_plan(tuple(nodes), parallelism=parallelism, max_parallelism=128)
        self.left = {}
        edges = [
            OutputEdge(
                edge,
                self.plan,
                [
                    Subpartition(
                        ChannelKey(edge.number, 0, target),
                        deliver=self._deliver,
                        batch_bytes=WINDOW,
                        window_bytes=WINDOW,
                    )
                    for target in self.plan.targets_of(edge, 0)
                ],
            )
            for edge in self.plan.outputs_of(self.plan.vertices[0].vertex)
        ]
        self.outputs = TaskOutputs(edges, output_bytes=output_bytes)
        for key in self.outputs.channels if granted else ():
            self.outputs.grant(key, granted)

    def _deliver(self, key, item, cost):
        self.left.setdefault((key.edge, key.downstream), []).append(item)

    def emit(self, *batches):
        for each in batches:
            self.outputs.emit(each)
        self.outputs.flush()

    def keys_at(self, target, edge=0):
        return [key for item in self.left.get((edge, target), []) for key in item.column("key").to_pylist()]


def test_by_key_every_record_goes_to_the_owner_of_its_key_group():
    made = Outputs(Partitioning.HASH)
    emitted = batch(*range(300))
    made.emit(emitted)
    owners = [owner_of(int(group), parallelism=3, groups=128) for group in key_groups(emitted, ["key"], 128)]
    for target in range(3):
        assert made.keys_at(target) == np.flatnonzero(np.array(owners) == target).tolist()
        assert made.keys_at(target)


def test_by_key_records_of_one_key_keep_their_order():
    made = Outputs(Partitioning.HASH)
    made.emit(batch(*[n % 7 for n in range(100)]), batch(*[n % 7 for n in range(100)]))
    seen: dict[int, list[int]] = {}
    for items in made.left.values():
        for item in items:
            for key, row in zip(item.column("key").to_pylist(), item.column("row").to_pylist(), strict=True):
                seen.setdefault(key, []).append(row)
    assert seen == {key: [n for n in range(100) if n % 7 == key] * 2 for key in range(7)}


def test_by_key_with_one_target_everything_goes_there():
    made = Outputs(Partitioning.HASH, parallelism=1)
    made.emit(batch(1, 2, 3))
    assert made.keys_at(0) == [1, 2, 3]


def test_a_target_that_gets_no_record_gets_no_batch():
    made = Outputs(Partitioning.HASH)
    made.emit(batch(5, 5, 5))
    assert len(made.left) == 1


def test_forward_has_one_target_of_the_same_number():
    made = Outputs(Partitioning.FORWARD, Partitioning.FORWARD)
    made.emit(batch(1, 2))
    assert made.left.keys() == {(0, 0), (1, 0)}
    assert made.keys_at(0, edge=1) == [1, 2]


def test_rebalance_deals_batches_out_in_turn():
    made = Outputs(Partitioning.REBALANCE)
    made.emit(*[batch(n) for n in range(7)])
    assert [made.keys_at(target) for target in range(3)] == [[0, 3, 6], [1, 4], [2, 5]]


def test_broadcast_gives_everything_to_everyone():
    made = Outputs(Partitioning.BROADCAST)
    made.emit(batch(1, 2), batch(3))
    assert [made.keys_at(target) for target in range(3)] == [[1, 2, 3]] * 3


def test_every_edge_gets_every_record():
    made = Outputs(Partitioning.HASH, Partitioning.REBALANCE)
    made.emit(batch(*range(20)))
    for edge in (0, 1):
        assert Counter(k for target in range(3) for k in made.keys_at(target, edge)) == Counter(range(20))


def test_rows_are_counted_once_however_many_edges_there_are():
    made = Outputs(Partitioning.BROADCAST, Partitioning.HASH)
    made.emit(batch(1, 2), batch(3))
    assert made.outputs.rows_out == 3


def test_an_empty_batch_goes_nowhere_and_does_not_use_up_a_turn():
    made = Outputs(Partitioning.REBALANCE)
    made.emit(batch(1), batch(), batch(2))
    assert (made.keys_at(0), made.keys_at(1)) == ([1], [2])


@pytest.mark.parametrize("partitioning", [p for p in Partitioning if p is not Partitioning.FORWARD])
def test_elements_go_to_every_channel_in_order_with_the_records(partitioning):
    spread = partitioning is Partitioning.CUSTOM
    made = Outputs(partitioning, partitioner=(lambda b, n: np.asarray(b["key"]) % n) if spread else None)
    barrier = Barrier(checkpoint=CheckpointId(1), timestamp=Instant(0))
    made.outputs.emit(batch(*range(100)))
    made.outputs.watermark(7)
    made.outputs.broadcast(barrier)
    made.outputs.emit(batch(*range(100, 200)))
    made.outputs.flush()
    for target in range(3):
        items = made.left[0, target]
        middle = items.index(barrier)
        assert items[middle - 1] == Watermark(time_us=7)
        assert all(max(item.column("key").to_pylist()) < 100 for item in items[: middle - 1])
        assert all(min(item.column("key").to_pylist()) >= 100 for item in items[middle + 1 :])
    assert sum(len(items) for items in made.left.values()) > 2 * 3


# --- back-pressure ---------------------------------------------------------------------------------------------------


def test_there_is_room_until_one_channel_has_too_much_waiting():
    made = Outputs(Partitioning.REBALANCE, output_bytes=16 * 4, granted=None)
    made.emit(*[batch(0)] * 9)
    assert made.outputs.has_room
    made.emit(batch(0))
    assert not made.outputs.has_room


def test_room_comes_back_with_credit_for_the_full_channel_and_not_with_credit_for_another():
    made = Outputs(Partitioning.REBALANCE, output_bytes=16, granted=None)
    made.emit(batch(0))
    full, other, _ = made.outputs.channels
    made.outputs.grant(other, WINDOW)
    made.outputs.flush_channel(other)
    assert not made.outputs.has_room
    made.outputs.grant(full, WINDOW)
    made.outputs.flush_channel(full)
    assert made.outputs.has_room
    assert made.keys_at(0) == [0]


def test_credit_alone_sends_nothing():
    made = Outputs(Partitioning.FORWARD, Partitioning.FORWARD, granted=None)
    made.emit(batch(0))
    made.outputs.grant(made.outputs.channels[0], WINDOW)
    assert made.left == {}


def test_outputs_are_empty_when_the_last_element_has_left():
    made = Outputs(Partitioning.REBALANCE, granted=None)
    assert made.outputs.is_empty
    made.outputs.watermark(1)
    assert not made.outputs.is_empty
    assert made.outputs.queued_bytes == 0
    for key in made.outputs.channels:
        assert not made.outputs.is_empty
        made.outputs.grant(key, WINDOW)
        made.outputs.flush_channel(key)
    assert made.outputs.is_empty


def test_what_waits_is_told_in_bytes():
    made = Outputs(Partitioning.BROADCAST, granted=None)
    made.emit(batch(1, 2))
    assert made.outputs.queued_bytes == 3 * batch(1, 2).nbytes


def test_a_task_without_outputs_always_has_room_and_nothing_to_send():
    outputs = TaskOutputs([], output_bytes=1)
    outputs.emit(batch(1))
    outputs.watermark(5)
    assert outputs.has_room
    assert outputs.is_empty
    assert outputs.rows_out == 1


# --- a function that chooses -----------------------------------------------------------------------------------------


def chosen_by(function, parallelism=3):
    return Outputs(Partitioning.CUSTOM, parallelism=parallelism, partitioner=function)


@pytest.mark.parametrize(
    "as_given",
    [list, tuple, np.array, pa.array, pl.Series, lambda n: pa.chunked_array([n]), lambda n: np.array(n, np.uint8)],
)
def test_records_go_to_the_subtasks_that_a_function_chooses_in_their_order(as_given):
    made = chosen_by(lambda batch, subtasks: as_given([key % subtasks for key in batch["key"].to_pylist()]))
    made.emit(batch(4, 0, 2, 1, 3, 5), batch(9))
    assert [made.keys_at(target) for target in range(3)] == [[0, 3, 9], [4, 1], [2, 5]]


def test_the_function_is_told_how_many_subtasks_there_are():
    made = chosen_by(lambda batch, subtasks: [subtasks - 1] * batch.num_rows, parallelism=1)
    made.emit(batch(1, 2))
    assert made.keys_at(0) == [1, 2]


def fails(batch, subtasks):
    raise KeyError("no such place")


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda batch, subtasks: None, "TypeError: expected a whole number for every record; got None"),
        (lambda batch, subtasks: [0.0, 1.0], "TypeError: expected a whole number for every record; got list"),
        (lambda batch, subtasks: pa.array([0, None]), "TypeError: expected a whole number"),
        (lambda batch, subtasks: ["0", "1"], "TypeError: expected a whole number"),
        (lambda batch, subtasks: 0, "ValueError: expected 2 numbers, one for every record; got 1"),
        (lambda batch, subtasks: [0, 1, 2], "ValueError: expected 2 numbers, one for every record; got 3"),
        (lambda batch, subtasks: [0, 3], "ValueError: expected numbers from 0 to 2, one for each subtask; got 3"),
        (lambda batch, subtasks: [-1, 0], "ValueError: expected numbers from 0 to 2, one for each subtask; got -1"),
        (fails, "KeyError: 'no such place'"),
    ],
)
def test_a_function_that_chooses_no_subtask_is_an_error_of_user_code(function, text):
    made = chosen_by(function)
    with pytest.raises(UserCodeError) as caught:
        made.emit(batch(1, 2))
    assert (caught.value.operator, caught.value.subtask) == ("partition before step 1", 0)
    assert caught.value.traceback_text.rstrip().splitlines()[-1].startswith(text)
    assert "penstock/runtime" not in caught.value.traceback_text


def test_an_interrupt_of_the_process_is_no_error_of_user_code():
    def interrupted(batch, subtasks):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        chosen_by(interrupted).emit(batch(1))


def test_barriers_stay_behind_records_that_a_function_places():
    made = chosen_by(lambda batch, subtasks: [0] * batch.num_rows)
    made.outputs.emit(batch(1))
    options = CheckpointOptions(unaligned=True)
    barrier = Barrier(checkpoint=CheckpointId(1), options=options, timestamp=Instant(0))
    assert made.outputs.send_barrier(barrier) == {ChannelKey(0, 0, target): [] for target in range(3)}


# --- side outputs ----------------------------------------------------------------------------------------------------


def test_records_of_a_side_output_go_to_its_readers_only():
    made = Outputs(Partitioning.REBALANCE, Partitioning.HASH, Partitioning.FORWARD, sides=((2, "a"), (3, "b")))
    sides = made.outputs.sides_of("source")
    assert list(sides) == ["a", "b"]
    made.emit(batch(1))
    sides["a"].emit(batch(2, 2))
    sides["b"].emit(batch(3))
    made.outputs.flush()
    seen = {edge: [k for target in range(3) for k in made.keys_at(target, edge)] for edge in range(3)}
    assert seen == {0: [1], 1: [2, 2], 2: [3]}
    assert made.outputs.rows_out == 4


def test_all_readers_of_a_side_output_get_all_its_records():
    made = Outputs(Partitioning.REBALANCE, Partitioning.FORWARD, sides=((1, "a"), (2, "a")))
    (side,) = made.outputs.sides_of("source").values()
    side.emit(batch())
    side.emit(batch(1))
    made.outputs.flush()
    assert (made.keys_at(0, 0), made.keys_at(0, 1)) == ([1], [1])
    assert not made.outputs.main_is_read


def test_another_operator_of_the_chain_has_no_part_in_a_side_output():
    assert Outputs(Partitioning.REBALANCE, sides=((1, "a"),)).outputs.sides_of("another") == {}


def test_watermarks_of_the_main_output_and_of_a_side_output_are_apart():
    made = Outputs(Partitioning.HASH, Partitioning.FORWARD, parallelism=1, sides=((2, "a"),))
    made.outputs.watermark(9)
    made.outputs.sides_of("source")["a"].watermark(5, idle=True)
    made.outputs.flush()
    assert made.left == {(0, 0): [Watermark(time_us=9)], (1, 0): [Watermark(time_us=5, idle=True)]}


def test_barriers_go_to_side_outputs_too_and_overtake_their_records():
    made = Outputs(Partitioning.HASH, Partitioning.HASH, parallelism=1, granted=0, sides=((2, "a"),))
    made.outputs.emit(batch(1))
    made.outputs.sides_of("source")["a"].emit(batch(2))
    options = CheckpointOptions(unaligned=True)
    overtaken = made.outputs.send_barrier(Barrier(checkpoint=CheckpointId(1), timestamp=Instant(0), options=options))
    found = {key.edge: [b.column("key").to_pylist() for b in batches] for key, batches in overtaken.items()}
    assert found == {0: [[1]], 1: [[2]]}
    for key in made.outputs.channels:
        made.outputs.grant(key, WINDOW)
    made.outputs.flush()
    assert [[type(item) for item in items] for items in made.left.values()] == [[Barrier, pa.RecordBatch]] * 2


def test_a_side_output_whose_reader_is_slow_holds_the_task_back():
    made = Outputs(Partitioning.HASH, Partitioning.FORWARD, sides=((2, "a"),), granted=0, output_bytes=1)
    assert made.outputs.has_room
    made.outputs.sides_of("source")["a"].emit(batch(1))
    assert not made.outputs.has_room
