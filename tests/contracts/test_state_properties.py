"""Every back end against plain dicts: any order of changes, snapshots, aborts, restores, waiting and upkeep."""

from __future__ import annotations

import copy
import random

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from state_rig import BACKENDS, EVENT_TIME, PROCESSING_TIME, Step

import penstock as ps
from penstock.api.state_declarations import declared_states

KEY_COUNT = 4
KEYS = st.integers(0, KEY_COUNT - 1)
NAMES = st.sampled_from(["a", "b"])
SMALL = st.integers(0, 9)
TIMES = st.integers(0, 9)
TIMER_KINDS = st.sampled_from([EVENT_TIME, PROCESSING_TIME])
TTL_MS = 1_000


class States:
    number = ps.value_state("number", "bigint")
    thing = ps.value_state("thing", object)
    items = ps.list_state("items", "string")
    parts = ps.list_state("parts", "array<bigint>")
    entries = ps.map_state("entries", key="string", value="bigint")
    nested = ps.map_state("nested", key="string", value=object)
    mortal = ps.value_state("mortal", "bigint", ttl=ps.ttl("1s"))
    renewed = ps.map_state("renewed", key="string", value="bigint", ttl=ps.ttl("1s", on="read-and-write"))
    aging = ps.list_state("aging", "bigint", ttl=ps.ttl("1s"))


STATES = sorted(declared_states(States))


def _changes(name, *arguments):
    return st.tuples(st.just(name), st.tuples(*arguments))


CHANGES = st.one_of(
    _changes("set_value", KEYS, st.sampled_from(["number", "mortal"]), st.none() | SMALL),
    _changes("change_a_thing_in_place", KEYS, SMALL),
    _changes("add_items", KEYS, st.sampled_from(["items", "aging"]), SMALL, st.integers(1, 3)),
    _changes("change_a_part_in_place", KEYS, SMALL),
    _changes("replace_items", KEYS, st.sampled_from(["items", "parts", "aging"])),
    _changes("set_entry", KEYS, st.sampled_from(["entries", "renewed"]), NAMES, SMALL),
    _changes("change_an_entry_in_place", KEYS, NAMES, SMALL, st.booleans()),
    _changes("remove_entry", KEYS, st.sampled_from(["entries", "renewed", "nested"]), NAMES),
    _changes("clear", KEYS, st.sampled_from(STATES)),
    _changes("read_an_entry_that_is_renewed", KEYS, NAMES),
    _changes("set_timer", KEYS, TIMER_KINDS, TIMES),
    _changes("take_timer_back", KEYS, TIMER_KINDS, TIMES),
)


class Model:
    """What the state should be: per key plain values; mortal ones with the time they were written."""

    def __init__(self):
        self.values = {}
        self.lists = {}
        self.maps = {}
        self.timers = set()


class StateMachine(RuleBasedStateMachine):
    kind = "memory"

    @initialize(parallelism=st.integers(1, 3))
    def begin(self, parallelism):
        self.step = Step(self.kind, States, parallelism=parallelism)
        self.model = Model()
        self.waiting = []
        self.saved = []

    def teardown(self):
        if hasattr(self, "step"):
            self.step.close()

    @property
    def now(self):
        return self.step.clock.now

    def lives(self, written):
        return self.now - written < TTL_MS

    # --- changes -------------------------------------------------------------------------

    @rule(changes=st.lists(CHANGES, min_size=1, max_size=12))
    def change(self, changes):
        for name, arguments in changes:
            getattr(self, name)(*arguments)

    def set_value(self, key, name, value):
        self.step.at(key)[name].set(value)
        if value is None:
            self.model.values.pop((name, key), None)
        else:
            self.model.values[name, key] = (value, self.now)

    def change_a_thing_in_place(self, key, value):
        thing = self.step.at(key)["thing"]
        found = thing.get() or {"seen": []}
        found["seen"].append(value)
        thing.set(found)
        self.model.values.setdefault(("thing", key), ({"seen": []}, 0))[0]["seen"].append(value)

    def add_items(self, key, name, value, count):
        values = [str(value) if name == "items" else value] * count
        self.step.at(key)[name].extend(values)
        self.model.lists.setdefault((name, key), []).extend((v, self.now) for v in values)

    def change_a_part_in_place(self, key, value):
        parts = self.step.at(key)["parts"]
        found = parts.get()
        if found:
            found[0].append(value)
            parts.set(found)
        else:
            parts.add([value])
        expected = self.model.lists.setdefault(("parts", key), [])
        if expected:
            expected[0][0].append(value)
        else:
            expected.append(([value], 0))

    def replace_items(self, key, name):
        new = {"items": ["x"], "parts": [[1], [2]], "aging": [5]}[name]
        self.step.at(key)[name].set(copy.deepcopy(new))
        self.model.lists[name, key] = [(v, self.now) for v in copy.deepcopy(new)]

    def set_entry(self, key, name, inner, value):
        self.step.at(key)[name].set(inner, value)
        self.model.maps.setdefault((name, key), {})[inner] = (value, self.now)

    def change_an_entry_in_place(self, key, inner, value, by_items):
        nested = self.step.at(key)["nested"]
        found = dict(nested.items()).get(inner) if by_items else nested.get(inner)
        found = [] if found is None else found
        found.append(value)
        nested.set(inner, found)
        self.model.maps.setdefault(("nested", key), {}).setdefault(inner, ([], 0))[0].append(value)

    def remove_entry(self, key, name, inner):
        self.step.at(key)[name].remove(inner)
        self.model.maps.get((name, key), {}).pop(inner, None)

    def clear(self, key, name):
        self.step.at(key)[name].clear()
        for found in (self.model.values, self.model.lists, self.model.maps):
            found.pop((name, key), None)

    def read_an_entry_that_is_renewed(self, key, inner):
        found = self.step.at(key)["renewed"].get(inner)
        entries = self.model.maps.get(("renewed", key), {})
        expected = entries.get(inner)
        if expected is None or not self.lives(expected[1]):
            assert found is None
            entries.pop(inner, None)
        else:
            assert found == expected[0]
            entries[inner] = (expected[0], self.now)

    # --- time ----------------------------------------------------------------------------

    def set_timer(self, key, kind, time_us):
        self.step.timers(key).add(kind, time_us)
        self.model.timers.add((kind, time_us, key))

    def take_timer_back(self, key, kind, time_us):
        self.step.timers(key).remove(kind, time_us)
        self.model.timers.discard((kind, time_us, key))

    @rule(kind=TIMER_KINDS, until_us=TIMES)
    def fire(self, kind, until_us):
        due = sorted((t, key) for found, t, key in self.model.timers if found is kind and t <= until_us)
        fired = self.step.fire(kind, until_us)
        assert sorted(fired) == due
        if self.step.parallelism == 1:
            assert fired == due
        self.model.timers -= {(kind, t, key) for t, key in due}

    @rule(ms=st.sampled_from([1, 300, 999, 1_000, 5_000]))
    def wait(self, ms):
        self.step.clock.now += ms

    @rule(budget=st.sampled_from([1, 3, 1_000]))
    def maintain(self, budget):
        for backend in self.step.backends:
            backend.maintain(budget)

    # --- snapshots -----------------------------------------------------------------------

    @precondition(lambda self: len(self.waiting) < 3)
    @rule(canonical=st.booleans(), full=st.booleans())
    def snapshot(self, canonical, full):
        taken = self.step.snapshot(canonical=canonical, savepoint=canonical, full=full)
        self.waiting.append((taken, copy.deepcopy(self.model), self.now))

    @precondition(lambda self: self.waiting)
    @rule()
    def write(self):
        taken, model, at = self.waiting.pop(0)
        taken.run(self.step.store)
        for backend in self.step.backends:
            backend.completed(taken.checkpoint)
        self.saved = [*self.saved[-2:], (taken.files, model, at)]

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 2), runs_anyway=st.booleans())
    def abort(self, which, runs_anyway):
        taken, _, _ = self.waiting.pop(which % len(self.waiting))
        if runs_anyway:
            taken.run(self.step.store)
        for backend in self.step.backends:
            backend.aborted(taken.checkpoint)

    @precondition(lambda self: self.saved)
    @rule(parallelism=st.integers(1, 4), which=st.integers(0, 2))
    def restore(self, parallelism, which):
        """The job fails, and goes on from a checkpoint with any parallelism."""
        files, model, _ = self.saved[which % len(self.saved)]
        clock, store = self.step.clock, self.step.store
        self.step.close()
        self.step = Step(self.kind, States, parallelism=parallelism, clock=clock, store=store, restored=files)
        self.model = copy.deepcopy(model)
        self.waiting = []

    # --- what must hold ------------------------------------------------------------------

    @invariant()
    def state_is_as_expected(self):
        if not hasattr(self, "step"):
            return
        for key in range(KEY_COUNT):
            handles = self.step.at(key)
            for name in ("number", "thing", "mortal"):
                value, written = self.model.values.get((name, key), (None, 0))
                expected = None if name == "mortal" and not self.lives(written) else value
                assert handles[name].get() == expected
                assert handles[name].exists() == (expected is not None)
            for name in ("items", "parts", "aging"):
                found = self.model.lists.get((name, key), [])
                assert handles[name].get() == [v for v, w in found if name != "aging" or self.lives(w)]
            for name in ("entries", "nested"):
                found = self.model.maps.get((name, key), {})
                assert dict(handles[name].items()) == {inner: v for inner, (v, _) in found.items()}
            timers = self.step.timers(key)
            for kind in (EVENT_TIME, PROCESSING_TIME):
                expected = sorted(t for found, t, owner in self.model.timers if (found, owner) == (kind, key))
                assert timers.of_key(kind) == expected


@pytest.mark.parametrize("kind", sorted(BACKENDS))
def test_the_state_is_that_of_plain_dicts_whatever_happens(kind):
    run_state_machine_as_test(type("StateMachine", (StateMachine,), {"kind": kind}))


def _random_change(draw):
    key, inner, small = draw.randrange(KEY_COUNT), draw.choice("ab"), draw.randrange(10)
    kind = draw.choice([EVENT_TIME, PROCESSING_TIME])
    return draw.choice(
        [
            ("set_value", (key, draw.choice(["number", "mortal"]), draw.choice([None, small]))),
            ("change_a_thing_in_place", (key, small)),
            ("add_items", (key, draw.choice(["items", "aging"]), small, 1 + small % 3)),
            ("change_a_part_in_place", (key, small)),
            ("replace_items", (key, draw.choice(["items", "parts", "aging"]))),
            ("set_entry", (key, draw.choice(["entries", "renewed"]), inner, small)),
            ("change_an_entry_in_place", (key, inner, small, small % 2 == 0)),
            ("remove_entry", (key, draw.choice(["entries", "renewed", "nested"]), inner)),
            ("clear", (key, draw.choice(STATES))),
            ("read_an_entry_that_is_renewed", (key, inner)),
            ("set_timer", (key, kind, small)),
            ("take_timer_back", (key, kind, small)),
        ]
    )


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", sorted(BACKENDS))
def test_the_state_is_that_of_plain_dicts_for_a_long_time(kind, seed):
    """The same, in long walks, which Hypothesis hardly ever makes; it looks into every state only now and then."""
    draw = random.Random(seed)
    machine = StateMachine()
    machine.kind = kind
    machine.begin(1 + seed % 3)
    for _ in range(150):
        match draw.randrange(10):
            case 0 if len(machine.waiting) < 3:
                machine.snapshot(draw.random() < 0.3, draw.random() < 0.3)
            case 1 | 2 if machine.waiting:
                machine.write()
            case 3 if machine.waiting and draw.random() < 0.5:
                machine.abort(draw.randrange(3), draw.random() < 0.5)
            case 4 if machine.saved and draw.random() < 0.3:
                machine.restore(draw.randrange(1, 5), draw.randrange(3))
            case 5:
                machine.maintain(draw.choice([1, 3, 1_000]))
            case 6:
                machine.fire(draw.choice([EVENT_TIME, PROCESSING_TIME]), draw.randrange(10))
            case 7 if draw.random() < 0.5:
                machine.wait(draw.choice([1, 300, 999, 1_000]))
            case _:
                machine.change([_random_change(draw) for _ in range(draw.randrange(1, 12))])
        if draw.random() < 0.3:
            machine.state_is_as_expected()
    machine.state_is_as_expected()
    machine.teardown()
