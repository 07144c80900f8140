"""What Python's cycle collector looks at while a slot runs."""

from __future__ import annotations

import gc
import weakref

import pytest

from penstock.spark.collector import out_of_sight


class Node:
    """Refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _as_it_was():
    yield
    gc.unfreeze()


def test_collections_leave_out_what_was_there_and_nothing_once_the_slot_has_ended():
    before = Node()
    with out_of_sight():
        assert not any(found is before for found in gc.get_objects())
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0
    assert any(found is before for found in gc.get_objects())


def test_what_users_leave_in_cycles_is_collected_as_ever():
    with out_of_sight():
        gone = weakref.ref(Node())
        gc.collect()
        assert gone() is None


def test_what_a_program_left_when_it_was_imported_does_not_stay():
    gone = weakref.ref(Node())
    with out_of_sight():
        assert gone() is None


def test_what_was_out_of_sight_and_became_garbage_goes_once_the_slot_has_ended():
    kept = Node()
    gone = weakref.ref(kept)
    with out_of_sight():
        del kept
        gc.collect()
        assert gone() is not None
    gc.collect()
    assert gone() is None
