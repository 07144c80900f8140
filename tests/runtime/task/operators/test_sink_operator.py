from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
import pytest

from penstock.api.connector import Sink, SinkWriter
from penstock.api.steps import WriteStep
from penstock.core.errors import StorageError
from penstock.core.ids import OperatorId, VertexId
from penstock.core.messages import OperatorState
from penstock.core.recovery.metadata import OperatorSnapshot
from penstock.core.recovery.operator_state import deal

SCHEMA = pa.schema([("n", pa.int64())])


@dataclass
class Shelf:
    """Where a test sink puts things, shared by all its writers."""

    committed: list[bytes] = field(default_factory=list)
    commits: int = 0
    prepared: list[bytes] = field(default_factory=list)
    cleaned: list[tuple] = field(default_factory=list)
    failing: list[str] = field(default_factory=list)
    closed: int = 0

    def fail(self, what):
        if what in self.failing:
            raise StorageError(f"{what} failed")


class ShelfWriter(SinkWriter):
    def __init__(self, shelf):
        self.shelf = shelf
        self.open = []

    def write(self, batch):
        self.open += batch.column("n").to_pylist()

    def prepare(self, checkpoint):
        taken, self.open = self.open, []

        def work():
            self.shelf.fail("prepare")
            made = [f"{checkpoint}:{n}".encode() for n in taken]
            self.shelf.prepared += made
            return made

        return work

    def close(self):
        self.shelf.closed += 1


@dataclass(frozen=True)
class ShelfSink(Sink):
    shelf: Shelf

    def writer(self, context):
        return ShelfWriter(self.shelf)

    def commit(self, committables):
        self.shelf.commits += 1
        self.shelf.fail("commit")
        self.shelf.committed += [c for c in committables if c not in self.shelf.committed]

    def clean(self, context, keep):
        self.shelf.cleaned.append((context.subtask, context.epoch, list(keep)))


@pytest.fixture
def shelf():
    return Shelf()


@pytest.fixture
def step(shelf):
    return WriteStep(sink=ShelfSink(shelf), schema=SCHEMA)


def write(made, *numbers):
    made.operator.process(pa.record_batch({"n": pa.array(numbers, pa.int64())}))


def carried(state):
    """What a snapshot promises to commit; all of it is one part, which goes to one subtask."""
    (part,) = state.split_lists["committables"]
    return msgspec.msgpack.decode(part)


def settle(made):
    made.background.run()
    made.background.collect()


def test_records_are_committed_only_after_their_checkpoint(rig, shelf, step):
    made = rig(step)
    write(made, 1, 2)
    state = made.snapshot(1)
    assert carried(state) == [[1, b"1:1"], [1, b"1:2"]]
    write(made, 3)
    settle(made)
    assert shelf.committed == []
    made.operator.completed(1)
    assert made.operator.pending
    settle(made)
    assert shelf.committed == [b"1:1", b"1:2"]
    assert not made.operator.pending
    assert made.snapshot(2).split_lists["committables"] != ()


def test_an_aborted_checkpoint_is_carried_until_one_completes(rig, shelf, step):
    made = rig(step)
    write(made, 1)
    made.snapshot(1)
    made.operator.aborted(1)
    write(made, 2)
    state = made.snapshot(2)
    assert carried(state) == [[1, b"1:1"], [2, b"2:2"]]
    assert shelf.prepared == [b"1:1", b"2:2"]
    made.operator.completed(2)
    settle(made)
    assert shelf.committed == [b"1:1", b"2:2"]


def test_a_lost_notification_is_made_good_by_the_next(rig, shelf, step):
    made = rig(step)
    for checkpoint in (1, 2, 3):
        write(made, checkpoint)
        made.snapshot(checkpoint)
    made.operator.completed(2)
    settle(made)
    assert shelf.committed == [b"1:1", b"2:2"]
    made.operator.completed(3)
    settle(made)
    assert shelf.committed == [b"1:1", b"2:2", b"3:3"]


def test_what_failed_to_prepare_is_tried_again_with_the_next_checkpoint(rig, shelf, step):
    made = rig(step)
    write(made, 1)
    shelf.failing = ["prepare"]
    with pytest.raises(StorageError):
        made.snapshot(1)
    shelf.failing = []
    write(made, 2)
    made.snapshot(2)
    assert shelf.prepared == [b"1:1", b"2:2"]


def test_the_synchronous_part_closes_the_transaction(rig, shelf, step):
    """1. Barrier 1: the transaction is closed. 2. A record comes. 3. The work of checkpoint 1 runs: without it."""
    made = rig(step)
    write(made, 1)
    work = made.freeze(1)
    write(made, 2)
    assert carried(work()) == [[1, b"1:1"]]
    assert shelf.prepared == [b"1:1"]


def test_a_commit_under_way_is_not_started_twice(rig, shelf, step):
    made = rig(step)
    write(made, 1)
    made.snapshot(1)
    write(made, 2)
    made.snapshot(2)
    made.operator.completed(1)
    made.operator.completed(1)
    made.operator.completed(2)
    settle(made)
    assert shelf.committed == [b"1:1"]
    assert made.operator.pending
    settle(made)
    assert shelf.committed == [b"1:1", b"2:2"]
    assert shelf.commits == 2
    assert not made.operator.pending
    assert made.snapshot(3).is_empty


def test_a_commit_that_fails_is_not_overtaken_by_that_of_a_later_checkpoint(rig, shelf, step):
    """Whoever reads the results sees them in the order in which they came."""
    made = rig(step)
    write(made, 1)
    made.snapshot(1)
    write(made, 2)
    made.snapshot(2)
    shelf.failing = ["commit"]
    made.operator.completed(1)
    made.operator.completed(2)
    made.background.run()
    shelf.failing = []
    settle(made)
    assert shelf.committed == []
    assert len(made.failures) == 1


def test_a_transaction_being_committed_is_still_named_by_the_next_checkpoint(rig, step):
    made = rig(step)
    write(made, 1)
    made.snapshot(1)
    made.operator.completed(1)
    assert carried(made.snapshot(2)) == [[1, b"1:1"]]


def test_a_commit_that_fails_fails_the_task_and_stays_in_the_state(rig, shelf, step):
    made = rig(step)
    write(made, 1)
    state = made.snapshot(1)
    shelf.failing = ["commit"]
    made.operator.completed(1)
    settle(made)
    assert [type(error) for error in made.failures] == [StorageError]
    shelf.failing = []
    rig(step, restored=[state], epoch=2)
    assert shelf.committed == [b"1:1"]


def test_a_restore_commits_what_the_checkpoint_promised_before_it_writes(rig, shelf, step):
    before = rig(step, subtask=0, parallelism=2)
    other = rig(step, subtask=1, parallelism=2)
    write(before, 1)
    write(other, 2)
    states = [before.snapshot(5), other.snapshot(5)]
    shelf.cleaned.clear()
    rig(step, restored=states, epoch=3)
    assert shelf.committed == [b"5:1", b"5:2"]
    assert shelf.cleaned == [(0, 3, [b"5:1", b"5:2"])]
    rig(step, restored=states, epoch=4)
    assert shelf.committed == [b"5:1", b"5:2"]


def test_at_another_parallelism_one_subtask_commits_all_that_one_carried_in_its_order(rig, shelf, step):
    """1. Two checkpoints complete, and the job is rescaled before either is committed. 2. The second one would be seen
    first, if two subtasks had one each and the second were quicker."""
    states = {}
    for subtask in range(2):
        made = rig(step, subtask=subtask, parallelism=2)
        for checkpoint in (1, 2):
            write(made, 10 * subtask + checkpoint)
            states[subtask] = made.snapshot(checkpoint)
    whole = OperatorSnapshot(
        operator=OperatorId("sink"), vertex=VertexId("sink"), parallelism=2, max_parallelism=8, subtasks=states
    )
    dealt = [share for share in deal(whole, 5) if share[0].split_lists["committables"]]
    assert [carried(*share) for share in dealt] == [[[1, b"1:1"], [2, b"2:2"]], [[1, b"1:11"], [2, b"2:12"]]]
    for share in reversed(dealt):
        rig(step, restored=share, epoch=2)
    assert shelf.committed == [b"1:11", b"2:12", b"1:1", b"2:2"]


def test_a_part_may_hold_a_single_piece(rig, shelf, step):
    parts = tuple(msgspec.msgpack.encode((1, piece)) for piece in (b"1:1", b"1:2"))
    rig(step, restored=[OperatorState(operator=OperatorId("sink"), split_lists={"committables": parts})])
    assert shelf.committed == [b"1:1", b"1:2"]


def test_a_fresh_start_cleans_too(rig, shelf, step):
    rig(step)
    assert shelf.cleaned == [(0, 1, [])]


def test_without_records_there_is_no_state_and_nothing_to_wait_for(rig, shelf, step):
    made = rig(step)
    assert made.snapshot(1).is_empty
    made.operator.completed(1)
    assert not made.operator.pending
    assert made.operator._transactions == []


def test_closing_closes_the_writer_once(rig, shelf, step):
    made = rig(step)
    made.operator.close()
    made.operator.close()
    assert shelf.closed == 1


class OwnWriter(ShelfWriter):
    """A writer that has a connection, and commits what it prepared."""

    commits = True

    def commit(self, committables):
        self.shelf.committed += [b"by writer " + c for c in committables]


@dataclass(frozen=True)
class OwnSink(ShelfSink):
    def writer(self, context):
        return OwnWriter(self.shelf)


def test_a_writer_that_commits_is_asked_and_not_the_sink(rig, shelf):
    made = rig(WriteStep(sink=OwnSink(shelf), schema=SCHEMA))
    write(made, 1)
    made.snapshot(1)
    made.operator.completed(1)
    settle(made)
    assert (shelf.committed, shelf.commits) == ([b"by writer 1:1"], 0)


def test_what_is_due_when_the_writer_is_closed_is_committed_by_the_sink(rig, shelf):
    """1. The commit of checkpoint 1 is under way. 2. Checkpoint 2 completes. 3. The task is closed. 4. The commit of
    checkpoint 1 ends, and that of checkpoint 2 is due."""
    made = rig(WriteStep(sink=OwnSink(shelf), schema=SCHEMA))
    write(made, 1)
    made.snapshot(1)
    made.operator.completed(1)
    write(made, 2)
    made.snapshot(2)
    made.operator.completed(2)
    made.operator.close()
    settle(made)
    settle(made)
    assert shelf.committed == [b"by writer 1:1", b"2:2"]
