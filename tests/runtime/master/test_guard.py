"""Work off the loop is done only while this driver has the job, and whoever asked for it learns what became of it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from commits_rig import Later

from penstock.api.connector import Committer
from penstock.api.hold import Hold, HoldUnknown
from penstock.core.errors import JobTakenOver, StorageError
from penstock.runtime.master.guard import Guard

TAKEN = JobTakenOver("another driver has it")
AWAY = StorageError("the records are away")


class Rig:
    def __init__(self, *looks):
        self.looks = list(looks)
        self.story = []
        self.background = Later()
        self.guard = Guard(Hold(self._look), lambda: self.story.append("taken over"))

    def _look(self):
        if self.looks and (error := self.looks.pop(0)) is not None:
            raise error

    def submit(self, name, *, raises=None, **options):
        def work():
            self.story.append(name)
            if raises is not None:
                raise raises

        def done(outcome):
            self.story.append((f"{name} done", type(outcome.error).__name__))

        def lost(outcome):
            self.story.append((f"{name} lost", type(outcome.error).__name__))

        self.guard.submit(self.background, work, done, lost=lost, **options)

    def perform(self):
        self.background.perform()
        story, self.story = self.story, []
        return story


def test_work_is_done_while_the_job_is_held_and_its_error_is_told():
    rig = Rig()
    rig.submit("a")
    rig.submit("b", raises=ValueError("bad"))
    assert rig.perform() == ["a", ("a done", "NoneType"), "b", ("b done", "ValueError")]


def test_no_work_is_done_once_another_driver_has_the_job_and_the_master_is_told_once():
    rig = Rig(TAKEN)
    rig.submit("a")
    rig.submit("b")
    assert rig.perform() == ["taken over", ("a lost", "JobTakenOver"), ("b lost", "JobTakenOver")]


def test_work_that_finds_out_by_itself_is_the_last():
    rig = Rig()
    rig.submit("a", raises=TAKEN)
    rig.submit("b")
    assert rig.perform() == ["a", "taken over", ("a lost", "JobTakenOver"), ("b lost", "JobTakenOver")]


def test_a_job_that_is_lost_while_work_is_under_way_is_lost_for_that_work_too():
    rig = Rig()
    rig.guard.submit(rig.background, rig.guard.hold.let_go, rig.story.append, lost=lambda _: rig.story.append("lost"))
    assert rig.perform() == ["lost"]


def test_nothing_is_done_in_doubt_and_the_doubt_passes():
    rig = Rig(AWAY)
    rig.submit("a")
    assert rig.perform() == [("a done", HoldUnknown.__name__)]
    rig.submit("b")
    assert rig.perform() == ["b", ("b done", "NoneType")]


def test_the_hold_is_not_looked_at_for_work_that_nobody_wants_any_more():
    rig = Rig(TAKEN)
    rig.submit("a", is_wanted=lambda: False)
    assert rig.perform() == [("a done", "NoneType")]


@dataclass(frozen=True)
class Frozen(Committer):
    target: str

    def commit(self, checkpoint, committables):
        self.hold.check()


class Unaware(Committer):
    """A class that has its own constructor, and knows nothing of holds."""

    def __init__(self):
        self.committed = []

    def commit(self, checkpoint, committables):
        self.committed.append(checkpoint)


@pytest.mark.parametrize("committer", [Frozen("x"), Unaware()], ids=lambda committer: type(committer).__name__)
def test_every_class_of_the_contract_gets_its_hold(committer):
    hold = Hold()
    committer.bind_hold(hold)
    assert committer.hold is hold
    committer.commit(1, ())
