"""Both ends of a channel: order is kept, credit binds, and a reader that stands still bounds what is held for it."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.elements import Barrier, EndOfPartition, Watermark
from penstock.core.errors import MalformedMessage
from penstock.core.ids import ChannelIndex, CheckpointId, Instant
from penstock.runtime.task.channels import ChannelKey, InputChannel, InputGate, Subpartition

KEY = ChannelKey(0, 0, 0)
ROW_BYTES = 8


def rows(*values):
    return pa.record_batch([pa.array(values, pa.int64())], names=["n"])


def texts(*values):
    return pa.record_batch([pa.array(values, pa.string())], names=["s"])


def barrier(number):
    return Barrier(checkpoint=CheckpointId(number), timestamp=Instant(0))


def values_of(items):
    """What was sent, batches as lists of their values."""
    return [item.column(0).to_pylist() if isinstance(item, pa.RecordBatch) else item for item in items]


class Sender:
    """A sending end and what it delivered."""

    def __init__(self, *, batch_rows=4, window_rows=16, granted=None):
        self.delivered = []
        self.costs = []
        self.end = Subpartition(
            KEY, deliver=self._deliver, batch_bytes=batch_rows * ROW_BYTES, window_bytes=window_rows * ROW_BYTES
        )
        if granted is not None:
            self.end.grant(granted * ROW_BYTES)

    def _deliver(self, key, item, cost):
        assert key == KEY
        self.delivered.append(item)
        self.costs.append(cost)

    @property
    def values(self):
        return values_of(self.delivered)


# --- the sending end -------------------------------------------------------------------------------------------------


def test_nothing_is_sent_before_the_first_grant_not_even_an_element():
    sender = Sender()
    sender.end.add_element(barrier(1))
    sender.end.add_batch(rows(1))
    sender.end.flush()
    assert sender.values == []
    sender.end.grant(ROW_BYTES)
    sender.end.flush()
    assert sender.values == [barrier(1), [1]]
    assert sender.end.is_empty


def test_batches_and_elements_keep_their_order():
    sender = Sender(granted=16)
    for item in (rows(1), barrier(1), rows(2), rows(3), Watermark(time_us=5), rows(4), EndOfPartition()):
        if isinstance(item, pa.RecordBatch):
            sender.end.add_batch(item)
        else:
            sender.end.add_element(item)
    sender.end.flush()
    assert sender.values == [[1], barrier(1), [2, 3], Watermark(time_us=5), [4], EndOfPartition()]


def test_credit_binds_and_what_is_granted_goes_on_where_it_stopped():
    sender = Sender(granted=3)
    for n in range(5):
        sender.end.add_batch(rows(n, n))
    sender.end.flush()
    assert sender.values == [[0, 0]]
    assert sender.end.queued_bytes == 8 * ROW_BYTES
    sender.end.grant(2 * ROW_BYTES)
    sender.end.flush()
    assert sender.values == [[0, 0], [1, 1]]
    sender.end.grant(16 * ROW_BYTES - 1 * ROW_BYTES)
    sender.end.flush()
    assert sender.end.is_empty
    assert sender.end.queued_bytes == 0


def test_an_element_behind_a_batch_without_credit_waits_with_it():
    sender = Sender(granted=1)
    sender.end.add_batch(rows(1, 2))
    sender.end.add_element(barrier(1))
    sender.end.flush()
    assert sender.values == []


def test_what_waits_is_merged_up_to_the_size_of_a_batch_and_what_may_go_at_once_is_not_held():
    sender = Sender(batch_rows=4, granted=16)
    sender.end.add_batch(rows(0))
    sender.end.flush()
    for n in range(1, 7):
        sender.end.add_batch(rows(n))
    sender.end.flush()
    assert sender.values == [[0], [1, 2, 3, 4], [5, 6]]
    assert sender.costs == [8, 32, 16]


def test_merging_stops_at_the_credit():
    sender = Sender(batch_rows=16, granted=3)
    for n in range(5):
        sender.end.add_batch(rows(n))
    sender.end.flush()
    assert sender.values == [[0, 1, 2]]


def test_nothing_is_merged_across_an_element():
    sender = Sender(granted=16)
    sender.end.add_batch(rows(1))
    sender.end.add_element(barrier(1))
    sender.end.add_batch(rows(2))
    sender.end.flush()
    assert sender.values == [[1], barrier(1), [2]]


def test_a_large_batch_is_cut_and_its_rows_keep_their_order():
    sender = Sender(batch_rows=4, window_rows=16, granted=16)
    sender.end.add_batch(rows(*range(15)))
    sender.end.flush()
    assert list(itertools.chain(*sender.values)) == list(range(15))
    assert all(len(batch) <= 4 for batch in sender.values)


def test_rows_that_differ_in_size_are_cut_until_each_piece_fits():
    """Cut evenly by rows, all the large ones would lie in one piece, which no credit would cover."""
    sender = Sender(batch_rows=100, window_rows=400, granted=400)
    sender.end.add_batch(texts(*["x" * 300] * 16, *["y"] * 400))
    sender.end.flush()
    total = 0
    while not sender.end.is_empty:
        sender.end.grant(sum(sender.costs) - total)
        total = sum(sender.costs)
        sender.end.flush()
    assert list(itertools.chain(*sender.values)) == ["x" * 300] * 16 + ["y"] * 400
    assert all(item.nbytes <= 100 * ROW_BYTES for item in sender.delivered)
    assert sender.costs == [item.nbytes for item in sender.delivered]


def test_a_row_larger_than_the_window_goes_alone_and_costs_the_window():
    sender = Sender(window_rows=16, granted=16)
    sender.end.add_batch(texts("x" * 1_000))
    sender.end.flush()
    assert sender.costs == [16 * ROW_BYTES]
    sender.end.add_batch(texts("y"))
    sender.end.flush()
    assert len(sender.delivered) == 1


def test_a_column_of_views_is_cut_by_its_rows_and_not_to_dust():
    """A slice of views still counts the text of all rows; cutting on cannot make it smaller."""
    shared = pa.array(["long enough to lie outside of the view itself " + str(n) for n in range(200)], pa.string_view())
    sender = Sender(batch_rows=100, window_rows=400, granted=400)
    sender.end.add_batch(pa.record_batch([shared], names=["s"]))
    sender.end.flush()
    waiting = sender.end.queued_bytes // (400 * ROW_BYTES)
    assert len(sender.delivered) + waiting <= 20


def test_a_batch_without_bytes_costs_something():
    sender = Sender(granted=16)
    sender.end.add_batch(pa.record_batch([pa.nulls(3)], names=["nothing"]))
    sender.end.flush()
    assert sender.costs == [1]


@pytest.mark.parametrize("granted", [0, -1, 16 * ROW_BYTES + 1])
def test_credit_that_cannot_be_is_malformed(granted):
    sender = Sender(window_rows=16)
    with pytest.raises(MalformedMessage, match="credit"):
        sender.end.grant(granted)
    assert sender.values == []


def test_more_credit_than_the_window_leaves_is_malformed():
    sender = Sender(window_rows=16, granted=16)
    with pytest.raises(MalformedMessage, match="credit"):
        sender.end.grant(1)


def test_of_watermarks_that_nothing_separates_the_last_is_sent():
    sender = Sender()
    sender.end.add_element(Watermark(time_us=1))
    sender.end.add_element(Watermark(time_us=2))
    sender.end.add_batch(rows(1))
    sender.end.add_element(Watermark(time_us=3))
    sender.end.add_element(Watermark(time_us=3, idle=True))
    sender.end.grant(ROW_BYTES)
    sender.end.flush()
    assert sender.values == [Watermark(time_us=2), [1], Watermark(time_us=3, idle=True)]


# --- the receiving end -----------------------------------------------------------------------------------------------


def gate_of(channels, *, window_rows=16):
    """A gate, and what it granted."""
    grants = []
    made = InputGate(
        [
            InputChannel(
                ChannelKey(0, i, 0),
                window_bytes=window_rows * ROW_BYTES,
                grant=lambda key, granted: grants.append((key.upstream, granted)),
                data_taken=lambda key: None,
            )
            for i in range(channels)
        ]
    )
    return made, grants


def push(gate, channel, *items):
    for item in items:
        is_batch = isinstance(item, pa.RecordBatch)
        gate.push(ChannelKey(0, channel, 0), item, item.nbytes if is_batch else 0)


def read_all(gate):
    found = []
    while (taken := gate.next()) is not None:
        index, item, _ = taken
        found.append((index, *values_of([item])))
    return found


def test_opening_grants_the_whole_window():
    gate, grants = gate_of(2)
    for channel in gate.channels:
        channel.open()
    assert grants == [(0, 128), (1, 128)]


def test_consumed_bytes_are_granted_again_at_once_when_the_queue_is_empty():
    gate, grants = gate_of(1)
    push(gate, 0, rows(1))
    gate.next()
    gate.channels[0].consumed(8)
    assert grants == [(0, 8)]


def test_consumed_bytes_are_gathered_while_more_waits():
    gate, grants = gate_of(1, window_rows=16)
    push(gate, 0, *[rows(n) for n in range(9)])
    for _ in range(3):
        gate.next()
        gate.channels[0].consumed(8)
    assert grants == []
    gate.next()
    gate.channels[0].consumed(8)
    assert grants == [(0, 32)]


def test_a_channel_is_read_in_the_order_of_its_items():
    gate, _ = gate_of(1)
    push(gate, 0, rows(1), barrier(1), rows(2))
    assert read_all(gate) == [(0, [1]), (0, barrier(1)), (0, [2])]
    assert not gate.has_work


def test_channels_take_turns():
    gate, _ = gate_of(3)
    push(gate, 0, *[rows(n) for n in range(4)])
    push(gate, 2, rows(20), rows(21))
    push(gate, 1, rows(10))
    assert [index for index, _ in read_all(gate)] == [0, 2, 1, 0, 2, 0, 0]


def test_a_busy_channel_does_not_keep_a_late_one_waiting():
    gate, _ = gate_of(2)
    push(gate, 0, *[rows(n) for n in range(100)])
    gate.next()
    push(gate, 1, barrier(1))
    assert [gate.next()[0] for _ in range(2)] == [0, 1]


def test_a_blocked_channel_is_not_read_and_the_others_are():
    gate, _ = gate_of(2)
    push(gate, 0, barrier(1), rows(1))
    push(gate, 1, rows(2), rows(3))
    assert gate.next() == (0, barrier(1), 0)
    gate.block(ChannelIndex(0))
    push(gate, 0, rows(4))
    assert read_all(gate) == [(1, [2]), (1, [3])]
    assert gate.next() is None
    assert not gate.has_work


def test_a_barrier_can_be_read_alone_if_it_is_the_next_thing_in_its_channel():
    gate, _ = gate_of(3)
    push(gate, 0, rows(1), barrier(1))
    push(gate, 1, rows(2))
    assert not gate.has_without_room
    assert gate.next_without_room() is None
    push(gate, 2, barrier(1), rows(3))
    assert gate.has_without_room
    assert gate.next_without_room() == (2, barrier(1))
    assert gate.channels[2].last_read == 1
    assert not gate.has_without_room
    assert gate.next_without_room() is None
    assert read_all(gate) == [(0, [1]), (1, [2]), (2, [3]), (0, barrier(1))]


def test_a_barrier_in_a_blocked_channel_is_not_read_alone():
    gate, _ = gate_of(1)
    push(gate, 0, barrier(1), barrier(2))
    assert gate.next_without_room() == (0, barrier(1))
    gate.block(ChannelIndex(0))
    assert not gate.has_without_room
    assert gate.next_without_room() is None
    gate.resume(ChannelIndex(0))
    assert gate.next_without_room() == (0, barrier(2))


def test_a_resumed_channel_goes_on_where_it_stopped():
    gate, _ = gate_of(2)
    push(gate, 0, barrier(1), rows(1))
    gate.next()
    gate.block(ChannelIndex(0))
    assert gate.next() is None
    push(gate, 0, rows(2))
    gate.resume(ChannelIndex(0))
    assert gate.has_work
    assert read_all(gate) == [(0, [1]), (0, [2])]


def test_a_channel_that_was_blocked_while_empty_is_read_again_when_something_comes():
    gate, _ = gate_of(1)
    push(gate, 0, barrier(1))
    gate.next()
    gate.block(ChannelIndex(0))
    gate.resume(ChannelIndex(0))
    assert not gate.has_work
    push(gate, 0, rows(1))
    assert read_all(gate) == [(0, [1])]


def test_resuming_before_the_block_was_noticed_reads_nothing_twice():
    gate, _ = gate_of(2)
    push(gate, 0, barrier(1), rows(1), rows(2))
    push(gate, 1, rows(3))
    gate.next()
    gate.block(ChannelIndex(0))
    gate.resume(ChannelIndex(0))
    gate.resume(ChannelIndex(0))
    assert sorted(read_all(gate)) == [(0, [1]), (0, [2]), (1, [3])]


def test_what_comes_after_the_end_of_a_channel_is_malformed():
    gate, _ = gate_of(1)
    gate.channels[0].ended = True
    with pytest.raises(MalformedMessage, match="after the end of the channel"):
        push(gate, 0, rows(1))


def test_watermarks_that_wait_one_behind_the_other_take_the_room_of_one():
    gate, _ = gate_of(1)
    push(gate, 0, *[Watermark(time_us=n) for n in range(1_000)])
    assert len(gate.channels[0].queue) == 1
    assert read_all(gate) == [(0, Watermark(time_us=999))]


# --- both ends together ----------------------------------------------------------------------------------------------


class Pair:
    """A channel whose wire is a call."""

    def __init__(self, *, batch_rows, window_rows):
        self.gate = InputGate(
            [InputChannel(KEY, window_bytes=window_rows * ROW_BYTES, grant=self._grant, data_taken=lambda key: None)]
        )
        self.sender = Subpartition(
            KEY, deliver=self.gate.push, batch_bytes=batch_rows * ROW_BYTES, window_bytes=window_rows * ROW_BYTES
        )
        self.gate.channels[0].open()

    def _grant(self, _key, granted):
        self.sender.grant(granted)
        self.sender.flush()

    @property
    def held_bytes(self):
        return sum(item.nbytes for item, _, _ in self.gate.channels[0].queue if isinstance(item, pa.RecordBatch))

    def read(self):
        taken = self.gate.next()
        if taken is None:
            return None
        _, item, cost = taken
        # As a task does: an element takes no room, but with the last one the credit for earlier batches is due.
        self.gate.channels[0].consumed(cost)
        return item


def test_a_reader_that_stands_still_holds_at_most_the_window():
    pair = Pair(batch_rows=4, window_rows=16)
    for n in range(1_000):
        pair.sender.add_batch(rows(n, n, n))
        pair.sender.add_element(Watermark(time_us=n))
        pair.sender.flush()
    assert 0 < pair.held_bytes <= 16 * ROW_BYTES
    assert len(pair.gate.channels[0].queue) <= 2 * 16


@given(
    st.lists(st.one_of(st.integers(1, 40), st.just("element"), st.just("read"), st.just("flush")), max_size=80),
    st.integers(1, 20),
    st.integers(1, 20),
)
def test_everything_arrives_once_and_in_order_within_the_window_and_without_a_standstill(actions, batch_rows, window):
    pair = Pair(batch_rows=batch_rows, window_rows=window)
    sent, received = [], []
    numbers = itertools.count()

    def read():
        item = pair.read()
        if item is not None:
            received.extend(item.column(0).to_pylist() if isinstance(item, pa.RecordBatch) else [item])
        return item

    for action in actions:
        match action:
            case "read":
                read()
            case "flush":
                pair.sender.flush()
            case "element":
                sent.append(barrier(next(numbers)))
                pair.sender.add_element(sent[-1])
            case count:
                values = [next(numbers) for _ in range(count)]
                sent += values
                pair.sender.add_batch(rows(*values))
        assert pair.held_bytes <= window * ROW_BYTES
    pair.sender.flush()
    while read() is not None:
        pass
    assert pair.sender.is_empty
    assert received == sent
