"""Parts on the driver of a job that may have been taken over: whoever has lost it commits and asks nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from commits_rig import Later, Rig, part
from threaded_jobs import settings

from penstock.api.connector import Committer, End, Found, Pause, Sink, SinkWriter, Source, SourceReader, SplitEnumerator
from penstock.api.hold import ASK_AGAIN_MS, Hold
from penstock.api.steps import ReadStep, WriteStep
from penstock.core.errors import JobTakenOver, StorageError
from penstock.core.ids import CheckpointId, Instant, JobId, OperatorId
from penstock.core.job.events import JobState
from penstock.core.recovery import layout
from penstock.plan.graph import Input, Node, Partitioning, build_plan
from penstock.ports import WorkResult
from penstock.runtime.master.guard import Guard
from penstock.runtime.master.operator_coordinators.contract import CoordinatorHost
from penstock.runtime.master.operator_coordinators.enumeration import SplitAssigner
from penstock.spark.background import ThreadBackground
from penstock.storage.tenure import take_over

AWAY = StorageError("the records are away")


@pytest.fixture
def rig():
    return Rig()


# --- a committer -----------------------------------------------------------------------------------------------------


def test_a_driver_that_slept_past_a_takeover_does_not_commit_what_it_was_about_to(rig):
    """1. A checkpoint is complete, and its commit waits. 2. Another driver takes the job over. 3. The driver wakes."""
    rig.complete(1, part(1, b"a"))
    rig.take_away()
    rig.background.perform()
    assert (rig.story, rig.lost, rig.failed) == ([], 1, [])
    rig.complete(2, part(1, b"a"), part(2, b"b"))
    rig.background.perform()
    assert (rig.story, rig.lost) == ([], 1)


def test_a_committer_that_looks_again_is_stopped_right_before_it_acts(rig):
    rig.told.looks_again = True
    rig.complete(1, part(1, b"a"))
    rig.looks = [None, JobTakenOver("another driver has it")]
    rig.background.perform()
    assert (rig.story, rig.lost, rig.failed) == ([], 1, [])


def test_a_driver_that_lost_the_job_closes_and_leaves_the_rest_to_the_other(rig):
    rig.complete(1, part(1, b"a"))
    rig.hold.let_go()
    rig.commits.end()
    rig.background.perform()
    assert (rig.story, rig.commits.has_ended) == ([("close", True)], True)


def test_a_driver_that_lost_the_job_without_knowing_it_finds_out_before_it_ends_its_connectors(rig):
    rig.complete(1, part(1, b"a"))
    rig.commits.stop()
    rig.take_away()
    rig.commits.end()
    rig.background.perform()
    assert rig.story == [("close", True)]


def test_nothing_is_committed_in_doubt_and_everything_once_in_order_when_it_is_over(rig, caplog):
    rig.complete(1, part(1, b"a"))
    rig.looks = [AWAY]
    rig.background.perform()
    assert "which driver has job job cannot be found out now; the part of 'sink' on this driver waits: " in caplog.text
    rig.complete(2, part(1, b"a"), part(2, b"b"))
    assert (rig.story, rig.failed) == ([], [])
    rig.commits.ask_again(Instant(1_000))
    assert rig.commits.asks_at == 1_000 + ASK_AGAIN_MS
    rig.commits.ask_again(Instant(1_000 + ASK_AGAIN_MS - 1))
    rig.background.perform()
    assert rig.story == []
    rig.commits.ask_again(Instant(1_000 + ASK_AGAIN_MS))
    rig.background.perform()
    assert (rig.story, rig.failed, rig.commits.asks_at) == ([("commit", 1, b"a"), ("commit", 2, b"b")], [], None)


def test_what_was_not_done_in_doubt_is_owed_and_kept_if_the_doubt_lasts_to_the_end(rig):
    rig.told.looks_again = True
    rig.complete(1, part(1, b"a"))
    rig.looks = [None, AWAY]
    rig.background.perform()
    rig.looks = [AWAY, AWAY]
    rig.commits.end()
    rig.background.perform()
    assert rig.story == [("close", True)]


def test_what_was_not_done_in_doubt_is_done_when_the_job_ends(rig):
    rig.told.looks_again = True
    rig.complete(1, part(1, b"a"))
    rig.looks = [None, AWAY]
    rig.background.perform()
    rig.commits.end()
    rig.background.perform()
    assert rig.story == [("commit", 1, b"a"), ("abandon", 1), ("close", False)]


def test_a_driver_that_takes_over_lets_go_of_what_others_prepared_and_no_checkpoint_names():
    rig = Rig(runs=False, first_id=CheckpointId(65), keeps=True)
    rig.commits.start(msgspec.msgpack.encode(2), [part(3, b"c")], parallelism=2)
    rig.commits.run()
    rig.background.perform()
    rig.commits.end()
    rig.background.perform()
    assert rig.story == [("abandon", 64, b"c"), ("commit", 3, b"c"), ("abandon", 64), ("close", False)]


@pytest.mark.parametrize(("keeps", "story"), [(False, [("abandon", 64), ("close", False)]), (True, [("close", True)])])
def test_what_drivers_before_left_stays_if_a_checkpoint_may_promise_it_that_was_never_restored(keeps, story):
    """The job had ended with one of them, or ends before the first attempt of this one."""
    rig = Rig(runs=False, first_id=CheckpointId(65), keeps=keeps)
    rig.commits.end()
    rig.background.perform()
    assert rig.story == story


# --- an enumerator ---------------------------------------------------------------------------------------------------


class Asked(SplitEnumerator):
    def __init__(self) -> None:
        self.story: list[str] = []

    def start(self, position):
        self.story.append("start")

    def discover(self, position):
        self.story.append("discover")
        return Found(position=b"1", wait_ms=10)

    def consumed(self, position, unread):
        self.story.append("consumed")

    def close(self):
        self.story.append("close")


def test_an_enumerator_is_asked_nothing_when_the_job_is_lost_and_is_closed():
    background, enumerator, lost = Later(), Asked(), []
    looks: list[Exception] = []

    def look():
        if looks:
            raise looks[0]

    host = CoordinatorHost(
        name="numbers",
        background=background,
        say=lambda *_: None,
        fail=lambda cause: lost.append(cause.text),
        guard=Guard(Hold(look), lambda: lost.append("lost")),
    )
    assigner = SplitAssigner(host, enumerator)
    assigner.start(None, (), parallelism=1)
    assigner.run()
    background.perform(count=2)
    assigner.snapshot(CheckpointId(1))
    assigner.turn(Instant(1_000))
    assigner.completed(CheckpointId(1), ())
    looks.append(JobTakenOver("another driver has it"))
    background.perform()
    assigner.end()
    background.perform()
    assert enumerator.story == ["start", "discover", "close"]
    assert set(lost) == {"lost"}


# --- two drivers of a whole job --------------------------------------------------------------------------------------

SCHEMA = pa.schema([("row", pa.int64())])


class Counting(SourceReader):
    """Counts until the gate is open."""

    def __init__(self, splits, gate: Path) -> None:
        self._next = [int(split) for split in splits]
        self._gate = gate

    def poll(self, max_rows, now_ms):
        if not self._next:
            return End()
        if now_ms % 2:
            return Pause(1)
        first = self._next[0]
        rows = range(first, first + 3)
        self._next = [] if self._gate.exists() else [rows.stop]
        return pa.record_batch({"row": list(rows)}, schema=SCHEMA)

    def snapshot(self):
        return [b"%d" % number for number in self._next]


class Counted(Source):
    schema = SCHEMA

    def __init__(self, gate: Path) -> None:
        self._gate = gate

    def splits(self, parallelism):
        return []

    def open(self, splits):
        return Counting(splits, self._gate)


class Rows(SinkWriter):
    def __init__(self) -> None:
        self._rows: list[int] = []

    def write(self, batch):
        self._rows += batch.column(0).to_pylist()

    def prepare(self, checkpoint):
        rows, self._rows = self._rows, []
        return lambda: [msgspec.msgpack.encode(rows)] if rows else []


class Ledger(Sink, Committer):
    """What one driver committed."""

    commits_on_driver = True

    def __init__(self) -> None:
        self.calls: list[tuple[int, list[int]]] = []
        self.closed: list[bool] = []

    def __reduce__(self):
        return Ledger, ()

    def writer(self, context):
        return Rows()

    def committer(self):
        return self

    def commit(self, checkpoint, committables):
        rows = sorted(row for part in committables for row in msgspec.msgpack.decode(part))
        self.calls.append((checkpoint, rows))

    def close(self, *, owes):
        self.closed.append(owes)


class Sleeping(ThreadBackground):
    """A background that can be put to sleep between two pieces of work."""

    def __init__(self) -> None:
        super().__init__(lambda: None, name="background-sleeping")
        self.awake = threading.Event()
        self.awake.set()
        self.waiting = threading.Event()

    def submit(self, work: Callable[[], object], done: Callable[[WorkResult], None]) -> None:
        def when_awake() -> object:
            if not self.awake.is_set():
                self.waiting.set()
            self.awake.wait()
            return work()

        super().submit(when_awake, done)


class FellAsleep(Exception):
    pass


def plan_of(gate: Path, sink: Sink):
    read = ReadStep(source=Counted(gate), splits=(b"0",))
    nodes = (
        Node(number=0, operator=OperatorId("rows"), name="rows", step=read, inputs=(), is_source=True),
        Node(
            number=1,
            operator=OperatorId("sink"),
            name="sink",
            step=WriteStep(sink=sink, schema=SCHEMA),
            inputs=(Input(node=0, partitioning=Partitioning.HASH, keys=("row",)),),
            is_source=False,
        ),
    )
    return build_plan(nodes, parallelism=2, max_parallelism=None)


def test_of_two_drivers_that_both_have_something_to_commit_only_the_one_that_has_the_job_does(threaded_job, tmp_path):
    """1. The first driver has committed, and falls asleep with a commit before it. 2. The second takes the job over,
    makes that commit and all that follow, and the job ends. 3. The first wakes up, and commits nothing."""
    folder, gate = layout.job_folder(JobId("job-1")), tmp_path / "gate"
    ledgers, worker = [Ledger(), Ledger()], Sleeping()
    store = threaded_job(plan_of(gate, Ledger()), settings(), job="unused").store
    first = threaded_job(
        plan_of(gate, ledgers[0]), settings(), tenure=take_over(store, folder), workers=lambda _: worker
    )

    def fall_asleep(_):
        if len(ledgers[0].calls) >= 2:
            worker.awake.clear()
        if worker.waiting.is_set():
            raise FellAsleep

    with pytest.raises(FellAsleep):
        first.run(fall_asleep)
    before = list(ledgers[0].calls)
    tenure = take_over(store, folder)
    assert tenure.completed
    second = threaded_job(plan_of(gate, ledgers[1]), settings(), tenure=tenure)

    def open_gate(_):
        if len(ledgers[1].calls) >= 3:
            gate.touch()

    assert second.run(open_gate) is JobState.FINISHED, second.driver.view().failures

    worker.awake.set()
    assert first.go_on() is JobState.SUSPENDED
    worker.close()
    assert ledgers[0].calls == before
    assert [ledger.closed for ledger in ledgers] == [[True], [False]]
    committed: dict[int, list[int]] = {}
    for checkpoint, rows in (*before, *ledgers[1].calls):
        assert committed.setdefault(checkpoint, rows) == rows
    shown = sorted(row for rows in committed.values() for row in rows)
    assert shown == list(range(len(shown)))
