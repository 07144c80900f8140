"""The automaton of patterns against the definition of a match, which tries every way to give records to steps."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pattern_oracle import Oracle

from penstock.api.pattern_steps import Contiguity, PatternShape, Refusal, Skip, SkipKind, StepShape
from penstock.core.errors import CorruptFile
from penstock.runtime.task.operators.pattern_automaton import Automaton
from penstock.runtime.task.operators.pattern_matches import KeyMatches

NEXT, FOLLOWED_BY, ANY = Contiguity.NEXT, Contiguity.FOLLOWED_BY, Contiguity.FOLLOWED_BY_ANY
REFERRING = 0b1010_1010
"""The conditions with odd numbers refer to the record before: they are true if the record also has another level than
that record."""


def drawn_shape(chance):
    names = conditions = 0
    steps = []
    for number in range(chance.randint(1, 3)):
        alternatives = chance.choice((1, 1, 1, 2))
        refused = []
        if number and chance.random() < 0.3:
            refused.append(Refusal(condition=conditions, only_next=chance.random() < 0.5))
            conditions += 1
        own_names = tuple(range(names, names + alternatives))
        own_conditions = tuple(range(conditions, conditions + alternatives))
        names += alternatives
        conditions += alternatives
        least = chance.choice((1, 1, 1, 2))
        most = chance.choice((least, least, least + 1, None))
        until = None
        if most is None and chance.random() < 0.5:
            until = conditions
            conditions += 1
        is_optional = chance.random() < 0.25
        steps.append(
            StepShape(
                names=own_names,
                conditions=own_conditions,
                contiguity=chance.choice(tuple(Contiguity)),
                refused=tuple(refused),
                least=least,
                most=most,
                is_optional=is_optional,
                is_greedy=(most != 1 or is_optional) and chance.random() < 0.4,
                inner=chance.choice(tuple(Contiguity)),
                until=until,
                gap_us=chance.choice((None, None, 2)),
            )
        )
    if all(step.is_optional for step in steps):
        steps[0] = StepShape(names=steps[0].names, conditions=steps[0].conditions)
    within = chance.choice((None, 3, 5))
    at_end, end_gap = (), None
    if chance.random() < 0.3:
        at_end, end_gap = (Refusal(condition=conditions, only_next=False),), chance.choice((None, 2))
        within = within or 5
    kind = chance.choice((SkipKind.NONE, SkipKind.NONE, *SkipKind))
    if Skip(kind=kind).waits:
        # A match waits until what began before it is over.
        within = within or 5
    name = chance.randrange(names) if kind in (SkipKind.TO_FIRST, SkipKind.TO_LAST) else None
    return PatternShape(
        steps=tuple(steps),
        refused_at_end=at_end,
        end_gap_us=end_gap,
        within_us=within,
        skip=Skip(kind=kind, name=name),
    )


def drawn_records(chance, shape):
    """Truths, a level, and how long after the record before. Records that fulfil everything have too many matches, and
    records that fulfil nothing have none."""
    taking = [condition for step in shape.steps for condition in step.conditions]
    records = []
    for _ in range(chance.randint(0, 7)):
        truths = sum(1 << n for n in range(10) if chance.random() < (0.6 if n in taking else 0.15))
        records.append((truths, chance.randrange(2), chance.choice((0, 1, 1, 2))))
    return records


def holds(records):
    def found(condition, prefix, record):
        truths, level, _ = records[record]
        if not truths >> condition & 1:
            return False
        return not REFERRING >> condition & 1 or not prefix or records[prefix[-1][2]][1] != level

    return found


def times_of(records):
    times, time = [], 0
    for _, _, after in records:
        time += after
        times.append(time)
    return times


class Feed:
    """Feeds records to the partial matches of a key, and saves and loads them as often as is said."""

    def __init__(self, shape, *, saves_every=None):
        self.shape = shape
        self.automaton = Automaton(shape)
        self.made = self.fresh()
        self.saves_every = saves_every
        self.matches, self.given_up = [], []
        self.deadlines = set()

    def fresh(self):
        return KeyMatches(self.shape, self.automaton, referring=REFERRING)

    def moment(self, time, records):
        asking = self.made.run([(time, records)])
        try:
            row, questions = next(asking)
            while True:
                row, questions = asking.send([self.answer(row, last) for _, last in questions])
        except StopIteration:
            pass
        for outcome in self.made.outcomes:
            taken = tuple((link.name, link.row["number"]) for link in outcome.last.links())
            (self.matches if outcome.is_match else self.given_up).append(taken)
        self.made.outcomes.clear()
        self.deadlines |= self.made.deadlines
        self.check_nothing_waits_in_vain()
        if self.saves_every is not None:
            before, self.made = self.made, self.fresh()
            if not before.is_empty:
                self.made.load(before.saved())

    def check_nothing_waits_in_vain(self):
        """A match waits only for partial matches that began before it."""
        saved = self.made.saved()

        def first(last):
            link = saved["taken"][last]
            return first(link["before"]) if link["before"] >= 0 else saved["records"][link["record"]]["number"]

        if saved["found"]:
            waits = first(saved["found"][0]["last"])
            assert any(first(each["last"]) < waits for each in saved["partials"])

    def answer(self, row, last):
        return last is None or last.row["level"] != row["level"]

    def all(self, records):
        times = times_of(records)
        by_time = {}
        for number, ((truths, level, _), time) in enumerate(zip(records, times, strict=True)):
            by_time.setdefault(time, []).append((truths, {"number": number, "level": level}))
        todo = set(by_time)
        done = set()
        while todo:
            time = min(todo)
            self.moment(time, by_time.get(time, []))
            done.add(time)
            assert all(each > time for each in self.deadlines - done)
            todo = (todo | self.deadlines) - done
        return self


def names_of(prefixes):
    return [tuple((name, record) for _, name, record in prefix) for prefix in prefixes]


def check(chance):
    shape = drawn_shape(chance)
    records = drawn_records(chance, shape)
    oracle = Oracle(shape, times_of(records), holds(records))
    feed = Feed(shape, saves_every=chance.choice((None, 1))).all(records)
    expected = names_of(oracle.matches())
    if shape.skip.kind is SkipKind.NONE:
        assert feed.matches == expected
        assert sorted(feed.given_up) == sorted(names_of(oracle.timed_out()))
    else:
        in_order = lambda found: sorted(found, key=lambda taken: taken[0][1])  # noqa: E731
        assert in_order(feed.matches) == in_order(expected)
    if shape.within_us is not None:
        assert feed.made.is_empty
    assert shape.shortest_us is not None or not feed.deadlines


def test_matches_are_those_of_the_definition():
    for seed in range(2_000):
        check(random.Random(seed))


@given(st.randoms(use_true_random=False))
def test_matches_are_those_of_the_definition_in_any_case(chance):
    check(chance)


def test_partial_matches_share_what_they_have_taken_in_the_state():
    a = StepShape(names=(0,), conditions=(0,), most=None)
    b = StepShape(names=(1,), conditions=(2,))
    feed = Feed(PatternShape(steps=(a, b), within_us=1_000))
    for time in range(50):
        feed.moment(time, [(1, {"number": time, "level": 0})])
    saved = feed.made.saved()
    assert len(saved["records"]) == 50
    # Each record is taken behind every chain of records before it, and begins a chain.
    assert len(saved["taken"]) == 50 * 51 / 2
    assert len(saved["partials"]) == len(saved["taken"])


def test_a_long_chain_is_saved_and_loaded_without_recursion():
    a = StepShape(names=(0,), conditions=(0,), most=None, inner=NEXT)
    b = StepShape(names=(1,), conditions=(2,))
    shape = PatternShape(steps=(a, b), within_us=10**9, skip=Skip(kind=SkipKind.PAST_LAST))
    feed = Feed(shape)
    feed.moment(0, [(1, {"number": 0, "level": 0})])
    first = feed.made.saved()
    assert first["next"] == 1
    for time in range(1, 3):
        feed.moment(time, [(1, {"number": time, "level": 0})])
    other = feed.fresh()
    other.load(feed.made.saved())
    assert other.saved() == feed.made.saved()


def test_a_key_with_many_records_of_one_time_stops_for_other_work():
    """Otherwise a million records of one day would hold up the task until all of them are taken."""
    a, b = StepShape(names=(0,), conditions=(0,)), StepShape(names=(1,), conditions=(2,))
    shape = PatternShape(steps=(a, b), within_us=1_000, skip=Skip(kind=SkipKind.PAST_LAST))
    made = Feed(shape).made
    asking, stops = made.run([(0, [(1 if number % 2 == 0 else 4, {"number": number}) for number in range(5_000)])]), 0
    asked = next(asking, None)
    while asked is not None:
        stops += 1
        assert asked[1] == []
        try:
            asked = asking.send([])
        except StopIteration:
            asked = None
    assert stops >= 10
    assert len([each for each in made.outcomes if each.is_match]) == 2_500


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("taken", {"before": 99}),
        ("taken", {"name": 7}),
        ("taken", {"name": -1}),
        ("taken", {"record": 99}),
        ("taken", {"record": -1}),
        ("taken", {"before": None}),
        ("records", {"record": None}),
        ("partials", {"place": 99}),
        ("partials", {"place": -1}),
        ("partials", {"place": 0}),
        ("partials", {"open": -1}),
        ("partials", {"open": 1 << 40}),
        ("partials", {"last": 99}),
    ],
)
def test_partial_matches_that_cannot_be_are_refused(part, change):
    """A snapshot may have been written by anybody."""
    a, b = StepShape(names=(0,), conditions=(0,), most=None), StepShape(names=(1,), conditions=(2,))
    feed = Feed(PatternShape(steps=(a, b), within_us=1_000))
    feed.moment(0, [(1, {"number": 0, "level": 0})])
    saved = feed.made.saved()
    feed.fresh().load(saved)
    saved[part][0] |= change
    with pytest.raises(CorruptFile, match="partial matches of a pattern cannot be read"):
        feed.fresh().load(saved)


@pytest.mark.parametrize(
    ("greedy", "expected"),
    [(False, [[0, 1, 2], [0, 2], [1, 2]]), (True, [[0, 1, 2], [1, 2]])],
)
def test_a_greedy_step_leaves_nothing_to_later_steps(greedy, expected):
    a = StepShape(names=(0,), conditions=(0,), most=None, is_greedy=greedy)
    b = StepShape(names=(1,), conditions=(2,))
    feed = Feed(PatternShape(steps=(a, b), within_us=1_000)).all([(1, 0, 1), (1, 0, 1), (4, 0, 1)])
    assert [[record for _, record in taken] for taken in feed.matches] == expected
