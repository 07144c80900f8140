"""What every `ports.Election` promises."""

from __future__ import annotations

import threading

import pytest
from completed_records import encoded
from election_rig import Meeting

from penstock.core.errors import JobTakenOver
from penstock.core.ids import CheckpointId
from penstock.core.job.events import JobState
from penstock.core.recovery.tenure import JobOutcome

FINISHED = JobOutcome(state=JobState.FINISHED)
FAILED = JobOutcome(state=JobState.FAILED, cause="no such disk")


def unheard() -> None:
    pytest.fail("the job was lost")


def test_one_driver_has_the_job_and_the_others_wait(meeting: Meeting):
    first, second, third = (meeting.driver() for _ in range(3))
    leader = first.campaign(unheard)
    assert leader is not None
    assert [second.campaign(unheard) for _ in range(3)] == [None] * 3
    assert third.campaign(unheard) is None
    assert not leader.is_lost
    assert leader.tenure.term == 0


def test_when_a_driver_lets_go_another_has_the_job_at_once(meeting: Meeting):
    first, second = meeting.driver(), meeting.driver()
    leader = first.campaign(unheard)
    assert leader is not None
    assert second.campaign(unheard) is None
    leader.records.take_ids(CheckpointId(64))
    leader.resign()
    next_leader = meeting.wait_for(second)
    assert (next_leader.tenure.term, next_leader.tenure.next_id) == (1, 64)


def test_a_driver_that_left_those_who_wait_is_not_waited_for(meeting: Meeting):
    first, second, third = (meeting.driver() for _ in range(3))
    leader = first.campaign(unheard)
    assert leader is not None
    assert second.campaign(unheard) is None
    assert third.campaign(unheard) is None
    second.close()
    leader.resign()
    assert meeting.wait_for(third).tenure.term == 1


def test_a_driver_that_sleeps_too_long_loses_the_job_and_hears_of_it(meeting: Meeting):
    """1. The first driver falls asleep. 2. The second takes the job over. 3. The first wakes up: it is told, and what
    it records does not count."""
    lost = threading.Event()
    first, second = meeting.driver(), meeting.driver()
    leader = first.campaign(lost.set)
    assert leader is not None
    assert second.campaign(unheard) is None
    leader.records.take_ids(CheckpointId(64))
    meeting.put_to_sleep(leader)
    next_leader = meeting.wait_for(second)
    meeting.wake(leader)
    assert lost.wait(60)
    assert leader.is_lost
    with pytest.raises(JobTakenOver):
        leader.records.record(CheckpointId(1), encoded(1))
    next_leader.resign()
    assert meeting.wait_for(meeting.driver()).tenure.completed == ()


# --- once more -------------------------------------------------------------------------------------------------------


def test_a_driver_that_waits_does_not_begin_a_job_anew_that_ends_meanwhile(meeting: Meeting):
    """1. Two drivers run the same program, which is to begin anew if it has ended. 2. The one that has the job sees it
    end. 3. The other one finds that end: what the job was to do has been done."""
    first, second = meeting.driver(anew=True), meeting.driver(anew=True)
    leader = first.campaign(unheard)
    assert leader is not None
    assert second.campaign(unheard) is None
    leader.records.record_outcome(FINISHED)
    leader.resign()
    found = meeting.wait_for(second)
    assert found.tenure.outcome == FINISHED
    found.resign()
    assert meeting.wait_for(meeting.driver(anew=True)).tenure.outcome is None, "who asks later has it begin anew"


def test_a_job_that_had_ended_begins_anew_once_however_many_drivers_ask(meeting: Meeting):
    """1. The driver with which a job failed still cleans up; another one only sees that, and inherits the end. 2. Two
    ask for the job to begin anew. 3. One of them has it do so, until it ends. 4. The other one finds that end."""
    first, heir, second, third = (meeting.driver(anew=anew) for anew in (False, False, True, True))
    leader = first.campaign(unheard)
    assert leader is not None
    leader.records.record_outcome(FAILED)
    assert [driver.campaign(unheard) for driver in (heir, second, third)] == [None] * 3
    leader.resign()
    inherited = meeting.wait_for(heir)
    assert inherited.tenure.outcome == FAILED
    inherited.resign()
    again = meeting.wait_for(second)
    assert again.tenure.outcome is None
    assert third.campaign(unheard) is None
    again.records.record_outcome(FINISHED)
    again.resign()
    assert meeting.wait_for(third).tenure.outcome == FINISHED
