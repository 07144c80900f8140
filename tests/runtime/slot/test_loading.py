"""What a slot says of tasks that take long to load."""

from __future__ import annotations

from slot_rig import SLOT

from penstock.core.ids import Epoch, Instant
from penstock.core.messages import TasksLoading
from penstock.runtime.pulse import Whereabouts
from penstock.runtime.slot.loading import Loading
from penstock.settings import SlotSettings


def at(name: str, call: int) -> Whereabouts:
    return Whereabouts(operator=name, subtask=1, doing="in open()", stack=f"in {name}", call=call)


def told(loading: Loading, *times_ms: int) -> list[TasksLoading]:
    found = [loading.report(Instant(time_ms)) for time_ms in times_ms]
    return [message for message in found if message is not None]


def test_a_load_is_told_of_when_half_of_the_time_for_it_is_over_and_then_every_second():
    loading = Loading(SLOT, SlotSettings(deploy_timeout_ms=8_000), lambda: at("counts", 1))
    assert told(loading, 100_000) == []
    loading.begin(Epoch(3), Instant(0))
    assert [message.loading_ms for message in told(loading, *range(0, 7_000, 250))] == [4_000, 5_000, 6_000]
    assert [message.loading_ms for message in told(loading_of_default(), *range(0, 12_000, 250))] == [10_000, 11_000]


def loading_of_default() -> Loading:
    loading = Loading(SLOT, SlotSettings(), lambda: at("counts", 1))
    loading.begin(Epoch(3), Instant(0))
    return loading


def test_the_step_is_told_with_how_long_it_has_been_at_work():
    steps = [at("first", 1), at("first", 1), at("second", 2), at("second", 2)]
    loading = Loading(SLOT, SlotSettings(), lambda: steps.pop(0))
    loading.begin(Epoch(3), Instant(0))
    found = told(loading, 10_000, 11_000, 12_000, 13_000)
    assert [(m.operator, m.step_ms, m.stack) for m in found] == [
        ("first", 10_000, "in first"),
        ("first", 11_000, "in first"),
        ("second", 0, "in second"),
        ("second", 1_000, "in second"),
    ]
    assert {(m.slot, m.epoch, m.subtask, m.doing) for m in found} == {(SLOT, Epoch(3), 1, "in open()")}


def test_the_end_of_an_earlier_load_does_not_end_a_later_load():
    loading = loading_of_default()
    loading.begin(Epoch(4), Instant(0))
    loading.end(Epoch(3))
    assert len(told(loading, 10_000)) == 1
    loading.end(Epoch(4))
    assert told(loading, 20_000) == []
