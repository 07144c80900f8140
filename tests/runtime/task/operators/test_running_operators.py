"""The two halves of a running aggregate on both back ends: what comes out, what snapshots have, what is refused."""

from __future__ import annotations

import random

import msgspec
import pyarrow as pa
import pytest
from state_rig import LOCAL_DIRECTORY

import penstock as ps
from penstock.api.aggregates import named_aggregate
from penstock.api.running_schema import running_partial_schema, running_result_schema
from penstock.api.state import ttl
from penstock.api.steps import RunningCombineStep, RunningStep
from penstock.core.elements import CheckpointOptions
from penstock.core.errors import CorruptFile, UsageError
from penstock.core.ids import CheckpointId
from penstock.core.messages import OperatorState
from penstock.runtime.task.operators import running_files
from penstock.runtime.task.operators.running_files import RunningHeader, RunningSnapshot, encode_running
from penstock.settings import StateSettings
from penstock.state.runs import LiveRun, encode_index

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
CHANGES = SCHEMA.append(pa.field("row_kind", pa.string()))
SETTINGS = {
    "memory": StateSettings(),
    "rocksdb": StateSettings(backend="rocksdb", local_directory=LOCAL_DIRECTORY),
}
both = pytest.mark.parametrize("backend", SETTINGS)


def steps(*, retracts=False, keys=("k",), lives=None, calls=None):
    calls = {"n": ps.count(), "total": ps.sum("v"), "most": ps.max("v")} if calls is None else calls
    named = tuple(named_aggregate(name, call, schema=SCHEMA, time_column=None) for name, call in calls.items())
    partial = running_partial_schema(SCHEMA, keys=keys, aggregates=named, retracts=retracts)
    result = running_result_schema(SCHEMA, keys=keys, aggregates=named, retracts=retracts)
    how = {"keys": keys, "aggregates": named, "input_schema": SCHEMA, "retracts": retracts}
    step = RunningStep(**how, partial=partial, schema=result, ttl=None if lives is None else ttl(lives))
    return RunningCombineStep(**how, schema=partial), step


def batch(rows, schema=SCHEMA):
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def partials(rig, combine, rows):
    half = rig(combine)
    half.operator.process(batch(rows, CHANGES if combine.retracts else SCHEMA))
    half.operator.before_barrier()
    return half.output.items


def feed(rig, made, combine, rows):
    """Process rows in one batch, and return the changes that come out."""
    made.output.clear()
    for part in partials(rig, combine, rows):
        work = made.operator.process(part)
        while work is not None and work.go_on():
            pass
    return [tuple(row.values()) for row in made.output.rows]


def table_of(changes, table):
    for *row, kind in changes:
        key = row[0]
        if kind in ("insert", "update_after"):
            assert (key in table) == (kind == "update_after")
            table[key] = tuple(row[1:])
        else:
            assert table[key] == tuple(row[1:])
            if kind == "delete":
                del table[key]


# --- the first half --------------------------------------------------------------------------------------------------


def test_partials_are_held_back_for_some_milliseconds_and_merged(rig):
    combine, _ = steps()
    half = rig(combine)
    half.operator.process(batch([("a", 1), ("b", 2)]))
    half.operator.process(batch([("a", 5)]))
    assert half.output.items == []
    assert half.tick(half.time + 19) == half.time + 20
    assert half.output.items == []
    assert half.tick(half.time + 20) is None
    assert half.output.rows == [
        {"k": "a", "n": 2, "total": 6, "most": 5},
        {"k": "b", "n": 1, "total": 2, "most": 2},
    ]
    half.operator.process(batch([("a", 1)]))
    half.operator.watermark(10)
    assert half.output.items[-1] == (10, False)
    half.operator.before_barrier()
    assert half.output.rows[-1]["total"] == 1
    assert half.freeze is not None
    assert half.operator.snapshot(CheckpointId(1), CheckpointOptions()) is None


def test_changes_that_cancel_each_other_before_the_exchange_leave_nothing(rig):
    combine, step = steps(retracts=True, calls={"n": ps.count(), "most": ps.max("v")})
    (part,) = partials(rig, combine, [("a", 1, "insert"), ("a", 1, "update_before"), ("a", 7, "update_after")])
    assert part.to_pylist() == [{"k": "a", "n": 1, "most": [{"v0": 7, "n": 1}], "__records": 1}]
    made = rig(step)
    assert feed(rig, made, combine, [("b", 1, "insert"), ("b", 1, "delete")]) == []


# --- the second half -------------------------------------------------------------------------------------------------


@both
def test_the_first_change_of_a_key_is_an_insert_and_then_updates_come_in_pairs(rig, backend):
    combine, step = steps()
    made = rig(step, state=SETTINGS[backend])
    assert feed(rig, made, combine, [("a", 1), ("a", 2), ("b", None)]) == [
        ("a", 2, 3, 2, "insert"),
        ("b", 1, None, None, "insert"),
    ]
    assert feed(rig, made, combine, [("b", 5), ("c", 0)]) == [
        ("b", 1, None, None, "update_before"),
        ("b", 2, 5, 5, "update_after"),
        ("c", 1, 0, 0, "insert"),
    ]
    made.operator.close()


@both
@pytest.mark.parametrize("retracts", [False, True])
def test_changes_and_snapshots_are_those_of_a_dict_at_any_parallelism(rig, backend, retracts):
    chance = random.Random(17)
    combine, step = steps(retracts=retracts)
    files, parallelism = None, 1
    rigs = [rig(step, state=SETTINGS[backend])]
    files = rigs[0].files
    model, table = {}, {}
    for round_ in range(30):
        rows = []
        for _ in range(chance.choice((1, 10, 60))):
            key = chance.choice(("a", "b", "c", None, *(f"k{n}" for n in range(40))))
            values = model.setdefault(key, [])
            if retracts and values and chance.random() < 0.5:
                rows.append(
                    (key, values.pop(chance.randrange(len(values))), chance.choice(("delete", "update_before")))
                )
            else:
                values.append(chance.choice((None, chance.randrange(-50, 50))))
                rows.append((key, values[-1], *[chance.choice(("insert", "update_after"))] * retracts))
        for number, part in enumerate(partials(rig, combine, rows)):
            assert number == 0
            for made in rigs:
                made.output.clear()
                first, last = made.context.key_groups
                groups = _groups(part)
                own = part.filter(pa.array([first <= group <= last for group in groups]))
                work = made.operator.process(own)
                while work is not None and work.go_on():
                    pass
                table_of([tuple(row.values()) for row in made.output.rows], table)
        expected = {}
        for key, values in model.items():
            numbers = [value for value in values if value is not None]
            if values:
                if numbers:
                    expected[key] = (len(values), _sum(numbers), _most(numbers))
                else:
                    expected[key] = (len(values), None, None)
        assert table == expected
        if round_ % 4 == 3:
            states = [made.snapshot(round_) for made in rigs]
            for made in rigs:
                made.operator.close()
            parallelism = chance.choice((1, 2, 3))
            rigs = [
                rig(step, subtask=n, parallelism=parallelism, restored=states, files=files, state=SETTINGS[backend])
                for n in range(parallelism)
            ]
    for made in rigs:
        made.operator.close()


def _groups(part):
    from penstock.runtime.task.partitioning import key_groups

    return key_groups(part, ["k"], 128).tolist()


def _sum(numbers):
    total = 0
    for number in numbers:
        total += number
    return total


def _most(numbers):
    return sorted(numbers)[-1]


@both
def test_a_snapshot_is_the_state_at_its_moment_whenever_it_is_written(rig, backend):
    combine, step = steps()
    made = rig(step, state=SETTINGS[backend])
    feed(rig, made, combine, [("a", 1), ("b", 2)])
    write = made.freeze(1)
    feed(rig, made, combine, [("a", 10), ("c", 3)])
    state = write()
    again = rig(step, restored=[state], files=made.files, state=SETTINGS[backend])
    assert feed(rig, again, combine, [("a", 100), ("c", 1)]) == [
        ("a", 1, 1, 1, "update_before"),
        ("a", 2, 101, 100, "update_after"),
        ("c", 1, 1, 1, "insert"),
    ]


@both
def test_rows_expire_also_after_a_restore(rig, backend):
    combine, step = steps(lives="10s")
    made = rig(step, now=1_000, state=SETTINGS[backend])
    feed(rig, made, combine, [("a", 1)])
    made.time = 8_000
    feed(rig, made, combine, [("b", 1)])
    state = made.snapshot()
    again = rig(step, now=12_000, restored=[state], files=made.files, state=SETTINGS[backend])
    assert [change[-1] for change in feed(rig, again, combine, [("a", 1), ("b", 1)])] == [
        "insert",
        "update_before",
        "update_after",
    ]
    again.time = 40_000
    assert again.tick(40_000) > 40_000
    assert [change[-1] for change in feed(rig, again, combine, [("b", 1)])] == ["insert"]


def test_expired_rows_leave_the_memory(rig):
    combine, step = steps(lives="10s")
    made = rig(step, now=1_000)
    feed(rig, made, combine, [(f"k{n}", n) for n in range(1_000)])
    made.time = 20_000
    made.tick(20_000)
    assert len(made.operator._store._table) == 0


@pytest.mark.parametrize("keys", [(), ("k",), ("k", "v")])
def test_state_without_rows_and_with_any_number_of_keys_is_restored(rig, keys):
    combine, step = steps(keys=keys, calls={"n": ps.count()})
    made = rig(step)
    empty = made.snapshot(1)
    assert empty.keyed == ()
    feed(rig, made, combine, [("a", 1), ("a", 1)])
    state = made.snapshot(2)
    again = rig(step, restored=[empty, state], files=made.files)
    found = feed(rig, again, combine, [("a", 1)])
    assert [change[-2:] for change in found] == [(2, "update_before"), (3, "update_after")]


# --- restores that are refused ---------------------------------------------------------------------------------------


def saved(rig):
    combine, step = steps()
    made = rig(step)
    feed(rig, made, combine, [("a", 1), ("b", 2)])
    return made, made.snapshot()


def test_state_of_other_aggregates_is_refused(rig):
    made, state = saved(rig)
    _, other = steps(calls={"n": ps.count(), "total": ps.sum("v"), "least": ps.max("v")})
    with pytest.raises(UsageError, match="another name"):
        rig(other, restored=[state], files=made.files)


def test_state_in_the_format_of_the_other_back_end_is_refused(rig):
    made, state = saved(rig)
    _, step = steps()
    with pytest.raises((CorruptFile, UsageError)):
        rig(step, restored=[state], files=made.files, state=SETTINGS["rocksdb"])
    other = rig(step, state=SETTINGS["rocksdb"])
    combine, _ = steps()
    feed(rig, other, combine, [("a", 1)])
    with pytest.raises((CorruptFile, UsageError)):
        rig(step, restored=[other.snapshot()], files=other.files)


@pytest.mark.parametrize("cut", [0, 3, 40, 200, -1])
def test_an_index_that_is_cut_is_refused(rig, cut):
    made, state = saved(rig)
    data = made.files.get(state.keyed[0])
    restored = OperatorState(operator="operator-id", keyed=(made.files.put(data[:cut]),), key_groups=(0, 127))
    # What does not even begin as an index may be of another back end.
    with pytest.raises((CorruptFile, UsageError)):
        rig(steps()[1], restored=[restored], files=made.files)


def with_files(rig, monkeypatch, *, aggregates=steps):
    """An operator whose segments all lie in files, and a snapshot of it."""
    monkeypatch.setattr(running_files, "SECTION_ROWS", 1)
    combine, step = aggregates()
    made = rig(step)
    feed(rig, made, combine, [("a", 1), ("b", 2)])
    return made, made.snapshot()


def test_a_segment_that_was_changed_is_refused(rig, monkeypatch):
    made, state = with_files(rig, monkeypatch)
    index, file = state.keyed
    rows = pa.ipc.open_stream(made.files.get(file)).read_all()
    nulls = pa.nulls(rows.num_rows, pa.int32())
    changed = [
        rows.drop_columns(["__key_group"]),
        rows.drop_columns(["k"]),
        rows.set_column(rows.num_columns - 1, pa.field("__key_group", pa.int32()), nulls),
        rows.select([1, 0, *range(2, rows.num_columns)]),
        rows.rename_columns(["k", "k", *rows.schema.names[2:]]),
        rows.slice(0, 1),
    ]
    for table in changed:
        other = made.files.put(encode_running(table))
        with pytest.raises(CorruptFile):
            rig(steps()[1], restored=[_of(index, other)], files=made.files)
    for cut in (0, 10, 300, -1):
        other = made.files.put(made.files.get(file)[:cut])
        with pytest.raises(CorruptFile):
            rig(steps()[1], restored=[_of(index, other)], files=made.files)
    for files in ((index,), (index, file, file), (index, index)):
        with pytest.raises(CorruptFile):
            rig(steps()[1], restored=[_of(*files)], files=made.files)
    assert feed(rig, rig(steps()[1], restored=[state], files=made.files), steps()[0], [("a", 1)])


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"sections": (1,)},
        {"runs": ()},
        {"runs": (1, 2)},
        {"runs": (1,), "sections": (1,)},
    ],
)
def test_an_index_with_another_header_is_refused(rig, monkeypatch, change):
    made, state = with_files(rig, monkeypatch)
    honest = RunningSnapshot(made.files.get(state.keyed[0]), state.keyed, what="it").header
    header = RunningHeader(**{**{name: getattr(honest, name) for name in honest.__struct_fields__}, **change})
    run = running_files.SegmentRun(made.operator._store._table.freeze()[0], ("k",), 128)
    index = made.files.put(encode_index([LiveRun(run)], [msgspec.json.encode(header)], groups=128, own_groups=(0, 127)))
    with pytest.raises(CorruptFile):
        rig(steps()[1], restored=[_of(index, *state.keyed[1:])], files=made.files)
    same = made.files.put(encode_index([LiveRun(run)], [msgspec.json.encode(honest)], groups=128, own_groups=(0, 127)))
    rig(steps()[1], restored=[_of(same, *state.keyed[1:])], files=made.files)


def _of(*files):
    return OperatorState(operator="operator-id", keyed=files, key_groups=(0, 127))


# --- what checkpoints write ------------------------------------------------------------------------------------------


class CountingFiles:
    """Counts the bytes that are written, and finds the files that are referred to again."""

    def __init__(self, files):
        self.files = files
        self.written = 0

    def put(self, data):
        self.written += memoryview(data).nbytes
        return self.files.put(data)

    def put_shared(self, data, key):
        return msgspec.structs.replace(self.put(data), shared_key=key)

    def get(self, file):
        return self.files.get(file)

    def pieces(self, file):
        return self.files.pieces(file)


def test_a_checkpoint_writes_what_was_changed_since_the_last_completed_one(rig):
    combine, step = steps(calls={"n": ps.count(), "total": ps.sum("v")})
    made = rig(step)
    made.files = CountingFiles(made.files)
    chance = random.Random(2)

    def count_of(number, keys):
        feed(rig, made, combine, [(f"key {key}", 1) for key in keys])
        before = made.files.written
        state = made.snapshot(number)
        made.operator.completed(CheckpointId(number))
        return made.files.written - before, state

    whole, _ = count_of(1, range(100_000))
    written = []
    for number in range(2, 150):
        size, state = count_of(number, chance.sample(range(100_000), 1_000))
        written.append(size)
    assert max(written) < 0.08 * whole
    assert sum(written) / len(written) < 0.04 * whole
    again = rig(step, restored=[state], files=made.files)
    assert len(again.operator._store._table) == 100_000
    assert _rows_of(again) == _rows_of(made)


def _rows_of(made):
    table = made.operator._store._table
    keys = [pa.array([f"key {n}" for n in range(100_000)])]
    found = table.find(keys)
    n, total = table.rows_of(found)
    assert found.there.all()
    return list(zip(keys[0].to_pylist(), n.to_pylist(), total.to_pylist(), strict=True))


def test_files_of_a_checkpoint_that_was_aborted_or_of_a_savepoint_are_not_referred_to(rig, monkeypatch):
    monkeypatch.setattr(running_files, "SECTION_ROWS", 1)
    combine, step = steps()
    made = rig(step)
    made.files = CountingFiles(made.files)
    feed(rig, made, combine, [("a", 1)])

    def is_referred_to(number, **options):
        work = made.operator.snapshot(CheckpointId(number), CheckpointOptions(**options))
        return work(made.files).keyed[1].placeholder

    assert not is_referred_to(1)
    made.operator.aborted(CheckpointId(1))
    assert not is_referred_to(2)
    assert not is_referred_to(3, savepoint=True)
    made.operator.completed(CheckpointId(3))
    assert not is_referred_to(4)
    made.operator.completed(CheckpointId(4))
    assert is_referred_to(5)
    assert not is_referred_to(6, full=True)
