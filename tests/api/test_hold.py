"""A driver's hold on its job: what is said by whom, and that it never comes back."""

from __future__ import annotations

import pytest

from penstock.api.hold import Hold, HoldUnknown
from penstock.core.errors import JobTakenOver, StorageError


class Look:
    def __init__(self, *says: Exception | None) -> None:
        self._says = list(says)
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        if (error := self._says.pop(0)) is not None:
            raise error


def test_a_job_that_ends_with_its_driver_is_always_held():
    Hold().check()


def test_a_hold_that_was_lost_is_not_looked_at_again():
    look = Look(None, JobTakenOver("another has it"))
    hold = Hold(look)
    hold.check()
    for _ in range(2):
        with pytest.raises(JobTakenOver):
            hold.check()
    assert (look.count, hold.is_lost, hold.has_let_go) == (2, True, False)


def test_doubt_is_neither_and_passes():
    hold = Hold(Look(StorageError("the disk is away"), StorageError("still away"), None))
    with pytest.raises(HoldUnknown, match="the disk is away"):
        hold.check()
    hold.check_unless_unknown()
    hold.check()
    assert not hold.is_lost


def test_what_is_certain_is_not_passed_over():
    hold = Hold(Look(JobTakenOver("another has it")))
    with pytest.raises(JobTakenOver):
        hold.check_unless_unknown()


def test_a_driver_that_let_go_does_not_ask():
    look = Look()
    hold = Hold(look)
    hold.let_go()
    with pytest.raises(JobTakenOver):
        hold.check()
    assert (look.count, hold.has_let_go) == (0, True)
