"""What every back end for keyed state promises. Their common handles are tested with it."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal

import pyarrow as pa
import pytest
from state_rig import BACKENDS, EVENT_TIME, PROCESSING_TIME, Files, Step

import penstock as ps
from penstock.core.errors import CorruptFile, StorageError, UsageError
from penstock.sql.schemas import as_schema
from penstock.state.keys import NAN

UTC = datetime.UTC


class Plain:
    count = ps.value_state("count", "bigint", default=0)
    words = ps.list_state("words", "string")
    scores = ps.map_state("scores", key="string", value="double")
    anything = ps.value_state("anything", object)


class Folded:
    total = ps.reducing_state("total", "bigint", lambda old, new: old + new)
    mean = ps.aggregating_state(
        "mean",
        "struct<sum: double, n: bigint>",
        create=lambda: {"sum": 0.0, "n": 0},
        add=lambda acc, value: {"sum": acc["sum"] + value, "n": acc["n"] + 1},
        result=lambda acc: acc["sum"] / acc["n"],
    )


@pytest.fixture(params=sorted(BACKENDS))
def kind(request):
    return request.param


@pytest.fixture
def step(kind):
    made = Step(kind, Plain)
    yield made
    made.close()


# --- handles ---------------------------------------------------------------------------------------------------------


def test_a_value_is_its_own_for_every_key(step):
    step.at(1)["count"].set(5)
    assert step.at(2)["count"].get() == 0
    assert not step.at(2)["count"].exists()
    assert step.at(1)["count"].get() == 5
    step.at(1)["count"].clear()
    assert step.at(1)["count"].get() == 0


def test_none_removes_a_value(step):
    count = step.at(1)["count"]
    count.set(5)
    count.set(None)
    assert not count.exists()


def test_a_list_keeps_its_order(step):
    words = step.at(1)["words"]
    words.add("a")
    words.extend(["b", "a"])
    assert words.get() == ["a", "b", "a"]
    assert step.at(2)["words"].get() == []
    step.at(1)["words"].set(["z"])
    assert words.get() == ["z"]
    words.clear()
    assert not words.exists()


def test_the_list_that_was_got_is_the_callers(step):
    words = step.at(1)["words"]
    words.add("a")
    words.get().append("b")
    assert words.get() == ["a"]


def test_a_map_works_like_a_dict(step):
    scores = step.at(1)["scores"]
    scores["a"] = 1
    scores.set("b", 2.5)
    assert (scores["a"], scores.get("b"), scores.get("c"), scores.get("c", 7)) == (1.0, 2.5, None, 7)
    assert type(scores["a"]) is float
    assert "a" in scores
    assert "c" not in scores
    assert sorted(scores.items()) == [("a", 1.0), ("b", 2.5)]
    assert (sorted(scores), sorted(scores.keys()), sorted(scores.values())) == (["a", "b"], ["a", "b"], [1.0, 2.5])
    del scores["a"]
    scores.remove("nothing")
    assert dict(scores.items()) == {"b": 2.5}
    with pytest.raises(KeyError, match="a"):
        scores["a"]
    with pytest.raises(KeyError, match="a"):
        del scores["a"]
    assert not step.at(2)["scores"].exists()
    step.at(1)["scores"].clear()
    assert not scores.exists()


def test_a_map_may_be_changed_while_it_is_read(step):
    scores = step.at(1)["scores"]
    for n in range(10):
        scores.set(str(n), n)
    for key in scores:
        scores.remove(key)
    assert not scores.exists()


def test_reducing_and_aggregating_state_fold_what_is_added(kind):
    step = Step(kind, Folded)
    handles = step.at(1)
    assert (handles["total"].get(), handles["mean"].get()) == (None, None)
    for value in (1, 2, 6):
        handles["total"].add(value)
        handles["mean"].add(value)
    assert (handles["total"].get(), handles["mean"].get()) == (9, 3.0)
    restored = Step(kind, Folded, store=step.store, restored=step.save())
    assert (restored.at(1)["total"].get(), restored.at(1)["mean"].get()) == (9, 3.0)
    restored.at(1)["total"].clear()
    assert not restored.at(1)["total"].exists()
    assert restored.at(1)["mean"].exists()
    restored.at(1)["mean"].clear()
    assert not restored.at(1)["mean"].exists()


@pytest.mark.parametrize("value", ["text", 2**63, 1.5, [1], True])
def test_what_the_type_cannot_hold_is_refused_when_it_is_set(step, value):
    with pytest.raises(UsageError, match="state 'count' is of type int64"):
        step.at(1)["count"].set(value)


def test_without_a_key_nothing_can_be_used(step):
    step.at(1)["count"].set(5)
    handles = step.at(1)
    for backend in step.backends:
        backend.unset_key()
    for use in (
        handles["count"].get,
        lambda: handles["count"].set(1),
        handles["words"].get,
        lambda: handles["words"].add("a"),
        lambda: handles["scores"].get("a"),
        lambda: step.backends[0].timers.add(EVENT_TIME, 1),
        lambda: step.backends[0].timers.of_key(EVENT_TIME),
    ):
        with pytest.raises(UsageError, match="there is no key"):
            use()


def test_a_default_that_can_be_changed_is_nobodys_state(kind):
    class Tags:
        tags = ps.value_state("tags", "array<string>", default=[])

    step = Step(kind, Tags)
    step.at(1)["tags"].get().append("a")
    assert step.at(2)["tags"].get() == []


# --- snapshots -------------------------------------------------------------------------------------------------------


def fill(step, keys):
    for key in keys:
        handles = step.at(key)
        handles["count"].set(key * 10)
        handles["words"].extend([f"w{key}", "x"])
        handles["scores"].set("a", key)
        handles["scores"].set("b", -key)
        handles["anything"].set({"key": key, "parts": [key, (key, None)]})
        step.timers(key).add(EVENT_TIME, key * 100)
        step.timers(key).add(PROCESSING_TIME, key * 1000)


def check(step, keys):
    for key in keys:
        handles = step.at(key)
        assert handles["count"].get() == key * 10
        assert handles["words"].get() == [f"w{key}", "x"]
        assert dict(handles["scores"].items()) == {"a": key, "b": -key}
        assert handles["anything"].get() == {"key": key, "parts": [key, (key, None)]}
        assert step.timers(key).of_key(EVENT_TIME) == [key * 100]
        assert step.timers(key).of_key(PROCESSING_TIME) == [key * 1000]


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 3), (3, 2), (2, 5), (16, 1)])
@pytest.mark.parametrize("options", [{}, {"savepoint": True, "canonical": True}, {"full": True}])
def test_a_snapshot_can_be_restored_at_any_parallelism(kind, before, after, options):
    step = Step(kind, Plain, parallelism=before)
    fill(step, range(100))
    restored = Step(kind, Plain, parallelism=after, store=step.store, restored=step.save(**options))
    check(restored, range(100))
    assert sorted(restored.fire(EVENT_TIME, 5_000)) == [(key * 100, key) for key in range(51)]
    assert restored.at(100)["count"].get() == 0


@pytest.mark.parametrize("writer", sorted(BACKENDS))
@pytest.mark.parametrize("reader", sorted(BACKENDS))
def test_a_canonical_snapshot_can_be_restored_by_every_back_end(writer, reader):
    step = Step(writer, Plain, parallelism=2)
    fill(step, range(50))
    check(Step(reader, Plain, store=step.store, restored=step.save(savepoint=True, canonical=True)), range(50))


def test_an_empty_state_is_no_file(kind, step):
    assert step.save() == [()]
    fill(step, [1])
    handles = step.at(1)
    for handle in handles.values():
        handle.clear()
    step.timers(1).remove(EVENT_TIME, 100)
    step.timers(1).remove(PROCESSING_TIME, 1000)
    assert step.save(canonical=True, savepoint=True) == [()]


def test_a_snapshot_has_what_was_there_when_it_was_taken(kind, step):
    """What changes between the freezing and the writing belongs to the next snapshot."""
    fill(step, range(10))
    first = step.snapshot()
    for key in range(5):
        for handle in step.at(key).values():
            handle.clear()
        step.timers(key).remove(EVENT_TIME, key * 100)
    fill(step, range(10, 15))
    step.at(7)["words"].add("later")
    step.at(7)["scores"].set("later", 1)
    step.at(7)["scores"].remove("a")
    second = step.snapshot()
    step.at(8)["count"].set(0)
    first.run(step.store)
    second.run(step.store)
    restored = Step(kind, Plain, store=step.store, restored=first.files)
    check(restored, range(10))
    assert not restored.at(12)["count"].exists()
    restored = Step(kind, Plain, store=step.store, restored=second.files)
    check(restored, [5, 6, 8, 9, *range(10, 15)])
    assert restored.at(7)["words"].get() == ["w7", "x", "later"]
    assert dict(restored.at(7)["scores"].items()) == {"b": -7, "later": 1}
    assert not any(handle.exists() for handle in restored.at(3).values())
    assert restored.timers(3).of_key(EVENT_TIME) == []


def test_what_is_changed_in_place_never_reaches_an_earlier_snapshot(kind):
    class Mutable:
        tags = ps.value_state("tags", "array<string>")
        parts = ps.list_state("parts", object)
        nested = ps.map_state("nested", key="string", value=object)

    step = Step(kind, Mutable)
    handles = step.at(1)
    handles["tags"].set(["a"])
    handles["parts"].add({"n": [1]})
    handles["nested"].set("k", [[1]])
    handles["nested"].set("l", [[1]])
    taken = step.snapshot()
    handles = step.at(1)
    for _ in range(2):
        tags = handles["tags"].get()
        tags.append("b")
        handles["tags"].set(tags)
        parts = handles["parts"].get()
        parts[0]["n"].append(2)
        handles["parts"].set(parts)
        nested = handles["nested"].get("k")
        nested[0].append(2)
        handles["nested"].set("k", nested)
        for value in handles["nested"].values():
            value[0].append(3)
    taken.run(step.store)
    restored = Step(kind, Mutable, store=step.store, restored=taken.files).at(1)
    assert restored["tags"].get() == ["a"]
    assert restored["parts"].get() == [{"n": [1]}]
    assert dict(restored["nested"].items()) == {"k": [[1]], "l": [[1]]}
    assert handles["tags"].get() == ["a", "b", "b"]
    assert handles["parts"].get() == [{"n": [1, 2, 2]}]


def test_an_aborted_snapshot_takes_no_other_with_it(kind, step):
    """1. Two snapshots are taken. 2. The first is aborted. 3. The second is written, with all that it froze."""
    fill(step, range(5))
    first = step.snapshot()
    fill(step, range(5, 10))
    second = step.snapshot()
    step.backends[0].aborted(first.checkpoint)
    step.at(1)["count"].set(0)
    while step.backends[0].maintain(10):
        pass
    second.run(step.store)
    check(Step(kind, Plain, store=step.store, restored=second.files), range(10))


@pytest.mark.parametrize("runs_anyway", [False, True])
def test_an_aborted_snapshot_changes_nothing(kind, step, runs_anyway):
    fill(step, range(10))
    taken = step.snapshot()
    fill_again = step.at(3)["words"]
    fill_again.add("after")
    for backend in step.backends:
        backend.aborted(taken.checkpoint)
    if runs_anyway:
        taken.run(step.store)
    while step.backends[0].maintain(10):
        pass
    check(step, [0, 1, 2, 4, 9])
    assert step.at(3)["words"].get() == ["w3", "x", "after"]
    restored = Step(kind, Plain, store=step.store, restored=step.save())
    assert restored.at(3)["words"].get() == ["w3", "x", "after"]


def test_a_write_that_fails_leaves_the_state_as_it_is(kind, step):
    fill(step, range(10))
    taken = step.snapshot()
    step.at(4)["count"].set(1)
    step.store.fails = StorageError("no")
    with pytest.raises(StorageError):
        taken.run(step.store)
    step.store.fails = None
    step.backends[0].aborted(taken.checkpoint)
    restored = Step(kind, Plain, store=step.store, restored=step.save())
    assert restored.at(4)["count"].get() == 1
    check(restored, [3, 5])


def test_work_may_outlive_its_back_end(kind, step):
    """1. A snapshot is taken. 2. The task ends. 3. Its work runs: it may write or fail, and that is all."""
    fill(step, range(10))
    taken = step.snapshot()
    step.close()
    try:
        taken.run(step.store)
    except Exception:  # noqa: BLE001  # its files may be gone, whatever that means to it
        return
    check(Step(kind, Plain, store=step.store, restored=taken.files), range(10))


@pytest.mark.parametrize("restored_by", sorted(BACKENDS))
@pytest.mark.parametrize("damage", [lambda d: d[:20], lambda d: b"", lambda d: b"ELSE" + d[4:], lambda d: d[:-100]])
def test_a_damaged_file_is_refused_by_name(kind, restored_by, damage):
    step = Step(kind, Plain)
    fill(step, range(10))
    ((file,),) = step.save(savepoint=True, canonical=True)

    class Damaged(Files):
        def get(self, file):
            return damage(step.store.get(file))

    with pytest.raises(CorruptFile, match=file.path):
        Step(restored_by, Plain, store=Damaged(), restored=[(file,)])


# --- values ----------------------------------------------------------------------------------------------------------

TYPED = [
    ("boolean", True),
    ("tinyint", -128),
    ("smallint", 32767),
    ("int", -(2**31)),
    ("bigint", 2**63 - 1),
    ("float", 0.5),
    ("double", math.inf),
    ("string", "größer \0 𝄞"),
    ("binary", b"\0\xff"),
    ("date", datetime.date(2026, 2, 28)),
    ("timestamp", datetime.datetime(2026, 2, 28, 23, 59, 59, 999999, UTC)),
    ("timestamp", datetime.datetime(1931, 1, 1, tzinfo=UTC)),
    ("timestamp_ntz", datetime.datetime(2026, 2, 28, 23, 59, 59, 1)),  # noqa: DTZ001
    ("decimal(20, 3)", Decimal("123456789.125")),
    ("array<int>", [1, None, 3]),
    ("struct<a: int, b: array<string>>", {"a": 1, "b": ["x", None]}),
    ("map<string, bigint>", [("a", 1), ("b", None)]),
    (pa.time64("us"), datetime.time(1, 2, 3, 4)),
    (object, frozenset([1, 2])),
    (object, {"a": {1, 2}, "b": (3, [4])}),
]


@pytest.mark.parametrize(("type_", "value"), TYPED, ids=lambda v: str(v)[:30])
def test_a_value_of_any_type_comes_back_as_it_was(kind, type_, value):
    class Typed:
        value = ps.value_state("value", type_)
        items = ps.list_state("items", type_)
        entries = ps.map_state("entries", key="string", value=type_)

    step = Step(kind, Typed)
    handles = step.at(1)
    handles["value"].set(value)
    handles["items"].set([value, value])
    handles["entries"].set("k", value)
    before = handles["value"].get()
    restored = Step(kind, Typed, store=step.store, restored=step.save()).at(1)
    for found in (before, restored["value"].get(), *restored["items"].get(), restored["entries"].get("k")):
        assert found == value
        assert type(found) is type(value)
    assert len(restored["items"].get()) == 2


@pytest.mark.parametrize(
    ("type_", "keys"),
    [
        ("string", ["a", "", "ä", None]),
        ("bigint", [0, -1, 2**63 - 1, None]),
        ("double", [1.5, -math.inf, NAN, 0.0]),
        ("boolean", [True, False]),
        ("binary", [b"", b"\0"]),
        ("timestamp", [datetime.datetime(2026, 1, 1, tzinfo=UTC), None]),
        ("date", [datetime.date(2026, 1, 1)]),
    ],
)
def test_every_type_of_key_finds_its_state_again(kind, type_, keys):
    schema = as_schema({"k": type_}, argument="keys")
    step = Step(kind, Plain, keys=schema, parallelism=2)
    for number, key in enumerate(keys):
        step.at(key)["count"].set(number)
        step.timers(key).add(EVENT_TIME, number)
    restored = Step(kind, Plain, keys=schema, parallelism=3, store=step.store, restored=step.save())
    for number, key in enumerate(keys):
        assert restored.at(key)["count"].get() == number
        assert restored.timers(key).of_key(EVENT_TIME) == [number]


def test_a_key_of_several_columns_is_a_tuple(kind):
    schema = pa.schema([pa.field("a", pa.string()), pa.field("b", pa.float64())])
    step = Step(kind, Plain, keys=schema)
    keys = [("x", 1.0), ("x", None), (None, NAN), ("", 0.0)]
    for number, key in enumerate(keys):
        step.at(key)["count"].set(number)
        step.timers(key).add(EVENT_TIME, 5)
    restored = Step(kind, Plain, keys=schema, parallelism=4, store=step.store, restored=step.save())
    assert [restored.at(key)["count"].get() for key in keys] == [0, 1, 2, 3]
    single = Step(kind, Plain, keys=schema, store=step.store, restored=step.save())
    assert single.fire(EVENT_TIME, 5) == [(5, (None, NAN)), (5, ("", 0.0)), (5, ("x", None)), (5, ("x", 1.0))]


def test_keys_of_a_map_have_one_nan_and_one_zero(kind):
    class ByNumber:
        found = ps.map_state("found", key="double", value="string")

    step = Step(kind, ByNumber)
    found = step.at(1)["found"]
    found.set(math.nan, "nan")
    found.set(-0.0, "zero")
    assert (found.get(float("nan")), found.get(0), found.get(0.0)) == ("nan", "zero", "zero")
    restored = Step(kind, ByNumber, store=step.store, restored=step.save()).at(1)["found"]
    assert (restored.get(float("nan")), restored.get(0)) == ("nan", "zero")


def test_keys_of_a_map_may_be_any_object(kind):
    class ByObject:
        found = ps.map_state("found", key=object, value="int")

    step = Step(kind, ByObject)
    step.at(1)["found"].set((1, "a"), 7)
    restored = Step(kind, ByObject, store=step.store, restored=step.save()).at(1)["found"]
    assert dict(restored.items()) == {(1, "a"): 7}


# --- when the program changed ----------------------------------------------------------------------------------------


def test_a_state_that_is_no_longer_declared_is_kept(kind, step):
    class Less:
        count = ps.value_state("count", "bigint", default=0)

    fill(step, range(10))
    between = Step(kind, Less, parallelism=2, store=step.store, restored=step.save())
    assert between.at(3)["count"].get() == 30
    check(Step(kind, Plain, store=step.store, restored=between.save()), range(10))


@pytest.mark.parametrize("canonical", [True, False])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_state_that_is_dropped_is_not_restored(kind, parallelism, canonical):
    class Both:
        old = ps.value_state("old", "bigint")
        new = ps.value_state("new", "bigint")

    class New:
        new = ps.value_state("new", "bigint")

    class OldAgain:
        old = ps.list_state("old", "string")
        new = ps.value_state("new", "bigint")

    step = Step(kind, Both, parallelism=2)
    for key in range(20):
        handles = step.at(key)
        handles["old"].set(key)
        handles["new"].set(-key)
    saved = step.save(canonical=canonical)
    less = Step(kind, New, parallelism=parallelism, store=step.store, restored=saved, dropped=("old",))
    again = Step(kind, OldAgain, parallelism=2, store=step.store, restored=less.save(canonical=canonical))
    for key in range(20):
        assert less.at(key)["new"].get() == -key
        assert again.at(key)["new"].get() == -key
        assert again.at(key)["old"].get() == []


def test_numbers_may_become_wider(kind):
    class Narrow:
        n = ps.value_state("n", "int")
        f = ps.list_state("f", "float")

    class Wide:
        n = ps.value_state("n", "bigint")
        f = ps.list_state("f", "double")

    step = Step(kind, Narrow)
    step.at(1)["n"].set(7)
    step.at(1)["f"].add(0.5)
    wide = Step(kind, Wide, store=step.store, restored=step.save()).at(1)
    wide["n"].set(wide["n"].get() + 2**40)
    assert (wide["n"].get(), wide["f"].get()) == (2**40 + 7, [0.5])


class _OtherType:
    count = ps.value_state("count", "string")


class _OtherKind:
    count = ps.list_state("count", "bigint")


class _AnyObject:
    count = ps.value_state("count", object)


class _OtherMapKey:
    scores = ps.map_state("scores", key="bigint", value="double")


class _Narrower:
    count = ps.value_state("count", "int")


@pytest.mark.parametrize("changed", [_OtherType, _OtherKind, _AnyObject, _OtherMapKey, _Narrower])
def test_a_state_that_does_not_fit_is_refused(kind, step, changed):
    fill(step, range(10))
    files = step.save()
    with pytest.raises(UsageError, match=r"of 'a step' was .* the program declares"):
        Step(kind, changed, store=step.store, restored=files)


def test_other_keys_are_refused(kind, step):
    fill(step, range(10))
    files = step.save()
    with pytest.raises(UsageError, match="is keyed by k: int64; the program has k: string"):
        Step(kind, Plain, keys=pa.schema([pa.field("k", pa.string())]), store=step.store, restored=files)
