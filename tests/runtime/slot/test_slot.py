"""A slot between a scripted master and a scripted peer: nothing that they say, and no task, ends its loop."""

from __future__ import annotations

import cloudpickle
import polars as pl
import pyarrow as pa
import pytest
import xxhash
from slot_rig import (
    NEXT_PEER,
    OPENED,
    PEER,
    SCHEMA,
    SCRIPT,
    SILENCE_MS,
    SLOT,
    WINDOW,
    WRITTEN,
    Other,
    ScriptSource,
    Stage,
    address_of,
    peers,
    plan,
    rows,
)

from penstock.api.connector import End
from penstock.api.steps import WhereStep
from penstock.core.barrier.events import AlignmentMetrics
from penstock.core.elements import Barrier, EndOfData, EndOfPartition, Watermark
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, OperatorId
from penstock.core.messages import (
    Acknowledge,
    Cancelled,
    CancelTasks,
    Credit,
    Decline,
    Heartbeat,
    Leave,
    Leaving,
    LetEnd,
    NotifyAborted,
    NotifyComplete,
    OperatorEvent,
    OperatorEventTaken,
    PeerAddress,
    PeerAlive,
    PeerGone,
    Ready,
    Register,
    Run,
    SnapshotMetrics,
    StateFile,
    TaskFailed,
    TaskFinished,
    TriggerCheckpoint,
    WantsToEnd,
)
from penstock.core.recovery import layout
from penstock.core.task.events import AcknowledgeSnapshot
from penstock.runtime.slot.master_link import NO_EPOCH
from penstock.runtime.task.subtask import Task
from penstock.wire.codec import (
    BatchCodec,
    decode_credit,
    decode_element,
    decode_to_master,
    encode_element,
    encode_message,
)
from penstock.wire.frames import Channel, Header, Kind, pack


@pytest.fixture
def stage():
    for shared in (SCRIPT, WRITTEN, OPENED):
        shared.clear()
    return Stage()


# --- the master ------------------------------------------------------------------------------------------------------


def test_a_slot_calls_in_first_of_all(stage):
    stage.turn(1)
    (registered,) = stage.answers()
    assert registered == Register(slot=SLOT, host="here", pid=1, ipc_address="ipc", tcp_address=None)


def test_a_slot_is_ready_when_its_tasks_are_open_and_reads_nothing_before_it_is_told_to_run(stage):
    SCRIPT.append(rows(1))
    stage.turn()
    stage.answers()
    assert stage.order(stage.deploy()) == [Ready(slot=SLOT, epoch=Epoch(1))]
    assert sorted(OPENED) == ["source", "writer"]
    assert len(SCRIPT) == 1
    stage.order(Run(epoch=Epoch(1)))
    assert len(SCRIPT) == 0
    assert WRITTEN == [1]


def test_an_older_deployment_is_ignored(stage):
    stage.run(epoch=2)
    assert stage.order(stage.deploy(1)) == []
    assert len(OPENED) == 2


def test_a_cancelled_slot_has_no_tasks_and_says_so(stage):
    stage.run()
    assert stage.order(CancelTasks(epoch=Epoch(1))) == [Cancelled(slot=SLOT, epoch=Epoch(1))]
    SCRIPT.append(rows(1))
    stage.turn()
    assert WRITTEN == []


def test_a_slot_leaves_as_told(stage):
    stage.run()
    assert stage.order(Leave()) == [Leaving(slot=SLOT)]
    assert (stage.driver.left, stage.driver.error) == (True, None)


def test_a_slot_that_does_not_hear_of_its_master_leaves(stage):
    stage.run()
    stage.clock.time += 2_499
    stage.turn()
    assert not stage.driver.left
    stage.clock.time += 1
    stage.turn()
    assert stage.driver.left
    assert "heard nothing from the master for" in stage.driver.error


@pytest.mark.parametrize("payload", [b"", b"\xc1\xc1", encode_message(Leaving(slot=SLOT)), b"\x91" * 10_000])
def test_a_slot_whose_master_cannot_be_understood_leaves(stage, payload):
    stage.run()
    stage.master.links.send(str(SLOT), Kind.CONTROL, payload, epoch=NO_EPOCH)
    stage.turn()
    assert stage.driver.left
    assert "the link to the master broke" in stage.driver.error


def trigger_of(task, epoch):
    return TriggerCheckpoint(epoch=Epoch(epoch), task=task, checkpoint=CheckpointId(1), timestamp=Instant(0))


def assert_declines(stage, task, epoch):
    """The master learns it at once, and of the attempt that it meant."""
    (answer,) = stage.order(trigger_of(task, epoch))
    assert isinstance(answer, Decline)
    assert (answer.task, answer.epoch, answer.checkpoint) == (task, epoch, 1)
    assert (answer.reason.counts, answer.error) == (False, f"{SLOT} does not run the task")


def test_a_checkpoint_of_another_attempt_is_declined(stage):
    stage.run(epoch=2)
    task = plan().tasks_of_slot(0)[0]
    assert_declines(stage, task, 1)
    assert_declines(stage, task, 3)
    assert [type(answer) for answer in stage.order(trigger_of(task, 2))] == [Acknowledge]


def test_a_checkpoint_for_a_task_that_is_not_there_is_declined(stage):
    task = plan().tasks_of_slot(0)[0]
    stage.turn()
    stage.answers()
    assert_declines(stage, task, 1)
    stage.run()
    stage.order(CancelTasks(epoch=Epoch(1), tasks=(task,)))
    assert_declines(stage, task, 1)
    stage.order(CancelTasks(epoch=Epoch(1)))
    assert_declines(stage, task, 1)


def test_the_master_is_told_all_that_was_measured(stage):
    stage.run()
    task = plan().tasks_of_slot(0)[0]
    effect = AcknowledgeSnapshot(
        checkpoint=CheckpointId(4),
        state=None,
        metrics=AlignmentMetrics(start_delay_ms=1, alignment_ms=2, bytes_processed=3, unaligned=True, rows_in=8),
        sync_ms=4.0,
        async_ms=5.0,
        checkpointed_bytes=6,
        bytes_persisted=7,
    )
    stage.driver._host.acknowledge(task, effect)
    (told,) = stage.answers()
    assert told.metrics == SnapshotMetrics(
        start_delay_ms=1,
        alignment_ms=2,
        bytes_processed=3,
        unaligned=True,
        sync_ms=4.0,
        async_ms=5.0,
        checkpointed_bytes=6,
        bytes_persisted=7,
        rows_in=8,
    )


def aborted(task, checkpoint, epoch=1):
    return NotifyAborted(epoch=Epoch(epoch), task=task, checkpoint=CheckpointId(checkpoint))


def test_copies_of_an_aborted_checkpoint_are_let_go(stage):
    """By the news for any task, of any attempt: nobody will restore it."""
    stage.run()
    task = plan().tasks_of_slot(0)[0]
    copies, folder = stage.driver._host.copies, layout.job_folder(JobId("job"))
    files = {}
    for checkpoint in (4, 5):
        path = f"{layout.checkpoint_folder(folder, CheckpointId(checkpoint))}/part"
        copies.keep(path, b"state")
        files[checkpoint] = StateFile(path=path, size=5, checksum=xxhash.xxh3_64_intdigest(b"state"))
    stage.order(aborted(task, 4, epoch=9))
    assert copies.get(files[4]) is None
    assert copies.get(files[5]) == b"state"


def test_copies_of_checkpoints_before_a_completed_one_are_let_go(stage):
    stage.run()
    task = plan().tasks_of_slot(0)[0]
    copies, folder = stage.driver._host.copies, layout.job_folder(JobId("job"))
    files = {}
    for checkpoint in (4, 5):
        path = f"{layout.checkpoint_folder(folder, CheckpointId(checkpoint))}/part"
        copies.keep(path, b"state")
        files[checkpoint] = StateFile(path=path, size=5, checksum=xxhash.xxh3_64_intdigest(b"state"))
    stage.order(NotifyComplete(epoch=Epoch(1), task=task, checkpoint=CheckpointId(5)))
    assert copies.get(files[4]) is None
    assert copies.get(files[5]) == b"state"


def event_for(task, epoch=1, operator="nobody"):
    return OperatorEvent(epoch=Epoch(epoch), task=task, operator=OperatorId(operator), number=7, event=b"x")


def test_an_event_counts_as_delivered_only_to_a_task_that_is_there_and_took_it(stage, monkeypatch):
    task = plan().tasks_of_slot(0)[0]

    def delivered(message):
        return [a.delivered for a in stage.order(message) if isinstance(a, OperatorEventTaken)]

    assert delivered(event_for(task)) == [False]
    stage.run()
    assert delivered(event_for(task)) == [True]
    assert delivered(event_for(task, epoch=2)) == [False]
    with monkeypatch.context() as broken:
        broken.setattr(Task, "handle_event", lambda self, operator, event: 1 / 0)
        assert delivered(event_for(task)) == [False]
    assert delivered(event_for(task)) == [False]
    stage.run(epoch=2)
    stage.order(CancelTasks(epoch=Epoch(2)))
    assert delivered(event_for(task, epoch=2)) == [False]


# --- deployments that fail -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"plan": b"not a plan"},
        {"restore": {str(plan().tasks_of_slot(0)[0]): b"\xc1"}},
        {"peers": peers(PeerAddress(slot=PEER, host="there", ipc_address=None, tcp_address=None))},
        {"peers": peers(PeerAddress(slot=PEER, host="here", ipc_address="nowhere", tcp_address=None))},
    ],
    ids=["plan", "state", "peer without an address", "peer out of reach"],
)
def test_a_deployment_that_cannot_be_done_fails_the_attempt_and_the_next_one_is_done(stage, changes):
    stage.turn()
    stage.answers()
    (failed,) = stage.order(stage.deploy(1, **changes))
    assert isinstance(failed, TaskFailed)
    assert failed.epoch == 1
    assert stage.order(stage.deploy(2)) == [Ready(slot=SLOT, epoch=Epoch(2))]


def test_when_one_task_cannot_be_opened_none_is(stage):
    """Tasks are opened in the order of the plan: the source first. What came after it would never be closed."""
    OPENED.append("refuse")
    stage.turn()
    stage.answers()
    (failed,) = stage.order(stage.deploy())
    assert "cannot be reached" in failed.error
    assert OPENED == ["refuse"]


# --- the peer --------------------------------------------------------------------------------------------------------


def test_records_of_a_peer_are_processed_and_their_credit_is_given_back(stage):
    stage.run()
    assert stage.batch(1, -2, 3) == []
    assert WRITTEN == [1, 3]
    assert [p.header.kind for p in stage.peer.hear()] == [Kind.CREDIT]


def test_records_go_to_a_peer_when_it_has_granted_credit(stage):
    SCRIPT.extend([rows(1), rows(2)])
    stage.run()
    assert WRITTEN == [1]
    stage.credit(WINDOW)
    (packet,) = stage.peer.hear()
    assert BatchCodec(SCHEMA).decode(packet.payload).column(0).to_pylist() == [2]
    assert packet.header.cost == 8


def test_tasks_that_are_restarted_beside_others_hear_only_what_is_of_their_own_attempt(stage):
    """The link goes on counting in its epoch; what the dropped tasks of the peer had sent still arrives."""
    stage.run()
    tasks = plan().tasks_of_slot(0)
    assert stage.order(CancelTasks(epoch=Epoch(1), tasks=tasks)) == [Cancelled(slot=SLOT, epoch=Epoch(1), tasks=tasks)]
    assert stage.batch(1) == []
    again = stage.deploy(2, beside_others=True, plan=b"", peers=())
    assert stage.order(again, Run(epoch=Epoch(2))) == [Ready(slot=SLOT, epoch=Epoch(2))]
    assert stage.batch(3) == []
    assert WRITTEN == []
    assert stage.batch(5, attempt=Epoch(2)) == []
    assert WRITTEN == [5]


def test_a_slot_that_comes_to_others_that_go_on_speaks_in_the_epoch_of_their_links(stage):
    joining = stage.deploy(5, attempt=Epoch(3), beside_others=True)
    stage.turn()
    stage.answers()
    assert stage.order(joining, Run(epoch=Epoch(5))) == [Ready(slot=SLOT, epoch=Epoch(5))]
    # Of tasks that it has replaced, then of those that are joined to its own.
    stage.batch(1, epoch=3)
    stage.batch(2, epoch=3, attempt=Epoch(5))
    assert WRITTEN == [2]
    stage.clock.time += 200
    stage.turn()
    beats = [decode_to_master(p.payload) for p in stage.master.hear() if p.header.kind is Kind.CONTROL]
    assert [beat.epoch for beat in beats if isinstance(beat, Heartbeat)] == [Epoch(3)]


def test_a_slot_that_stays_learns_who_has_the_place_of_the_lost_one_with_its_tasks(stage):
    """What the lost one still says is not listened to; what is sent goes to its successor, and links count on."""
    stage.run()
    successor = Other(stage.hub, str(NEXT_PEER))
    stage.order(CancelTasks(epoch=Epoch(1), tasks=plan().tasks_of_slot(0)))
    SCRIPT.extend([rows(3), rows(4)])
    stage.order(PeerGone(slot=PEER))
    again = stage.deploy(2, beside_others=True, plan=b"", peers=peers(address_of(NEXT_PEER)))
    stage.order(again, Run(epoch=Epoch(2)))
    successor.hear()
    credit = encode_message(Credit(epoch=Epoch(2), edge=0, upstream=0, downstream=1, bytes_granted=WINDOW))
    successor.links.send(str(SLOT), Kind.CREDIT, credit, epoch=Epoch(1))
    stage.turn()
    (packet,) = [packet for packet in successor.hear() if packet.header.kind is Kind.BATCH]
    assert (packet.header.epoch, packet.header.attempt) == (1, 2)
    assert BatchCodec(SCHEMA).decode(packet.payload).column(0).to_pylist() == [4]
    WRITTEN.clear()
    assert stage.batch(5) == stage.batch(6, attempt=Epoch(1)) == stage.batch(7, channel=(0, 7, 0)) == []
    assert WRITTEN == []


def test_a_slot_whose_other_tasks_go_on_listens_no_more_to_one_that_is_gone_and_does_not_miss_it(stage):
    """Its successor may take longer to come up than a peer may be silent."""
    stage.run()
    tasks = plan().tasks_of_slot(0)
    stage.order(CancelTasks(epoch=Epoch(1), tasks=tasks[1:]))
    assert stage.order(PeerGone(slot=PEER)) == []
    assert stage.batch(1, channel=(0, 7, 0)) == []
    stage.peer.hear()
    assert stage.let_pass(2 * SILENCE_MS) == []
    # Nor does it go on telling it that it lives.
    assert stage.peer.hear() == []


def test_a_slot_has_nothing_to_do_with_those_whose_tasks_nothing_joins_to_its_own(stage):
    """It need not be able to reach them, sends them nothing, and expects nothing from them. So whoever is replaced, or
    comes, while its tasks go on, need not be told to it, nor it to them."""
    apart = cloudpickle.dumps(plan(joined=False))
    nowhere = PeerAddress(slot=PEER, host="there", ipc_address=None, tcp_address=None)
    stage.turn()
    stage.answers()
    deploy = stage.deploy(1, plan=apart, tasks=plan(joined=False).tasks_of_slot(0), peers=peers(nowhere))
    assert stage.order(deploy, Run(epoch=Epoch(1))) == [Ready(slot=SLOT, epoch=Epoch(1))]
    assert stage.let_pass(2 * SILENCE_MS) == []
    assert stage.peer.hear() == []
    # What comes from it, by mistake, breaks no link: there is none.
    assert stage.from_peer(Kind.CREDIT, b"\xc1") == []


def test_a_slot_that_has_no_neighbours_any_more_in_the_next_attempt_is_disturbed_by_none_of_before(stage):
    """The order of packets is not known to who has forgotten their sender."""
    stage.run()
    stage.batch(1)
    apart = cloudpickle.dumps(plan(joined=False))
    tasks = plan(joined=False).tasks_of_slot(0)
    assert stage.order(stage.deploy(2, plan=apart, tasks=tasks), Run(epoch=Epoch(2))) == [
        Ready(slot=SLOT, epoch=Epoch(2))
    ]
    assert stage.batch(2) == stage.batch(3) == []
    assert WRITTEN == [1]


@pytest.mark.parametrize("epoch", [0, 2])
def test_packets_of_another_attempt_are_dropped(stage, epoch):
    stage.run()
    assert stage.batch(1, epoch=epoch) == []
    assert WRITTEN == []


@pytest.mark.parametrize("epoch", [1, 3])
@pytest.mark.parametrize("kind", [Kind.BATCH, Kind.ELEMENT, Kind.CREDIT])
def test_packets_of_another_attempt_may_be_of_channels_that_this_one_does_not_have(stage, epoch, kind):
    """The job had another parallelism then, or will have: that is nobody's fault, and breaks no link."""
    stage.run(epoch=2)
    if kind is Kind.CREDIT:
        credit = Credit(epoch=Epoch(epoch), edge=0, upstream=3, downstream=1, bytes_granted=8)
        assert stage.from_peer(kind, encode_message(credit), epoch=epoch) == []
    else:
        payload = BatchCodec(SCHEMA).encode(rows(1)) if kind is Kind.BATCH else encode_element(EndOfData())
        assert stage.from_peer(kind, payload, channel=Channel(0, 3, 0), epoch=epoch) == []


def test_a_peer_that_cannot_be_reached_fails_the_attempt_when_the_master_would_have_found_it_hanging(stage):
    stage.run()
    begun, told = stage.clock.time, stage.let_pass(9 * SILENCE_MS)
    silent_ms = stage.clock.time - begun
    assert f"nothing came for {silent_ms} ms; check that the two hosts can reach each other" in broken_by(told)
    assert silent_ms >= SILENCE_MS
    assert not stage.driver.left


def test_a_peer_that_the_master_hears_of_is_not_missed(stage):
    """Native code in the peer holds Python's lock: only its dumps reach the master."""
    stage.run()
    for _ in range(9):
        assert stage.let_pass(SILENCE_MS // 2) == []
        assert stage.order(PeerAlive(slot=PEER)) == []
    assert "nothing came for" in broken_by(stage.let_pass(2 * SILENCE_MS))


def test_a_peer_that_does_not_know_of_the_attempt_yet_is_not_missed_before_the_attempt_runs(stage):
    """1. The peer is in user code when it is deployed. 2. It has no link to keep alive, and may take as long as a
    deployment. 3. When the attempt runs, it was ready."""
    stage.turn()
    stage.answers()
    stage.order(stage.deploy(1))
    assert stage.let_pass(3 * SILENCE_MS) == []
    stage.order(Run(epoch=Epoch(1)))
    assert "nothing came for" in broken_by(stage.let_pass(2 * SILENCE_MS))


def broken_by(answers):
    """The text of the only answer, which must be that a link broke."""
    (failed,) = answers
    assert isinstance(failed, TaskFailed)
    assert failed.error.startswith(f"LinkBroken: the link from {SLOT} on here to {PEER} on here broke: ")
    return failed.error


@pytest.mark.parametrize(
    ("kind", "payload", "channel"),
    [
        (Kind.CREDIT, b"\xc1", None),
        (Kind.CREDIT, b"", None),
        (Kind.BATCH, b"no batch", Channel(0, 1, 0)),
        (Kind.BATCH, b"", Channel(0, 1, 0)),
        (Kind.ELEMENT, b"\xc1", Channel(0, 1, 0)),
        (Kind.ELEMENT, encode_message(Leaving(slot=PEER)), Channel(0, 1, 0)),
    ],
)
def test_what_cannot_be_read_breaks_the_link_and_the_loop_goes_on(stage, kind, payload, channel):
    stage.run()
    assert "could not be read" in broken_by(stage.from_peer(kind, payload, channel=channel))
    assert not stage.driver.left
    assert stage.order(stage.deploy(2)) == [Ready(slot=SLOT, epoch=Epoch(2))]


@pytest.mark.parametrize("channel", [(0, 1, 1), (0, 7, 0), (99, 1, 0)])
def test_an_item_in_a_channel_that_nobody_reads_breaks_the_link(stage, channel):
    stage.run()
    assert "which no task of" in broken_by(stage.batch(1, channel=channel))


@pytest.mark.parametrize("key", [{"edge": 99}, {"edge": -1}, {"upstream": 1}, {"downstream": 7}])
def test_credit_for_a_channel_that_nobody_writes_breaks_the_link(stage, key):
    stage.run()
    assert "which no task of" in broken_by(stage.credit(8, **key))


@pytest.mark.parametrize("granted", [0, -8, WINDOW + 1])
def test_credit_that_cannot_be_breaks_the_link(stage, granted):
    stage.run()
    assert f"credit of {granted} bytes" in broken_by(stage.credit(granted))


def test_an_item_behind_the_end_of_its_channel_breaks_the_link(stage):
    stage.run()
    stage.from_peer(Kind.ELEMENT, encode_element(EndOfPartition()), channel=Channel(0, 1, 0))
    assert "after the end of the channel" in broken_by(stage.batch(1))


def test_lost_packets_break_the_link(stage):
    stage.run()
    stage.hub.inboxes[str(SLOT)].append(
        (str(PEER), pack(Header(sequence=3, epoch=Epoch(1), kind=Kind.CREDIT), b"never looked at"))
    )
    stage.turn()
    assert "3 packets" in broken_by(stage.answers())


def test_a_stranger_cannot_break_anything(stage):
    stage.run()
    stage.hub.inboxes[str(SLOT)].append(("slot-9.9.9", [b"nonsense"]))
    stage.turn()
    assert stage.answers() == []


def test_what_a_peer_still_sends_when_the_attempt_has_ended_here_is_ignored(stage):
    stage.run()
    stage.order(CancelTasks(epoch=Epoch(1)))
    assert stage.batch(1) == []
    assert stage.credit(8) == []
    assert stage.from_peer(Kind.CREDIT, b"\xc1") == []


def test_what_a_peer_sends_to_tasks_that_could_not_be_made_breaks_nothing(stage):
    """The peer is ready before the slot has told that its own deployment failed; the next attempt needs the link."""
    *_, failed = stage.order(stage.deploy(plan=b"nonsense"))
    assert isinstance(failed, TaskFailed)
    assert stage.batch(1) == []
    assert stage.credit(8) == []
    stage.order(stage.deploy(2), Run(epoch=Epoch(2)))
    stage.batch(7, epoch=2)
    assert WRITTEN == [7]


# --- the tasks -------------------------------------------------------------------------------------------------------


def test_a_task_that_raises_fails_the_attempt_and_nothing_goes_on(stage):
    SCRIPT.extend([rows(1), "no batch", rows(3)])
    stage.turn()
    stage.answers()
    ready, failed = stage.order(stage.deploy(), Run(epoch=Epoch(1)))
    assert (type(ready), type(failed)) == (Ready, TaskFailed)
    assert failed.task == plan().tasks_of_slot(0)[0]
    stage.turn()
    assert list(SCRIPT) == [rows(3)]


def test_records_that_cannot_be_sent_fail_the_attempt_and_not_the_loop(stage):
    """What does not fit the stream's schema is found when credit comes, outside of any step."""
    wrong = pa.schema([pa.field("other", pa.string())])
    made = plan(WhereStep(condition=pl.lit(value=True), schema=SCHEMA))
    object.__setattr__(made.vertices[0].operators[0].step, "source", WrongSource(wrong))
    SCRIPT.extend([rows(1), rows(2)])
    stage.turn()
    stage.answers()
    stage.order(stage.deploy(plan=cloudpickle.dumps(made)), Run(epoch=Epoch(1)))
    (failed,) = stage.credit(WINDOW)
    assert "InvariantError" in failed.error
    assert failed.task.vertex == made.vertices[0].vertex
    assert not stage.driver.left


class WrongSource(ScriptSource):
    """Says one schema to those who plan, and another to those who read."""

    def __init__(self, schema):
        self._answers = [schema]

    @property
    def schema(self):
        return self._answers.pop() if self._answers else SCHEMA


def test_a_barrier_goes_to_local_and_remote_readers_alike(stage):
    stage.run()
    stage.credit(WINDOW)
    task = plan().tasks_of_slot(0)[0]
    order = TriggerCheckpoint(epoch=Epoch(1), task=task, checkpoint=CheckpointId(1), timestamp=Instant(0))
    stage.order(order)
    expected = Barrier(checkpoint=CheckpointId(1), timestamp=Instant(0))
    assert [decode_element(p.payload) for p in stage.peer.hear() if p.header.kind is Kind.ELEMENT] == [expected]
    (acknowledged,) = stage.from_peer(Kind.ELEMENT, encode_element(expected), channel=Channel(0, 1, 0))
    assert acknowledged.task == plan().tasks_of_slot(0)[1]


def test_a_slot_with_nothing_to_do_asks_for_its_next_turn_in_the_future(stage):
    SCRIPT.append(rows(1))
    stage.run()
    stage.from_peer(Kind.ELEMENT, encode_element(Watermark(time_us=1)), channel=Channel(0, 1, 0))
    assert stage.turn() > stage.clock.now()


def test_a_source_at_its_end_is_reported(stage):
    SCRIPT.append(End())
    stage.turn()
    stage.answers()
    answers = stage.order(stage.deploy(), Run(epoch=Epoch(1)))
    assert [type(answer).__name__ for answer in answers] == ["Ready", "DataEnded"]


def test_a_peer_is_told_when_its_data_has_been_processed_to_its_end(stage):
    stage.run()
    stage.batch(1)
    stage.peer.hear()
    stage.from_peer(Kind.ELEMENT, encode_element(EndOfData()), channel=Channel(0, 1, 0))
    (packet,) = stage.peer.hear()
    credit = decode_credit(packet.payload)
    assert (credit.upstream, credit.downstream, credit.bytes_granted, credit.data_taken) == (1, 0, 0, True)


def test_a_task_ends_when_the_slots_downstream_have_processed_its_data_and_the_master_agrees(stage):
    """Its local reader has done so at once; the reader in the other slot takes its time."""
    SCRIPT.append(End())
    stage.run()
    source = plan().tasks_of_slot(0)[0]
    stage.credit(WINDOW)
    stage.order(trigger_of(source, 1))
    stage.peer.hear()
    assert stage.order(NotifyComplete(epoch=Epoch(1), task=source, checkpoint=CheckpointId(1))) == []
    answers = stage.credit(0, data_taken=True)
    assert answers == [WantsToEnd(slot=SLOT, epoch=Epoch(1), task=source)]
    assert stage.order(LetEnd(epoch=Epoch(2), task=source)) == []
    answers = stage.order(LetEnd(epoch=Epoch(1), task=source))
    assert answers[0] == TaskFinished(slot=SLOT, epoch=Epoch(1), task=source)
    assert [decode_element(packet.payload) for packet in stage.peer.hear()] == [EndOfPartition()]


def test_data_that_was_taken_before_its_end_was_sent_breaks_the_link(stage):
    stage.run()
    assert "was said to be processed before the end of the data was sent" in broken_by(stage.credit(0, data_taken=True))
