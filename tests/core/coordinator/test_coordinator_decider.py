"""Which request becomes a checkpoint, and when."""

from __future__ import annotations

import pytest

from penstock.core.coordinator.decider import Dropped, Load, RequestDecider
from penstock.core.coordinator.effects import CheckpointStarted, DeleteFiles, RequestDropped
from penstock.core.coordinator.events import FilesDeleted, RequestKind
from penstock.core.coordinator.options import CoordinatorOptions
from penstock.core.coordinator.requests import Request
from penstock.core.effects import Ticked
from penstock.core.ids import Instant, RequestId
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import SnapshotKind

NOW = Instant(1_000)
FREE = Load()
JUST_COMPLETED = Load(last_completion=NOW)
ONE_PENDING = Load(num_pending=1)

PERIODIC = Request(kind=SnapshotKind.CHECKPOINT, submitted=NOW, periodic=True)
MANUAL = Request(kind=SnapshotKind.CHECKPOINT, submitted=NOW)
SAVEPOINT = Request(kind=SnapshotKind.SAVEPOINT, submitted=NOW)
FORCED = Request(kind=SnapshotKind.SAVEPOINT, submitted=NOW, forced=True)
PERIODIC_SAVEPOINT = Request(kind=SnapshotKind.SAVEPOINT, submitted=NOW, periodic=True)
STOP = Request(kind=SnapshotKind.SUSPEND, submitted=NOW)


def decider(*requests: Request, queue_limit: int = 1_000, max_concurrent: int = 1) -> RequestDecider:
    made = RequestDecider(max_concurrent=max_concurrent, min_pause_ms=10, queue_limit=queue_limit)
    for request in requests:
        assert made.submit(request) is None
    return made


def order(made: RequestDecider) -> list[Request]:
    return made.clear()


# --- the minimum pause -----------------------------------------------------------------------------------------------


def test_a_periodic_checkpoint_within_the_pause_is_dropped_and_tried_again_when_the_pause_ends():
    made = decider(PERIODIC)
    dropped = Dropped(request=PERIODIC, reason=CheckpointFailure.MINIMUM_PAUSE, retry_after_ms=10)
    assert made.choose(JUST_COMPLETED, NOW) == dropped
    assert len(made) == 0


def test_a_periodic_checkpoint_runs_when_the_pause_is_over():
    assert decider(PERIODIC).choose(JUST_COMPLETED, Instant(NOW + 10)) == PERIODIC


@pytest.mark.parametrize("request_", [MANUAL, SAVEPOINT, FORCED])
def test_the_pause_is_nothing_to_manual_checkpoints_and_savepoints(request_):
    assert decider(request_).choose(JUST_COMPLETED, NOW) == request_


def test_a_forced_request_does_not_mind_the_pause_even_if_it_is_periodic():
    forced = Request(kind=SnapshotKind.SAVEPOINT, submitted=NOW, forced=True, periodic=True)
    assert decider(forced).choose(JUST_COMPLETED, NOW) == forced


def test_before_the_first_completion_there_is_no_pause():
    assert decider(PERIODIC).choose(FREE, NOW) == PERIODIC


# --- limits ----------------------------------------------------------------------------------------------------------


def test_a_forced_request_runs_beside_a_pending_checkpoint():
    assert decider(FORCED).choose(ONE_PENDING, NOW) == FORCED


@pytest.mark.parametrize("request_", [PERIODIC, MANUAL, SAVEPOINT])
def test_others_wait_until_fewer_are_pending(request_):
    made = decider(request_)
    assert made.choose(ONE_PENDING, NOW) is None
    assert made.choose(FREE, NOW) == request_


@pytest.mark.parametrize("request_", [PERIODIC, FORCED])
def test_more_cleanings_than_may_run_at_once_hold_everything_back(request_):
    made = decider(request_)
    assert made.choose(Load(num_cleaning=2), NOW) is None
    assert made.choose(Load(num_cleaning=1), NOW) == request_


def test_nothing_starts_while_another_is_being_triggered():
    made = decider(FORCED)
    assert made.choose(Load(is_triggering=True), NOW) is None
    assert made.choose(FREE, NOW) == FORCED


def test_while_the_job_is_being_stopped_only_the_savepoint_that_stops_it_starts():
    assert decider(SAVEPOINT).choose(Load(is_stopping=True), NOW) is None
    assert decider(STOP).choose(Load(is_stopping=True), NOW) == STOP


def test_an_empty_line_chooses_nobody():
    assert decider().choose(FREE, NOW) is None


# --- order -----------------------------------------------------------------------------------------------------------


def test_a_savepoint_goes_before_a_checkpoint():
    assert order(decider(MANUAL, SAVEPOINT)) == [SAVEPOINT, MANUAL]


def test_a_forced_savepoint_goes_before_one_that_is_not():
    assert order(decider(SAVEPOINT, FORCED)) == [FORCED, SAVEPOINT]


def test_a_users_savepoint_goes_before_a_periodic_one():
    assert order(decider(PERIODIC_SAVEPOINT, SAVEPOINT)) == [SAVEPOINT, PERIODIC_SAVEPOINT]


def test_a_users_checkpoint_goes_before_a_periodic_one():
    assert order(decider(PERIODIC, MANUAL)) == [MANUAL, PERIODIC]


def test_among_equals_the_older_goes_first():
    later = Request(kind=SnapshotKind.CHECKPOINT, submitted=Instant(NOW + 1), periodic=True)
    assert order(decider(later, PERIODIC)) == [PERIODIC, later]


def test_among_equals_of_the_same_moment_the_one_that_came_first_goes_first():
    twins = [Request(kind=SnapshotKind.CHECKPOINT, submitted=NOW, answer_to=RequestId(i)) for i in (2, 1, 3)]
    assert order(decider(*twins)) == twins


# --- a line that is too long -----------------------------------------------------------------------------------------


def test_a_full_line_drops_its_last_periodic_entry_for_a_savepoint():
    made = decider(PERIODIC, queue_limit=1)
    assert made.submit(SAVEPOINT) == Dropped(request=PERIODIC, reason=CheckpointFailure.TOO_MANY_REQUESTS)
    assert order(made) == [SAVEPOINT]


def test_a_full_line_of_users_turns_the_newcomer_away():
    made = decider(MANUAL, queue_limit=1)
    assert made.submit(SAVEPOINT) == Dropped(request=SAVEPOINT, reason=CheckpointFailure.TOO_MANY_REQUESTS)
    assert order(made) == [MANUAL]


def test_the_eleventh_periodic_request_in_a_line_of_ten_fails():
    many = [Request(kind=SnapshotKind.CHECKPOINT, submitted=Instant(NOW + i), periodic=True) for i in range(11)]
    made = decider(*many[:10], queue_limit=10)
    assert made.submit(many[10]) == Dropped(request=many[10], reason=CheckpointFailure.TOO_MANY_REQUESTS)


# --- in the coordinator ----------------------------------------------------------------------------------------------


def test_with_unaligned_checkpoints_a_waiting_savepoint_goes_before_waiting_periodic_checkpoints(rig, pick):
    """1. Ten periodic checkpoints: one runs, nine wait. 2. A savepoint waits too, it is not forced.
    3. The running one is declined. 4. The savepoint starts."""
    r = rig(interval_ms=10, unaligned=True, tolerable_failures=None).start()
    r.tick()
    r.until(r.now + 90)
    assert (r.in_progress, r.waiting) == ([1], 9)
    r.request(RequestKind.SAVEPOINT)
    assert (r.in_progress, r.waiting) == ([1], 10)
    effects = r.decline("t1", 1)
    assert [e.kind for e in pick.of(effects, CheckpointStarted)] == [SnapshotKind.SAVEPOINT]
    assert r.in_progress == [2]


def test_without_unaligned_checkpoints_a_savepoint_does_not_wait(rig):
    r = rig().start()
    r.request()
    r.request(RequestKind.SAVEPOINT)
    assert r.in_progress == [1, 2]


def test_a_dropped_periodic_request_comes_back_when_the_pause_ends(rig, pick):
    r = rig(interval_ms=100, min_pause_ms=70).start(draw=0.999)
    r.until(1_100)
    r.until(1_150)
    r.ack_all(1)
    effects = r.until(1_200)
    assert pick.of(effects, RequestDropped) == [
        RequestDropped(periodic=True, reason=CheckpointFailure.MINIMUM_PAUSE, text="")
    ]
    assert r.coordinator.next_deadline() == 1_220
    assert pick.begun(r.until(1_220)) == [2]
    assert r.coordinator.view().next_trigger == 1_320


def test_the_pause_also_counts_from_the_completion_of_a_savepoint(rig, pick):
    r = rig(interval_ms=100, min_pause_ms=100).start()
    r.until(1_050)
    r.request(RequestKind.SAVEPOINT)
    r.ack_all(1)
    assert pick.begun(r.until(1_149)) == []
    assert pick.begun(r.until(1_150)) == [2]


def test_a_failed_checkpoint_does_not_start_the_pause(rig, pick):
    r = rig(interval_ms=100, min_pause_ms=100, tolerable_failures=None).start()
    r.until(1_100)
    r.now = 1_150
    r.decline("t1", 1)
    assert pick.begun(r.until(1_200)) == [2]


def test_slow_deletions_hold_back_the_next_checkpoint_until_one_has_ended(rig, pick):
    r = rig(tolerable_failures=None).start()
    r.hold.add(DeleteFiles)
    for checkpoint in (1, 2):
        r.request()
        r.decline("t1", checkpoint)
    r.request()
    assert (r.in_progress, r.waiting) == ([], 1)
    cleaning = pick.of(r.log, DeleteFiles)[0].cleaning
    assert pick.begun(r.feed(FilesDeleted(cleaning=cleaning, error="a bad day"))) == [3]


def test_a_line_that_overflows_answers_the_user_who_is_turned_away(rig, pick):
    r = rig(options=CoordinatorOptions(queue_limit=1)).start()
    r.request()
    r.request()
    answers = pick.answers(r.request())
    assert answers[3].reason is CheckpointFailure.TOO_MANY_REQUESTS
    assert r.waiting == 1


def test_how_long_a_request_waited_is_told(rig, pick):
    r = rig().start()
    r.request()
    r.request()
    r.now += 30
    effects = r.ack_all(1)
    assert [e.queued_ms for e in pick.of(effects, CheckpointStarted)] == [30]
    assert r.details(2).queued_ms == 30


def test_nothing_happens_at_a_tick_when_nothing_is_due(rig):
    r = rig().start()
    assert r.feed(Ticked()) == []
    assert r.coordinator.next_deadline() is None
