"""The master with scripted slots: what they say wrong costs them their place, and an end is an end."""

from __future__ import annotations

import re
from dataclasses import replace

import pyarrow as pa
import pytest
from completed_records import completed
from held_work import HeldWork
from master_rig import Clock, Cluster, Files, Slot, Wires

from penstock.api.connector import End, Sink, SinkWriter, Source, SourceReader
from penstock.api.program import Program
from penstock.core.coordinator.events import RequestKind
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, SlotId, SlotIndex, Term
from penstock.core.job.events import JobState
from penstock.core.messages import (
    Acknowledge,
    Cancelled,
    CancelTasks,
    Decline,
    Deploy,
    Heartbeat,
    Leave,
    Leaving,
    LoopStuck,
    NotifyAborted,
    PeerAlive,
    Ready,
    Run,
    TaskFailed,
    TriggerCheckpoint,
)
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery import layout
from penstock.core.recovery.metadata import DiscardRules
from penstock.core.recovery.tenure import EPOCHS_PER_TERM, Inheritance, JobOutcome, Tenure
from penstock.ports import SlotEnded
from penstock.runtime.master.driver import MasterDriver, MasterPorts, SnapshotRequest
from penstock.runtime.master.slot_links import NO_EPOCH
from penstock.settings import CheckpointSettings, FixedDelay, JobSettings, Retention
from penstock.storage.tenure import inheritance_format, take_over
from penstock.wire.codec import encode_message
from penstock.wire.frames import Header, Kind, pack

SCHEMA = pa.schema([pa.field("n", pa.int64())])
SETTINGS = JobSettings(
    parallelism=2,
    checkpoint=CheckpointSettings(interval_ms=100),
    restart=FixedDelay(attempts=10, delay_ms=0),
)


class NoReader(SourceReader):
    def poll(self, max_rows, now_ms):
        return End()

    def snapshot(self):
        return []


class NoSource(Source):
    @property
    def schema(self):
        return SCHEMA

    def splits(self, parallelism):
        return []

    def open(self, splits):
        return NoReader()


class NotingSink(Sink):
    def __init__(self, name, ended):
        self._name = name
        self._ended = ended

    @property
    def name(self):
        return self._name

    def writer(self, context) -> SinkWriter:
        raise NotImplementedError

    def commit(self, committables):
        raise NotImplementedError

    def end(self, job):
        self._ended.append((self._name, job))
        if self._name == "broken":
            raise OSError("the target is gone")


FOLDER = layout.job_folder(JobId("job"))


class Stage:
    """A master of a job with two slots."""

    def __init__(self, settings=SETTINGS, *, tenure=None, store=None):
        self.time = 1_000
        self.wires, self.background, self.cluster = Wires(), HeldWork(), Cluster()
        self.store = Files() if store is None else store
        self.ended = []
        if tenure is not None:
            self.claim(tenure.term)
            found = Inheritance(first_id=tenure.next_id, completed=tenure.completed, outcome=tenure.outcome)
            self.store[layout.tenure_file(FOLDER, tenure.term)] = inheritance_format.encode(found)
        program = Program(settings)
        stream = program.read(NoSource())
        stream.write(NotingSink("broken", self.ended))
        stream.write(NotingSink("sound", self.ended))
        self.driver = MasterDriver(
            job=JobId("job"),
            plan=program.plan(),
            settings=settings,
            ports=MasterPorts(
                clock=Clock(self),
                transport=self.wires,
                background=self.background,
                store=self.store,
                slots=self.cluster,
            ),
            draws=(0.9,),
            tenure=tenure,
        )
        self.driver.start(Instant(self.time))

    def claim(self, term):
        """A driver takes the job over."""
        self.store[layout.counted_file(layout.drivers_folder(FOLDER), term + 1)] = b""

    @property
    def left(self):
        """What is left of the job, but for what tells drivers how it ended."""
        return [path for path in self.store if not layout.outlives_the_job(FOLDER, path.rpartition("/")[0])]

    def turn(self, times=3):
        for _ in range(times):
            self.driver.turn(Instant(self.time))
            self.driver.validate()

    def slot(self, number, incarnation=1, attempt=0):
        return Slot(self.wires, SlotId(SlotIndex(number), incarnation, attempt))

    def running(self):
        """Both slots, after they have been told to run."""
        slots = [self.slot(0).register(), self.slot(1).register()]
        self.turn()
        for slot in slots:
            assert [type(message) for message in slot.hears()] == [Deploy]
            slot.say(Ready(slot=slot.slot, epoch=Epoch(1)))
        self.turn()
        for slot in slots:
            assert slot.hears() == [Run(epoch=Epoch(1))]
        return slots

    def end(self):
        """Let time pass until the job has ended, whatever has to be tried again for it."""
        for _ in range(1_000):
            self.turn(1)
            if self.driver.outcome is not None:
                return
            self.time += 500
        raise AssertionError(f"the job does not end, it is {self.state}")

    @property
    def state(self):
        return self.driver.view().state


@pytest.fixture
def stage():
    return Stage()


def test_a_checkpoint_that_is_asked_for_between_two_turns_begins_when_it_is_asked_for(stage):
    """Its age counts for its time-out and for barriers that turn unaligned."""
    first, _ = stage.running()
    stage.time += 80
    asked = stage.time
    stage.driver.request(SnapshotRequest(kind=RequestKind.CHECKPOINT), lambda answer: None)
    stage.time += 5
    stage.turn()
    (trigger,) = first.hears()
    assert isinstance(trigger, TriggerCheckpoint)
    assert trigger.timestamp == asked


# --- slots that cannot be trusted ------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [b"", b"\xc1", encode_message(Run(epoch=Epoch(1))), b"\x91" * 10_000])
def test_a_slot_that_cannot_be_understood_is_stopped_and_replaced(stage, payload):
    first, second = stage.running()
    first.links.send("master", Kind.CONTROL, payload, epoch=NO_EPOCH)
    stage.turn()
    assert stage.cluster.stopped == [first.slot]
    assert stage.cluster.started[-1] == SlotId(SlotIndex(0), 2)
    assert second.hears() == []
    assert "could not be read" in stage.driver.view().failures[0].text


def test_a_slot_whose_words_were_lost_is_stopped_and_replaced(stage):
    first, _ = stage.running()
    header = Header(sequence=9, epoch=NO_EPOCH, kind=Kind.CONTROL)
    stage.wires.to_master.append((str(first.slot), pack(header, b"never looked at")))
    stage.turn()
    assert stage.cluster.stopped == [first.slot]
    assert "packets" in stage.driver.view().failures[0].text


def test_a_slot_that_is_stuck_is_shown_with_step_and_stack_until_its_loop_turns(stage, caplog):
    first, _ = stage.running()
    stuck = LoopStuck(
        slot=first.slot,
        epoch=Epoch(1),
        stuck_ms=12_000,
        operator="slow",
        subtask=0,
        step_ms=11_000,
        stack="  File a, line 1, in f",
    )
    first.say(stuck)
    stage.turn()
    [shown] = stage.driver.view().stuck
    assert (shown.slot, shown.stuck_ms, shown.operator, shown.subtask, shown.step_ms) == (0, 12_000, "slow", 0, 11_000)
    [told] = [record.getMessage() for record in caplog.records if "process lives" in record.getMessage()]
    assert "slot 0 of job job has been in the code of step 'slow', subtask 0 for 11.0 s" in told
    assert "File a, line 1, in f" in told
    first.say(Heartbeat(slot=first.slot, epoch=Epoch(1)))
    stage.turn()
    assert stage.driver.view().stuck == ()
    assert "goes on" in caplog.records[-1].getMessage()


def test_a_slot_that_was_stuck_and_is_replaced_is_not_shown_any_more(stage):
    first, _ = stage.running()
    first.say(LoopStuck(slot=first.slot, epoch=Epoch(1), stuck_ms=12_000))
    stage.turn()
    assert [shown.operator for shown in stage.driver.view().stuck] == [None]
    stage.wires.lost = [str(first.slot)]
    stage.turn()
    assert stage.driver.view().stuck == ()


def test_a_slot_that_only_dumps_its_stacks_lives_and_is_shown_as_stuck_until_its_loop_turns(stage, caplog):
    first, second = stage.running()
    first.say(Heartbeat(slot=first.slot, epoch=Epoch(1)))
    stage.turn()
    for known in range(30):
        stage.time += 5_000
        stage.wires.dumps = [(str(first.slot), "  File b, line 2 in g" if known else "")]
        second.say(Heartbeat(slot=second.slot, epoch=Epoch(1)))
        stage.turn()
    view = stage.driver.view()
    [shown] = view.stuck
    assert (shown.slot, shown.stuck_ms, shown.operator, shown.stack) == (0, 150_000, None, "  File b, line 2 in g")
    assert view.failures == ()
    told = [record.getMessage() for record in caplog.records if "process lives" in record.getMessage()]
    assert "slot 0 of job job has been in native code that holds Python's lock for 10.0 s" in told[0]
    assert "File b, line 2 in g" in told[0]
    assert [m for m in second.hears() if isinstance(m, PeerAlive)] == 30 * [PeerAlive(slot=first.slot)]
    first.say(Heartbeat(slot=first.slot, epoch=Epoch(1)))
    stage.turn()
    assert stage.driver.view().stuck == ()


def test_a_dump_names_the_step_that_the_slot_has_named_before_it_became_mute(stage, caplog):
    first, _ = stage.running()
    first.say(LoopStuck(slot=first.slot, epoch=Epoch(1), stuck_ms=12_000, operator="slow", subtask=0, step_ms=11_000))
    stage.turn()
    stage.time += 12_000
    stage.wires.dumps = [(str(first.slot), "stacks")]
    stage.turn()
    [shown] = stage.driver.view().stuck
    assert (shown.stuck_ms, shown.operator, shown.subtask, shown.step_ms) == (24_000, "slow", 0, 23_000)
    told = "step 'slow', subtask 0, in native code that holds Python's lock for 23.0 s"
    assert told in caplog.records[-1].getMessage()


def test_a_dump_that_comes_after_the_loop_has_turned_shows_nothing_and_a_dump_of_a_stranger_neither(stage):
    first, _ = stage.running()
    first.say(Heartbeat(slot=first.slot, epoch=Epoch(1)))
    stage.wires.dumps = [(str(first.slot), "stacks"), ("stranger", "stacks")]
    stage.turn()
    assert stage.driver.view().stuck == ()


def test_slots_hear_of_a_master_whose_loop_does_not_turn(stage, caplog):
    first, _ = stage.running()
    heard = len(stage.wires.to_slots.get(str(first.slot), []))
    for _ in range(100):
        stage.time += 250
        stage.driver.beat(Instant(stage.time))
    assert len(stage.wires.to_slots[str(first.slot)]) - heard == 25
    told = [record.getMessage() for record in caplog.records if "has not turned for" in record.getMessage()]
    assert ["10.0 s" in told[0], "20.0 s" in told[1], len(told)] == [True, True, 2]


def test_a_slot_that_is_seen_to_die_is_replaced_before_spark_says_anything_and_once(stage):
    first, second = stage.running()
    stage.wires.lost = [str(first.slot)]
    stage.turn()
    # Where Spark would try the task again by itself it must not.
    assert stage.cluster.stopped == [first.slot]
    assert stage.cluster.started[-1] == SlotId(SlotIndex(0), 2)
    assert second.hears() == []
    stage.cluster.news.append(SlotEnded(first.slot, "killed"))
    stage.turn()
    [failure] = stage.driver.view().failures
    assert failure.text == (
        "slot 0 was lost: the link to it broke: the process at the other end has died, or cannot be reached any more"
    )
    assert len(stage.cluster.started) == 3


@pytest.mark.parametrize("frames", [[], [b"one"], [b"\xc1", b"\xc1"]])
def test_a_stranger_who_talks_nonsense_changes_nothing(stage, frames):
    stage.running()
    stage.wires.to_master.append(("slot-9.9.9", frames))
    stage.turn()
    assert stage.state is JobState.RUNNING
    assert stage.cluster.stopped == []


def test_a_process_of_an_incarnation_that_was_given_up_is_sent_away(stage):
    first, _ = stage.running()
    stage.cluster.news.append(SlotEnded(first.slot, "killed"))
    stage.turn()
    late = stage.slot(0).register()
    stage.turn()
    assert late.hears() == [Leave()]


def test_a_slot_that_spark_started_again_is_let_go_of_when_the_spark_job_of_the_first_has_ended(stage):
    first, second = stage.running()
    again = stage.slot(0, attempt=1).register()
    stage.turn()
    assert list(stage.wires.followed) == [str(second.slot), str(again.slot)]
    stage.cluster.news.append(SlotEnded(first.slot, "killed"))
    stage.turn()
    assert list(stage.wires.followed) == [str(second.slot)]
    assert stage.cluster.started[-1] == SlotId(SlotIndex(0), 2)


def test_what_breaks_with_the_attempt_before_does_not_cost_the_slot_that_spark_started_again_its_place(stage):
    first, _ = stage.running()
    stage.slot(0, attempt=1).register()
    stage.turn()
    # A process that was thought dead, on a host that is back.
    first.register()
    first.links.send("master", Kind.CONTROL, b"nonsense", epoch=NO_EPOCH)
    stage.turn()
    assert stage.cluster.stopped == []
    assert len(stage.cluster.started) == 2


def test_a_job_whose_spark_is_gone_fails_and_asks_for_no_slot_any_more(stage):
    slots = stage.running()
    stopped = "the SparkSession was stopped"
    stage.cluster.news += [SlotEnded(slot.slot, stopped, host_gone=True) for slot in slots]
    stage.end()
    assert (stage.driver.outcome, stage.driver.cause.text) == (JobState.FAILED, stopped)
    assert len(stage.cluster.started) == 2


def test_the_log_says_why_an_attempt_failed_and_what_follows(stage, caplog):
    """A program may be restarted for ever, and then its user has nothing else to look at."""
    first, _ = stage.running()
    task = stage.driver._deployment.plan.tasks[0]
    first.say(TaskFailed(slot=first.slot, epoch=Epoch(1), task=task, operator="o", error="bad luck", whole=True))
    stage.turn()
    (told,) = [record.getMessage() for record in caplog.records if "failed" in record.getMessage()]
    assert re.fullmatch(r"job \S+: attempt failed in 'o', subtask 0: bad luck; a restart follows in \d+ ms", told)


def test_a_failure_of_an_attempt_that_is_over_fails_nothing(stage):
    first, second = stage.running()
    failure = TaskFailed(
        slot=first.slot,
        epoch=Epoch(1),
        task=stage.driver._deployment.plan.tasks[0],
        operator="o",
        error="bad luck",
        whole=True,
    )
    first.say(failure)
    stage.turn()
    for slot in (first, second):
        slot.say(Cancelled(slot=slot.slot, epoch=Epoch(1)))
    second.say(failure)
    stage.turn()
    assert [f.text for f in stage.driver.view().failures] == ["bad luck"]
    assert [type(message) for message in first.hears()] == [CancelTasks, Deploy]


def test_a_failed_task_is_restarted_with_its_region_and_the_other_slot_hears_of_nothing(stage):
    first, second = stage.running()
    region = tuple(task for task in stage.driver._deployment.plan.tasks if task.subtask == 0)
    second.say(Heartbeat(slot=second.slot, epoch=Epoch(1), metrics={"nosource[1]": {"rows_in": 5}}))
    first.say(Heartbeat(slot=first.slot, epoch=Epoch(1), metrics={"nosource[0]": {"rows_in": 3}}))
    first.say(TaskFailed(slot=first.slot, epoch=Epoch(1), task=region[0], operator="o", error="bad luck"))
    stage.turn()
    assert first.hears() == [CancelTasks(epoch=Epoch(1), tasks=region)]
    first.say(Cancelled(slot=first.slot, epoch=Epoch(1), tasks=region))
    stage.turn()
    (deploy,) = first.hears()
    assert (deploy.epoch, deploy.tasks, deploy.beside_others, deploy.peers) == (2, region, True, ())
    first.say(Ready(slot=first.slot, epoch=Epoch(2)))
    second.say(Heartbeat(slot=second.slot, epoch=Epoch(1), metrics={"nosource[1]": {"rows_in": 6}}))
    stage.turn()
    assert first.hears()[0] == Run(epoch=Epoch(2))
    # The first checkpoint after it finds each task in its own attempt.
    assert [message.epoch for message in second.hears() if not isinstance(message, TriggerCheckpoint)] == []
    view = stage.driver.view()
    assert (view.restarts, view.epoch, view.rows_in, view.rows_read) == (1, 2, 6, 9)
    assert [failure.text for failure in view.failures] == ["bad luck"]


def declined(task, epoch=1):
    reason = CheckpointFailure.ASYNC_PART_FAILED
    return Decline(
        job=JobId("job"), epoch=Epoch(epoch), task=task, checkpoint=CheckpointId(1), reason=reason, error="x"
    )


def test_a_task_whose_checkpoints_fail_too_often_is_restarted_with_its_region(stage):
    first, second = stage.running()
    region = tuple(task for task in stage.driver._deployment.plan.tasks if task.subtask == 0)
    stage.time += 200
    stage.turn()
    first.say(declined(region[0]))
    stage.turn()
    assert first.hears()[-1] == CancelTasks(epoch=Epoch(1), tasks=region)
    assert {type(message) for message in second.hears()} == {TriggerCheckpoint, NotifyAborted}
    (failure,) = stage.driver.view().failures
    assert (stage.state, failure.operator, failure.subtask) == (JobState.REPAIRING, "nosource", 0)


def test_all_tasks_restart_if_checkpoints_expire_too_often(stage):
    first, second = stage.running()
    stage.time += 200
    stage.turn()
    stage.time += SETTINGS.checkpoint.timeout_ms
    for slot in (first, second):
        slot.say(Heartbeat(slot=slot.slot, epoch=Epoch(1)))
    stage.turn()
    for slot in (first, second):
        assert CancelTasks(epoch=Epoch(1)) in slot.hears()
    assert (stage.state, stage.driver.view().failures[0].operator) == (JobState.FAILING, None)


def test_a_checkpoint_that_is_under_way_when_all_tasks_restart_ends_with_that_as_the_reason():
    """1. Two checkpoints are under way, and one waits. 2. The first expires, which is not tolerated."""
    checkpoint = replace(SETTINGS.checkpoint, max_concurrent=2)
    stage, answers = Stage(replace(SETTINGS, checkpoint=checkpoint)), []
    slots = stage.running()
    for _ in range(2):
        stage.time += 200
        stage.turn()
    stage.driver.request(SnapshotRequest(kind=RequestKind.CHECKPOINT), answers.append)
    counts = stage.driver.view().checkpoints.counts
    assert (counts.in_progress, counts.failed, answers) == (2, 0, [])
    stage.time += checkpoint.timeout_ms - 200
    for slot in slots:
        slot.say(Heartbeat(slot=slot.slot, epoch=Epoch(1)))
    stage.turn()
    *newer, oldest = [checkpoint.failure for checkpoint in stage.driver.view().checkpoints.history]
    assert (oldest, set(newer)) == (CheckpointFailure.EXPIRED, {CheckpointFailure.FAILOVER})
    assert [answer.reason for answer in answers] == [CheckpointFailure.FAILOVER]


def test_the_tasks_of_a_lost_slot_are_restarted_in_the_next_one_and_the_other_slot_goes_on(stage):
    first, second = stage.running()
    region = tuple(task for task in stage.driver._deployment.plan.tasks if task.subtask == 0)
    second.say(Heartbeat(slot=second.slot, epoch=Epoch(1), metrics={"nosource[1]": {"rows_in": 5}}))
    first.say(Heartbeat(slot=first.slot, epoch=Epoch(1), metrics={"nosource[0]": {"rows_in": 3}}))
    stage.cluster.news.append(SlotEnded(first.slot, "killed"))
    stage.turn()
    assert (stage.state, second.hears()) == (JobState.REPAIRING, [])
    successor = stage.slot(0, 2).register()
    stage.turn()
    (deploy,) = successor.hears()
    assert (deploy.epoch, deploy.attempt, deploy.tasks, deploy.beside_others) == (2, 1, region, True)
    assert [peer.slot for peer in deploy.peers] == [successor.slot, second.slot]
    assert deploy.plan == stage.driver._deployment.pickled_plan
    successor.say(Ready(slot=successor.slot, epoch=Epoch(2)))
    # Its heartbeats bear the epoch of the links, as all others do.
    successor.say(Heartbeat(slot=successor.slot, epoch=Epoch(1), metrics={"nosource[0]": {"rows_in": 1}}))
    stage.turn()
    run, *triggers = successor.hears()
    assert run == Run(epoch=Epoch(2))
    view = stage.driver.view()
    assert (view.state, view.restarts, view.epoch, view.rows_in, view.rows_read) == (JobState.RUNNING, 1, 2, 6, 9)
    assert [(trigger.task.subtask, trigger.epoch) for trigger in (*triggers, *second.hears())] == [(0, 2), (1, 1)]


def test_a_slot_that_is_lost_while_the_job_is_being_stopped_takes_all_tasks_with_it(stage):
    """Its sources have ended everywhere, or are about to."""
    first, second = stage.running()
    answers = []
    stage.driver.request(SnapshotRequest(kind=RequestKind.STOP, target="/saved"), answers.append)
    stage.turn()
    second.hears()
    stage.cluster.news.append(SlotEnded(first.slot, "killed"))
    stage.turn()
    assert (stage.state, len(answers)) == (JobState.FAILING, 1)
    assert CancelTasks(epoch=Epoch(1)) in second.hears()


# --- deployment ------------------------------------------------------------------------------------------------------


def waiting_for_storage(stage):
    """The slots of a failed attempt, clean again, while storage has not said whether a checkpoint is complete."""
    slots = stage.running()
    stage.time += 200
    stage.turn()
    stage.background.pieces = 1
    tasks = stage.driver._deployment.plan.tasks
    for task in tasks:
        ack = Acknowledge(job=JobId("job"), epoch=Epoch(1), task=task, checkpoint=CheckpointId(1), state=None)
        slots[task.subtask].say(ack)
    stage.turn(1)
    stage.background.pieces = 0
    assert "job/chk-1/_metadata" in stage.store
    failure = TaskFailed(slot=slots[0].slot, epoch=Epoch(1), task=tasks[0], operator="o", error="bad luck", whole=True)
    slots[0].say(failure)
    stage.turn()
    for slot in slots:
        assert slot.hears()[-1] == CancelTasks(epoch=Epoch(1))
        slot.say(Cancelled(slot=slot.slot, epoch=Epoch(1)))
    stage.turn()
    assert stage.state is JobState.DEPLOYING
    return slots


def test_nothing_is_deployed_before_it_is_certain_which_checkpoint_is_the_newest(stage):
    slots = waiting_for_storage(stage)
    assert [slot.hears() for slot in slots] == [[], []]
    stage.background.pieces = 1
    stage.turn()
    for slot in slots:
        (deploy,) = slot.hears()
        assert (deploy.epoch, deploy.restored_checkpoint) == (2, 1)


def test_nothing_is_deployed_when_the_job_was_cancelled_meanwhile(stage):
    slots = waiting_for_storage(stage)
    stage.driver.cancel()
    stage.background.pieces = 1
    stage.turn(5)
    assert [slot.hears() for slot in slots] == [[Leave()], [Leave()]]


def test_a_checkpoint_is_triggered_when_its_time_has_come_and_the_id_is_durable(stage):
    slots = stage.running()
    stage.background.pieces = 0
    stage.time += 200
    stage.turn()
    assert slots[0].hears() == []
    stage.background.pieces = 1
    stage.turn()
    (trigger,) = slots[0].hears()
    assert isinstance(trigger, TriggerCheckpoint)
    assert stage.store.list_files("job/counter") != []


# --- the end ---------------------------------------------------------------------------------------------------------


def cancelled(stage):
    slots = stage.running()
    stage.driver.cancel()
    stage.turn()
    assert stage.wires.followed == {}, "who was told to leave is not seen to die"
    for slot in slots:
        assert slot.hears() == [Leave()]
        slot.say(Leaving(slot=slot.slot))
        stage.cluster.news.append(SlotEnded(slot.slot, None))
    stage.end()


def test_a_job_has_ended_when_its_slots_are_gone_and_everything_is_cleaned_up(stage):
    stage.store.write("job/inputs/x", b"")
    stage.store.write("job-2/inputs/x", b"")
    cancelled(stage)
    assert stage.driver.outcome is JobState.CANCELLED
    assert list(stage.store) == ["job-2/inputs/x"]
    assert stage.driver.turn(Instant(stage.time)) is None


def test_while_the_outcome_of_a_cancelled_job_is_being_recorded_no_checkpoint_goes_on_or_begins():
    """What completed then would not be in the record."""
    stage = Stage(tenure=Tenure())
    stage.running()
    stage.time += 200
    stage.turn()
    counts = stage.driver.view().checkpoints.counts
    assert (counts.in_progress, counts.total) == (1, 1)
    stage.background.pieces = 0
    stage.driver.cancel()
    for _ in range(5):
        stage.time += 200
        stage.turn()
        counts = stage.driver.view().checkpoints.counts
        assert (counts.in_progress, counts.total) == (0, 1)


def test_a_sink_that_cannot_end_does_not_keep_the_others_and_the_files_from_being_cleaned_up(stage):
    cancelled(stage)
    assert stage.ended == [("broken", "job"), ("sound", "job")]
    assert stage.driver.outcome is JobState.CANCELLED
    assert list(stage.store) == []


def test_files_that_cannot_be_deleted_do_not_keep_the_job_from_ending(stage):
    stage.store.failing = True
    cancelled(stage)
    assert stage.driver.outcome is JobState.CANCELLED


# --- a job that may outlive its driver -------------------------------------------------------------------------------

OUTCOME = layout.outcome_file(FOLDER, Term(0))


def test_slots_and_attempts_of_a_driver_are_numbered_above_those_of_the_drivers_before_it():
    stage = Stage(tenure=Tenure(term=Term(2), next_id=CheckpointId(5)))
    first = EPOCHS_PER_TERM * 2 + 1
    slots = [stage.slot(number, first).register() for number in range(2)]
    stage.turn()
    (deploy,) = slots[0].hears()
    assert (deploy.epoch, deploy.first_checkpoint) == (first, 5)


def test_how_the_job_ended_is_recorded_before_the_first_of_its_records_goes():
    store = Files({layout.completed_file(FOLDER, CheckpointId(3)): b"a record"})
    stage = Stage(tenure=Tenure(completed=(completed(3, discard=DiscardRules.of(Retention.DELETE)),)), store=store)
    stage.store.refusing = frozenset({OUTCOME})
    stage.slot(0).register()
    stage.driver.cancel()
    stage.turn(20)
    assert layout.completed_file(FOLDER, CheckpointId(3)) in store
    stage.store.refusing = frozenset()
    stage.end()
    assert stage.left == []
    assert take_over(store, FOLDER).outcome == JobOutcome(state=JobState.CANCELLED)


def test_a_job_whose_outcome_can_never_be_recorded_keeps_all_its_files():
    store = Files({layout.completed_file(FOLDER, CheckpointId(3)): b"a record"})
    stage = Stage(tenure=Tenure(completed=(completed(3, discard=DiscardRules.of(Retention.DELETE)),)), store=store)
    stage.store.refusing = frozenset({OUTCOME})
    stage.driver.cancel()
    stage.end()
    assert stage.driver.outcome is JobState.CANCELLED
    assert stage.left == [layout.completed_file(FOLDER, CheckpointId(3))]


def test_a_driver_that_lost_the_job_lets_its_slots_go_and_touches_nothing():
    store = Files({layout.completed_file(FOLDER, CheckpointId(3)): b"a record", "job/chk-4/x": b""})
    stage = Stage(tenure=Tenure(), store=store)
    slots = stage.running()
    before = dict(store)
    stage.claim(Term(1))
    stage.driver.lose()
    stage.turn()
    assert [slot.hears() for slot in slots] == [[Leave()], [Leave()]]
    for slot in slots:
        stage.cluster.news.append(SlotEnded(slot.slot, None))
    stage.end()
    assert stage.driver.outcome is JobState.SUSPENDED
    assert {path: store.get(path) for path in before} == before
    assert stage.ended == []


def test_a_driver_whose_spark_is_gone_leaves_the_job_to_another(caplog):
    stage = Stage(tenure=Tenure())
    slots = stage.running()
    stopped = "the SparkSession was stopped"
    stage.cluster.news += [SlotEnded(slot.slot, stopped, host_gone=True) for slot in slots]
    stage.end()
    assert stage.driver.outcome is JobState.SUSPENDED
    assert take_over(stage.store, FOLDER).outcome is None
    assert f"this driver cannot go on with the job, and leaves the job to another driver: {stopped}" in caplog.text


def test_a_job_that_was_cancelled_when_its_spark_went_stays_cancelled():
    stage = Stage(tenure=Tenure())
    slots = stage.running()
    stage.driver.cancel()
    stage.cluster.news += [SlotEnded(slot.slot, "the SparkSession was stopped", host_gone=True) for slot in slots]
    stage.end()
    assert stage.driver.outcome is JobState.CANCELLED
    assert take_over(stage.store, FOLDER).outcome == JobOutcome(state=JobState.CANCELLED)


def test_a_driver_that_lost_the_job_at_its_end_does_not_say_how_it_ended():
    """1. The job is cancelled. 2. Another driver takes it over. 3. The first records the outcome, and looks."""
    store = Files({"job/chk-4/x": b""})
    stage = Stage(tenure=Tenure(), store=store)
    stage.driver.cancel()
    stage.claim(Term(1))
    stage.end()
    assert stage.driver.outcome is JobState.SUSPENDED
    assert stage.left == ["job/chk-4/x"]
    assert stage.ended == []


def test_a_driver_that_finds_a_job_which_has_ended_cleans_up_and_starts_nothing():
    store = Files({layout.completed_file(FOLDER, CheckpointId(3)): b"", "job/chk-3/x": b"", "job/chk-4/x": b""})
    outcome = JobOutcome(state=JobState.FAILED, cause="boom", retained=(CheckpointId(4),))
    stage = Stage(tenure=Tenure(term=Term(1), outcome=outcome), store=store)
    stage.end()
    assert (stage.driver.outcome, stage.driver.cause.text) == (JobState.FAILED, "boom")
    assert stage.cluster.started == []
    assert stage.left == ["job/chk-4/x"]
