"""What only the memory back end promises: how little a snapshot costs the loop."""

from __future__ import annotations

import gc
import sys
import threading
import tracemalloc
from types import SimpleNamespace

import pytest
from state_rig import EVENT_TIME, Step

import penstock as ps
from penstock.core.elements import CheckpointOptions
from penstock.core.ids import CheckpointId
from penstock.state import format as state_format


class All:
    value = ps.value_state("value", "bigint")
    mutable = ps.value_state("mutable", "array<bigint>")
    items = ps.list_state("items", "bigint")
    entries = ps.map_state("entries", key="bigint", value="bigint")
    mortal = ps.value_state("mortal", "bigint", ttl=ps.ttl("1h"))


def filled(keys):
    step = Step("memory", All)
    for key in range(keys):
        handles = step.at(key)
        handles["value"].set(key)
        handles["mutable"].set([key])
        handles["items"].add(key)
        handles["entries"].set(key, key)
        handles["mortal"].set(key)
        step.timers(key).add(EVENT_TIME, key)
    return step


def cost_of_freezing(keys):
    """How many calls, of Python and C functions, the synchronous part makes, and how many bytes it takes.

    The collector is off: what it runs (finalizers, callbacks of libraries) comes when it likes.
    """
    step = filled(keys)
    backend = step.backends[0]
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    gc.collect()
    gc.disable()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    sys.setprofile(count)
    try:
        backend.snapshot(CheckpointId(1), CheckpointOptions())
    finally:
        sys.setprofile(None)
        taken = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.stop()
        gc.enable()
    return calls, taken


@pytest.mark.slow
def test_the_synchronous_part_of_a_snapshot_does_not_depend_on_the_size_of_the_state():
    cost_of_freezing(10)  # What a process does once only, the first time, is no part of the cost.
    small_calls, small_bytes = cost_of_freezing(10)
    large_calls, large_bytes = cost_of_freezing(3_000)
    assert large_calls == small_calls
    # Not one byte per key, let alone a copy; a few objects differ by chance.
    assert large_bytes < small_bytes + 2_000


def test_the_work_lets_others_have_the_interpreter_between_pieces(monkeypatch):
    pauses = []
    # Other threads of the test run sleep too.
    monkeypatch.setattr(state_format, "time", SimpleNamespace(sleep=pauses.append))
    monkeypatch.setattr(state_format, "PIECE_ROWS", 100)
    step = filled(1_000)
    step.save()
    # Five states and the timers, in ten pieces each.
    assert len(pauses) == 6 * 9


def test_what_is_being_written_is_not_touched_by_an_abort():
    """1. The work of a snapshot has begun. 2. The checkpoint is aborted. 3. State changes, and is folded as far as it
    may. 4. The work ends: it has written what was frozen."""
    step = filled(50)
    backend = step.backends[0]
    taken = step.snapshot()
    begun, go_on = threading.Event(), threading.Event()

    class Slow:
        def put(self, data):
            return step.store.put(data)

    work = taken.work[0]
    plain_groups = step.groups_of

    def groups_of(batch):
        begun.set()
        assert go_on.wait(60)
        return plain_groups(batch)

    object.__setattr__(backend._context, "groups_of", groups_of)
    files = []
    thread = threading.Thread(target=lambda: files.append(work(Slow())))
    thread.start()
    assert begun.wait(60)
    object.__setattr__(backend._context, "groups_of", plain_groups)
    backend.aborted(taken.checkpoint)
    for key in range(50):
        step.at(key)["value"].set(-1)
        step.at(key)["items"].clear()
        step.at(key)["mutable"].get().append(-1)
    backend.maintain(10_000)
    go_on.set()
    thread.join(60)
    assert not thread.is_alive()
    restored = Step("memory", All, store=step.store, restored=files)
    for key in range(50):
        handles = restored.at(key)
        assert (handles["value"].get(), handles["items"].get(), handles["mutable"].get()) == (key, [key], [key])


def test_layers_are_folded_when_no_snapshot_needs_them():
    step = filled(1_000)
    backend = step.backends[0]
    for _ in range(5):
        taken = step.snapshot()
        for key in range(500):
            step.at(key)["value"].set(-key)
        taken.run(step.store)
        backend.completed(taken.checkpoint)
    while backend.maintain(100):
        pass
    assert all(layers.plain for layers in backend._all_layers())
    assert [step.at(key)["value"].get() for key in (0, 1, 499, 500, 999)] == [0, -1, -499, 500, 999]


@pytest.mark.parametrize("count", [3, 100])
def test_snapshots_that_follow_each_other_do_not_pile_up_layers(count):
    """Every snapshot is over when the next one is taken, and nobody has time for upkeep in between."""
    step = filled(10)
    backend = step.backends[0]
    for number in range(count):
        taken = step.snapshot()
        step.at(number % 10)["value"].set(number)
        taken.run(step.store)
    assert all(len(layers.freeze()) <= 3 for layers in backend._all_layers())
