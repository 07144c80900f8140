"""Windows whose runs checkpoints share: what comes back whatever was completed and aborted, at any parallelism; how
much a checkpoint writes; and how much the loop does at once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.api.pane_windows import CumulativeWindow, SlidingWindow
from penstock.api.steps import Aggregate, WindowStep
from penstock.api.window_schema import WINDOW_START, partial_schema, result_schema
from penstock.api.windows import TumblingWindow
from penstock.core.coordinator.registry import SharedStateRegistry
from penstock.core.elements import MAX_WATERMARK, CheckpointOptions
from penstock.core.errors import CorruptFile, UsageError
from penstock.core.ids import CheckpointId
from penstock.core.messages import StateFile
from penstock.plan.key_groups import range_of
from penstock.runtime.task.operators import pane_pieces, run_table
from penstock.runtime.task.operators.run_merging import runs_to_merge
from penstock.runtime.task.operators.sorted_runs import RunLimits
from penstock.runtime.task.operators.window_table import WindowTable, is_window
from penstock.runtime.task.partitioning import partition
from penstock.runtime.task.slices import Slice
from penstock.settings import StateSettings
from penstock.state.runs import is_runs

GROUPS = 128
RECORDS = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.int64()), pa.field("ts", pa.timestamp("us", "UTC"))])
AGGREGATES = (
    Aggregate(name="n", kind="count", column=None),
    Aggregate(name="top", kind="max", column="v"),
)
TUMBLING = TumblingWindow(size_us=10)
WINDOWS = [
    TUMBLING,
    SlidingWindow(size_us=10, slide_us=5, offset_us=0),
    CumulativeWindow(size_us=10, step_us=5, offset_us=0),
]
TINY = RunLimits(
    run_rows=4,
    block_rows=2,
    part_blocks=1,
    loop_rows=8,
    turn_rows=4,
    section_rows=3,
    file_bytes=1,
    first_fanout=2,
    once_fanout=2,
    fanout=2,
)


def step_of(window=TUMBLING):
    result = result_schema(RECORDS, keys=("k",), time_column="ts", aggregates=AGGREGATES)
    return WindowStep(keys=("k",), window=window, aggregates=AGGREGATES, schema=result)


def partials(keys, times, window=TUMBLING):
    """One partial per key and time of a record."""
    schema = partial_schema(RECORDS, keys=("k",), time_column="ts", aggregates=AGGREGATES, window=window)
    keys = np.asarray(keys, np.int64)
    starts = window.panes.assign(np.asarray(times, np.int64))
    columns = {
        "k": pa.array(keys),
        WINDOW_START: pa.array(starts).view(schema.field(WINDOW_START).type),
        "n": pa.array(np.ones(keys.size, np.int64)),
        "top": pa.array(keys * 3),
    }
    return pa.record_batch([columns[field.name] for field in schema], schema=schema)


class Storage:
    """Files as the job's master and slots keep them: files of aborted checkpoints, and files that no checkpoint needs
    any more, are deleted at once."""

    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.registry = SharedStateRegistry()
        self.written = 0
        self.bytes_written = 0

    def put(self, data):
        return self._put(data, f"own-{self.written}", None)

    def put_shared(self, data, key):
        assert key not in self.files
        return self._put(data, key, key)

    def _put(self, data, path, key):
        content = bytes(memoryview(data))
        self.written += 1
        self.bytes_written += len(content)
        self.files[path] = content
        return StateFile(path=path, size=len(content), checksum=xxhash.xxh3_64_intdigest(content), shared_key=key)

    def get(self, file):
        content = self.files[file.path]
        assert xxhash.xxh3_64_intdigest(content) == file.checksum
        return content

    def pieces(self, file):
        yield self.get(file)

    def complete(self, checkpoint, states):
        """The checkpoint takes the place of all earlier checkpoints. Returns the states to restore from."""
        for state in states:
            assert self.registry.register(state.keyed, checkpoint).problem is None
        for path in self.registry.drop_unused(checkpoint):
            del self.files[path]
        return [
            type(state)(
                operator=state.operator,
                keyed=tuple(self.registry.resolve(file) for file in state.keyed),
                key_groups=state.key_groups,
            )
            for state in states
        ]

    def discard(self, states):
        """The checkpoint was aborted."""
        for state in states:
            for file in state.keyed:
                if not file.placeholder:
                    self.files.pop(file.path, None)


class Job:
    """Window operators at some parallelism, and their checkpoints."""

    def __init__(self, rig, window, parallelism, state, limits=TINY, storage=None, restored=None):
        self._rig, self._window, self._state, self._limits = rig, window, state, limits
        self.storage = storage or Storage()
        self.parallelism = parallelism
        self.epoch = 1
        self.checkpoint = 0
        self.completed = None
        self._begin(restored)

    def _begin(self, restored):
        self.rigs = [
            self._rig(
                step_of(self._window),
                subtask=number,
                parallelism=self.parallelism,
                files=self.storage,
                restored=restored,
                epoch=self.epoch,
                now=1_000 + self.epoch,
                state=self._state,
                limits=self._limits,
            )
            for number in range(self.parallelism)
        ]

    def give(self, keys, times):
        batch = partials(keys, times, self._window)
        parts = partition(batch, ["k"], parallelism=self.parallelism, groups=GROUPS)
        for rig, part in zip(self.rigs, parts, strict=True):
            if part is not None:
                rig.operator.process(part)

    def watermark(self, time_us):
        for rig in self.rigs:
            work = rig.operator.watermark(time_us)
            while work is not None and work.go_on():
                pass

    def merge(self):
        for rig in self.rigs:
            rig.background.run()
            rig.background.collect()

    def take(self, **options):
        """A checkpoint that is written. Returns what the subtasks acknowledge."""
        self.checkpoint += 1
        works = [rig.freeze(self.checkpoint, **options) for rig in self.rigs]
        return [work() for work in works]

    def complete(self, states):
        checkpoint = CheckpointId(self.checkpoint)
        self.completed = self.storage.complete(checkpoint, states)
        for rig in self.rigs:
            rig.operator.completed(checkpoint)

    def abort(self, states):
        self.storage.discard(states)
        for rig in self.rigs:
            rig.operator.aborted(CheckpointId(self.checkpoint))

    def restore(self, parallelism, states=None):
        self.close()
        self.parallelism, self.epoch = parallelism, self.epoch + 1
        self._begin(self.completed if states is None else states)

    def close(self):
        for rig in self.rigs:
            rig.operator.close()
            rig.background.run()
            rig.background.collect()
            assert not rig.failures

    def results(self):
        """Everything that was handed on so far, with the number of times."""
        found = Counter()
        for rig in self.rigs:
            for row in rig.output.rows:
                start, end = (int(row[name].timestamp() * 1_000_000) for name in ("window_start", "window_end"))
                found[row["k"], start, end, row["n"], row["top"]] += 1
        return found


@pytest.fixture(params=["memory", "rocksdb"], scope="module")
def state(request, tmp_path_factory):
    return StateSettings(backend=request.param, local_directory=str(tmp_path_factory.mktemp("state")))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("give"), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), min_size=1, max_size=9)),
        st.tuples(st.just("give"), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), min_size=5, max_size=9)),
        st.tuples(st.just("watermark"), st.integers(0, 40)),
        st.tuples(st.just("merge"), st.none()),
        st.tuples(st.just("complete"), st.sampled_from([{}, {"full": True}])),
        st.tuples(st.just("abort"), st.none()),
        st.tuples(st.just("restore"), st.integers(1, 3)),
        st.tuples(st.just("savepoint"), st.integers(1, 3)),
    ),
    max_size=25,
)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@settings(max_examples=30, deadline=None)
@given(steps=STEPS, parallelism=st.integers(1, 3))
def test_what_comes_back_is_what_a_snapshot_in_one_file_has(rig, state, window, steps, parallelism):
    """Two jobs do the same. One of them saves everything in one file each time, and shares nothing."""
    shared = Job(rig, window, parallelism, state)
    whole = Job(rig, window, parallelism, StateSettings(), RunLimits(section_rows=10**9))
    for name, value in [*steps, ("merge", None), ("watermark", MAX_WATERMARK)]:
        for job in (shared, whole):
            if name == "give":
                job.give(*zip(*value, strict=True))
            elif name == "watermark":
                job.watermark(value)
            elif name == "merge":
                job.merge()
            elif name == "complete":
                job.complete(job.take(**value))
            elif name == "abort":
                job.abort(job.take())
            elif name == "savepoint":
                job.restore(value, job.take(savepoint=True))
                job.completed = None
                job.storage.registry = SharedStateRegistry()
            elif job.completed is not None:
                job.restore(value)
        assert shared.results() == whole.results()
    shared.close()
    whole.close()
    assert all(is_window(data) for path, data in whole.storage.files.items() if path.startswith("own-"))


def filled(rig, keys, *, limits=TINY, **options):
    job = Job(rig, TUMBLING, 1, StateSettings(), limits, **options)
    for start in range(0, keys, 8):
        job.give(range(start, min(start + 8, keys)), [5] * min(8, keys - start))
        job.merge()
    return job


def test_a_large_window_is_saved_as_runs_and_a_savepoint_of_it_in_one_file(rig):
    job = filled(rig, 100)
    (checkpoint,), (savepoint,), (canonical,) = job.take(), job.take(savepoint=True), job.take(canonical=True)
    assert is_runs(job.storage.get(checkpoint.keyed[0]))
    assert len(checkpoint.keyed) > 1
    for alone in (savepoint, canonical):
        assert [is_window(job.storage.get(file)) for file in alone.keyed] == [True]


def test_a_small_state_is_saved_in_one_file(rig):
    job = filled(rig, 100, limits=RunLimits())
    (taken,) = job.take()
    assert [is_window(job.storage.get(file)) for file in taken.keyed] == [True]


def test_heads_of_runs_that_have_fired_are_not_written_again_and_do_not_come_back(rig):
    job = filled(rig, 40)
    job.give(range(40), [15] * 40)
    job.merge()
    job.complete(job.take())
    before = job.storage.bytes_written
    job.watermark(9)
    job.rigs[0].output.clear()
    # Rests that are shorter than half of their runs are runs of their own.
    job.complete(job.take())
    assert job.storage.bytes_written - before < before
    job.restore(2)
    job.watermark(MAX_WATERMARK)
    assert job.results() == Counter({(k, 10, 20, 1, k * 3): 1 for k in range(40)})


def test_one_row_in_a_hundred_costs_at_most_5_percent_of_a_whole_snapshot(rig):
    """Every checkpoint finds one row in a hundred changed. The sizes of runs are a hundredth of the real sizes."""
    limits = RunLimits(
        run_rows=650, block_rows=80, loop_rows=650, turn_rows=5_000, section_rows=650, once_fanout=256, fanout=8
    )
    keys, chance = 100_000, np.random.default_rng(1)
    job = Job(rig, TUMBLING, 1, StateSettings(), limits)
    for part in np.array_split(chance.permutation(keys), 500):
        job.give(part, np.full(part.size, 5))
        job.merge()
    for _ in range(20):
        job.merge()
    (whole,) = job.take(savepoint=True)
    job.complete(job.take())
    written = []
    for _ in range(200):
        changed = chance.choice(keys, keys // 100, replace=False)
        for part in np.array_split(changed, 5):
            job.give(part, np.full(part.size, 5))
            job.merge()
        before = job.storage.bytes_written
        job.complete(job.take())
        written.append(job.storage.bytes_written - before)
    assert sum(written) / len(written) <= 0.05 * whole.size
    # What is kept for checkpoints is bounded, too.
    assert sum(map(len, job.storage.files.values())) <= 6 * whole.size


def test_the_synchronous_part_and_appends_touch_no_run_however_many_rows_there_are(rig, monkeypatch):
    """On the loop no more rows are grouped at once than `loop_rows` says; a snapshot groups none."""
    grouped, on_loop = WindowTable._grouped, []

    def counted(self, parts):
        on_loop.append(sum(part.num_rows for part in parts))
        return grouped(self, parts)

    monkeypatch.setattr(WindowTable, "_grouped", counted)
    job = Job(rig, TUMBLING, 1, StateSettings())
    sizes = []
    for start in range(0, 2_000, 8):
        on_loop.clear()
        job.give(range(start, start + 8), [5] * 8)
        assert max(on_loop, default=0) <= TINY.loop_rows
        on_loop.clear()
        table = job.rigs[0].operator._table
        sizes.append(len(table.freeze()))
        job.rigs[0].operator.snapshot(CheckpointId(1), CheckpointOptions())
        assert on_loop == []
        while job.rigs[0].background._queue:
            job.merge()
    assert max(sizes) < 40
    parts = []
    while (part := job.rigs[0].operator._table.take_due(0)) is not None:
        parts.append(part.num_rows)
    assert sum(parts) == 2_000
    assert max(parts) <= 40


def test_rows_that_fire_while_their_runs_are_merged_do_not_fire_again(rig):
    job = Job(rig, TUMBLING, 1, StateSettings())
    for key in range(60):
        job.give([key, key], [5, 15])
    assert job.rigs[0].background._queue
    job.watermark(9)
    for _ in range(40):
        job.merge()
    job.watermark(MAX_WATERMARK)
    expected = {(k, start, start + 10, 1, k * 3): 1 for k in range(60) for start in (0, 10)}
    assert job.results() == Counter(expected)


def test_an_error_of_a_merge_in_the_background_fails_the_task(rig, monkeypatch):
    job = Job(rig, TUMBLING, 1, StateSettings())
    for key in range(60):
        job.give([key], [5])
    monkeypatch.setattr(run_table.Merge, "work", lambda self: 1 / 0)
    job.give(range(8), [5] * 8)
    for _ in range(5):
        job.merge()
    assert {type(error) for error in job.rigs[0].failures} == {ZeroDivisionError}


@pytest.mark.parametrize(
    ("sizes", "first"),
    [
        ([], None),
        ([100], None),
        ([100, 100], 0),
        ([1_000, 10], None),
        ([1_000, 10, 10, 10], None),
        ([1_000, 10, 10, 10, 10], 1),
        ([1_000, 200, 10, 10, 10, 10], 2),
        ([10_000, 1_000, 90, 90, 90, 90, 90, 90, 90, 90, 10], 2),
        ([1_000, 500, 400, 100], 0),
    ],
)
def test_runs_of_like_size_are_merged_and_all_when_the_others_are_as_large_as_the_largest(sizes, first):
    assert runs_to_merge(sizes, RunLimits(run_rows=16, first_fanout=4, fanout=8)) == first


@pytest.mark.parametrize("window", WINDOWS[1:], ids=str)
def test_a_window_with_many_keys_is_put_together_in_pieces_and_a_snapshot_between_two_pieces_has_the_rest(rig, window):
    limits = RunLimits(run_rows=64, block_rows=4, part_blocks=2, section_rows=0)
    rows = [(key, time) for key in range(20) for time in (1, 7, 12, 18)]

    def filled_job(**options):
        job = Job(rig, window, 1, StateSettings(), limits, **options)
        job.give(*zip(*rows, strict=True))
        return job

    whole = filled_job()
    whole.watermark(MAX_WATERMARK)
    steps, is_done = 0, False
    while not is_done:
        job = filled_job()
        (each,) = job.rigs
        each.operator.slice = Slice()
        each.operator.slice.run_by(lambda: 0.0, 1)
        each.operator.slice.begin()
        work = each.operator.watermark(11)
        for _ in range(steps):
            each.operator.slice.begin()
            is_done = is_done or not work.go_on()
        assert is_done or work.may_snapshot
        assert max(item.num_rows for item in each.output.items if not isinstance(item, tuple)) <= 1
        shown = job.results()
        again = Job(rig, window, 2, StateSettings(), limits, storage=job.storage, restored=job.take())
        again.watermark(MAX_WATERMARK)
        assert shown + again.results() == whole.results()
        steps += 3
    assert steps > 20


def test_the_pieces_of_a_window_have_few_rows(rig, monkeypatch):
    taken, honest = [], pane_pieces.PanePieces.repeated

    def counted(self, rows, first, last):
        taken.append(rows.num_rows)
        return honest(self, rows, first, last)

    monkeypatch.setattr(pane_pieces.PanePieces, "repeated", counted)
    job = Job(rig, WINDOWS[1], 1, StateSettings(), RunLimits(run_rows=64, block_rows=16, part_blocks=2))
    job.give(range(1_000), [3] * 1_000)
    job.watermark(9)
    assert sum(taken) == 1_000
    assert max(taken) < 100


# --- what is refused -------------------------------------------------------------------------------------------------


def changed_run(job, change):
    """A checkpoint whose first run was changed, as bytes and in its handle."""
    (taken,) = job.take()
    index, file, *others = taken.keyed
    data = pa.ipc.open_stream(job.storage.get(file)).read_all()
    sink = pa.BufferOutputStream()
    table = change(data)
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    changed = job.storage.put(sink.getvalue())
    return type(taken)(operator=taken.operator, keyed=(index, changed, *others), key_groups=taken.key_groups)


def set_column(table, name, values):
    number = table.schema.get_field_index(name)
    return table.set_column(number, name, pa.array(values, table.schema.field(number).type))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda t: t.slice(1), "the file of the run has"),
        (lambda t: t.take(list(reversed(range(t.num_rows)))), "not in its order"),
        (lambda t: set_column(t, "__key_hash", [7] * t.num_rows), "wrong hashes"),
        (lambda t: t.drop_columns(["n"]), "other columns"),
        (lambda t: t.set_column(1, "window_start", pa.array([1] * t.num_rows)), "not timestamps"),
        (lambda t: t.append_column("x", pa.array([1] * t.num_rows)), "other columns"),
    ],
)
def test_a_run_that_no_job_wrote_is_refused(rig, change, text):
    job = filled(rig, 100)
    with pytest.raises(CorruptFile, match=text):
        job.restore(1, [changed_run(job, change)])


def test_runs_of_another_window_are_refused(rig):
    job = filled(rig, 100)
    states = job.take()
    with pytest.raises(UsageError, match="the state of 'the step' is of windows of 10 us"):
        Job(rig, TumblingWindow(size_us=20), 1, StateSettings(), storage=job.storage, restored=states)


def test_rows_of_key_groups_of_others_are_left_out(rig):
    job = filled(rig, 100)
    job.complete(job.take())
    job.restore(3)
    for number, each in enumerate(job.rigs):
        own = range_of(number, parallelism=3, groups=GROUPS)
        assert each.operator._table.rows < 100
        assert each.context.key_groups == own
    job.watermark(MAX_WATERMARK)
    assert job.results() == Counter({(k, 0, 10, 1, k * 3): 1 for k in range(100)})
