"""How the data of a task ends, by how that of its channels did."""

from __future__ import annotations

import pytest

from penstock.core.elements import EndOfData
from penstock.core.task.data_ends import DataEnds

TO_ITS_END = EndOfData()
DRAINED = EndOfData(drain=True, stopped=True)
CUT_OFF = EndOfData(drain=False)


def ended(*channels):
    ends = DataEnds(len(channels))
    return [ends.ended(channel) for channel in channels]


@pytest.mark.parametrize("end", [TO_ITS_END, DRAINED, CUT_OFF])
def test_the_data_of_a_single_channel_ends_as_that_of_the_task(end):
    assert ended(end) == [end]


def test_the_data_of_a_task_ends_with_that_of_its_last_channel():
    assert ended(TO_ITS_END, TO_ITS_END, TO_ITS_END) == [None, None, TO_ITS_END]


@pytest.mark.parametrize("ends", [(CUT_OFF, TO_ITS_END), (TO_ITS_END, CUT_OFF), (DRAINED, CUT_OFF)])
def test_data_that_was_cut_off_in_one_channel_was_cut_off(ends):
    assert ended(*ends) == [None, CUT_OFF]


@pytest.mark.parametrize("ends", [(DRAINED, TO_ITS_END), (TO_ITS_END, DRAINED)])
def test_a_stop_with_drain_that_ended_one_channel_ended_the_task(ends):
    assert ended(*ends) == [None, DRAINED]
