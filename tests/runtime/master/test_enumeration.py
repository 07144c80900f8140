"""The driver's part of a source that finds its splits while the job runs, without a job around it."""

from __future__ import annotations

import pytest
from commits_rig import Later

from penstock.api.connector import Found, SplitEnumerator
from penstock.core.ids import CheckpointId, Instant
from penstock.runtime.master.operator_coordinators.contract import CoordinatorHost
from penstock.runtime.master.operator_coordinators.enumeration import SplitAssigner, position_in


class Counting(SplitEnumerator):
    """Finds one split at a time."""

    def __init__(self) -> None:
        self.story: list = []
        self.ended = self.behind = False

    def discover(self, position):
        number = int(position or b"0")
        self.story.append(("discover", number))
        return Found(
            position=b"%d" % (number + 1),
            splits=[b"%d" % number],
            wait_ms=10,
            ended=self.ended,
            catching_up=self.behind,
        )

    def consumed(self, position, unread):
        self.story.append(("consumed", position, *unread))


class Rig:
    def __init__(self) -> None:
        self.background, self.enumerator, self.failed = Later(), Counting(), []
        self.told_behind: list[bool] = []
        self.now = 1_000
        host = CoordinatorHost(
            name="numbers",
            background=self.background,
            say=lambda *_: None,
            fail=lambda cause: self.failed.append(cause.text),
            catching_up=self.told_behind.append,
        )
        self.assigner = SplitAssigner(host, self.enumerator)
        self.assigner.start(None, (), parallelism=1)
        self.assigner.run()
        self.background.perform()
        self.enumerator.story.clear()

    def look(self, *, behind: bool, ended: bool = False) -> None:
        self.enumerator.behind, self.enumerator.ended = behind, ended
        self.now += 1_000
        self.assigner.turn(Instant(self.now))
        self.background.perform()

    def complete(self, checkpoint: int, *unread: bytes) -> None:
        self.assigner.snapshot(CheckpointId(checkpoint))
        self.assigner.completed(CheckpointId(checkpoint), unread)


def test_an_enumerator_that_is_slower_than_checkpoints_come_is_told_of_the_newest_only():
    """1. It is being told of a checkpoint. 2. Two more complete, and it is time to look. 3. It has been told."""
    rig = Rig()
    for checkpoint in (1, 2, 3):
        rig.complete(checkpoint, b"unread in %d" % checkpoint)
    rig.assigner.turn(Instant(1_000))
    assert len(rig.background.work) == 2
    rig.background.perform()
    assert rig.enumerator.story == [
        ("consumed", b"1", b"unread in 1"),
        ("discover", 1),
        ("consumed", b"1", b"unread in 3"),
    ]


def test_what_an_attempt_was_being_told_does_not_keep_the_next_one_from_being_told():
    rig = Rig()
    rig.complete(1)
    rig.complete(2)
    rig.assigner.stop()
    rig.assigner.start(None, (), parallelism=1)
    rig.assigner.run()
    rig.complete(3, b"unread")
    rig.background.perform()
    assert [told for told in rig.enumerator.story if told[0] == "consumed"] == [("consumed", None, b"unread")]
    assert rig.failed == []


def test_the_position_is_found_in_the_state():
    rig = Rig()
    assert position_in(rig.assigner.snapshot(CheckpointId(1))) == b"1"
    rig.assigner.start(None, (), parallelism=1)
    assert position_in(rig.assigner.snapshot(CheckpointId(2))) is None


@pytest.mark.parametrize(("more_data", "looked"), [(False, []), (True, [("discover", 2)])])
def test_an_enumerator_that_had_come_to_its_end_is_asked_again_only_by_a_job_that_goes_on(more_data, looked):
    rig = Rig()
    rig.enumerator.ended = True
    rig.assigner.turn(Instant(1_000))
    rig.background.perform()
    state = rig.assigner.snapshot(CheckpointId(1))
    rig.assigner.stop()
    rig.enumerator.story.clear()
    rig.assigner.start(state, (), parallelism=1, more_data=more_data)
    rig.assigner.run()
    rig.background.perform()
    assert rig.enumerator.story == looked


def test_an_enumerator_that_is_behind_says_so_once_and_when_it_is_no_longer():
    rig = Rig()
    assert rig.told_behind == [False]
    for behind in (True, True, False, False, True):
        rig.look(behind=behind)
    assert rig.told_behind == [False, True, False, True]


def test_an_enumerator_that_has_come_to_its_end_is_behind_no_more():
    rig = Rig()
    rig.look(behind=True)
    rig.look(behind=True, ended=True)
    assert rig.told_behind == [False, True, False]


def test_no_more_splits_are_looked_for_when_nothing_needs_them():
    """1. A look for splits is under way. 2. Nothing needs the records any more. 3. The look has found a split, which is
    not given out, and which the position does not pass."""
    rig = Rig()
    rig.look(behind=True)
    rig.assigner.turn(Instant(rig.now + 1_000))
    before = rig.assigner.snapshot(CheckpointId(1))
    rig.assigner.not_needed()
    rig.background.perform()
    after = rig.assigner.snapshot(CheckpointId(2))
    assert position_in(after) == position_in(before)
    assert rig.assigner.next_deadline() is None
    assert rig.told_behind[-2:] == [True, False]
    rig.enumerator.story.clear()
    rig.assigner.start(after, (), parallelism=1)
    rig.assigner.run()
    rig.background.perform()
    assert rig.enumerator.story == []
