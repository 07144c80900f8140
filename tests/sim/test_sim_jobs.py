"""The jobs of a world: what they read, what they must give, and the external system they write to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.api.connector import End, Pause, WriterContext
from penstock.api.steps import WriteStep
from penstock.core.errors import ExternalError
from penstock.plan.graph import Plan
from penstock.sim.drawn_jobs import VERTICES
from penstock.sim.expected import expected_rows
from penstock.sim.external import ExternalSystem, enter, leave
from penstock.sim.inputs import SimSource, decode_positions, make_inputs, rows_of, source_of
from penstock.sim.jobs import PAIRS, SCHEMA, TICK_US, Shape, Workload
from penstock.sim.outputs import SimSink
from penstock.sim.shapes import make_plan
from penstock.sim.world import World

NUMBER = 77


def workload(**changes: object) -> Workload:
    values: dict[str, object] = {
        "shape": Shape.WINDOW,
        "splits": 3,
        "rows": 100,
        "keys": 4,
        "salt": 9,
        "batch_rows": 8,
        "burst": 2,
        "pause_ms": 10,
        "window_us": 20 * TICK_US,
        "disorder_us": 6 * TICK_US,
    }
    made = Workload(**{**values, **changes})
    others = 1 if made.shape in PAIRS else made.shape.most_sources - 1
    return made if "other_rows" in changes else replace(made, other_rows=(made.rows // 3,) * others)


def plan_of(parallelism: int = 2, **changes: object) -> Plan:
    return make_plan(
        workload(**changes), world=NUMBER, parallelism=parallelism, sink=lambda name: SimSink(NUMBER, name)
    )


@pytest.fixture
def system() -> Iterator[ExternalSystem]:
    made = ExternalSystem(World(1))
    made.inputs = make_inputs(workload())
    enter(NUMBER, made)
    yield made
    leave(NUMBER)


def read_all(source: SimSource, splits: list[bytes], *, reopen_every: int) -> tuple[list[pa.RecordBatch], int]:
    """Everything the source gives, and how many pauses it made; the reader is restored now and then."""
    reader, batches, pauses, now_ms = source.open(splits), [], 0, 0
    while not isinstance(polled := reader.poll(5, now_ms), End):
        if isinstance(polled, Pause):
            pauses += 1
            now_ms += polled.wait_ms
            continue
        batches.append(polled)
        if len(batches) % reopen_every == 0:
            reader = source.open(reader.snapshot())
    return batches, pauses


def test_every_record_is_read_once_over_any_number_of_restores(system: ExternalSystem):
    source = SimSource(NUMBER, workload())
    batches, pauses = read_all(source, source.splits(2), reopen_every=3)
    assert Counter(row for batch in batches for row in rows_of(batch)) == Counter(
        row for table in system.inputs for row in rows_of(table)
    )
    assert pauses > 0


@pytest.mark.parametrize("salt", [4, 5])
def test_no_record_is_later_than_the_watermark_of_its_split_allows(system: ExternalSystem, salt: int):
    source = SimSource(NUMBER, replace(workload(), salt=salt))
    plan = plan_of(parallelism=1)
    delay_us = plan.vertices[0].operators[1].step.delay_us
    reader, now_ms, between, within = source.open(source.splits(1)), 0, 0, 0
    furthest: dict[object, int] = {}
    while not isinstance(polled := reader.poll(16, now_ms), End):
        if isinstance(polled, Pause):
            now_ms += polled.wait_ms
            continue
        times, split = [row[3] for row in rows_of(polled)], reader.progress().current
        within = max(within, furthest.get(split, 0) - min(times))
        between = max(between, max(furthest.values(), default=0) - min(times))
        furthest[split] = max(furthest.get(split, 0), *times)
    assert 0 < within <= delay_us < between


def test_every_key_lives_in_one_split_and_counts_its_records(system: ExternalSystem):
    seen: dict[int, int] = {}
    for split, table in enumerate(system.inputs):
        for key, seq, _, _ in rows_of(table):
            assert key % 3 == split
            assert seq == seen.get(key, -1) + 1
            seen[key] = seq
    assert len(seen) == 12


def test_the_expected_windows_are_those_of_a_small_example():
    table = pa.RecordBatch.from_pydict(
        {
            "key": [1, 1, 1, 2, 1],
            "seq": [0, 1, 2, 0, 3],
            "value": [4, 7, 3, 5, 8],
            "ts": [0, 9, 5, 10, 10],
        },
        schema=SCHEMA,
    )
    assert expected_rows(workload(window_us=10), [table], parallelism=2) == {
        "sink": Counter({(1, 0, 10, 2, 7): 1, (2, 10, 20, 1, 5): 1, (1, 10, 20, 1, 8): 1})
    }


def test_sources_have_splits_and_keys_of_their_own():
    made = workload(shape=Shape.UNION, other_rows=(10, 20))
    tables = make_inputs(made)
    assert [table.num_rows for table in tables] == [100] * 3 + [10] * 3 + [20] * 3
    for split, table in enumerate(tables):
        assert {source_of(made, key) for key, *_ in rows_of(table)} == {split // 3}
    splits = [decode_positions(SimSource(NUMBER, made, number).splits(2)) for number in range(3)]
    assert [[position.split for position in each] for each in splits] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_shared_keys_are_in_every_split_and_no_record_is_there_twice():
    tables = make_inputs(workload(shares_keys=True))
    assert all({key for key, *_ in rows_of(table)} == {0, 1, 2, 3} for table in tables)
    named = [row[:2] for table in tables for row in rows_of(table)]
    assert len(set(named)) == len(named)


SMALL = pa.RecordBatch.from_pydict({"key": [0, 1], "seq": [0, 0], "value": [4, 6], "ts": [1, 2]}, schema=SCHEMA)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (Shape.KEYED, {(0, 0, 8, 1): 1, (1, 0, 12, 2): 1}),
        (Shape.REBALANCED, {(0, 0, -5, 1): 1, (1, 0, -7, 2): 1}),
        (Shape.BROADCAST, {(0, 0, 4, 1): 3, (1, 0, 6, 2): 3}),
        (Shape.TWICE, {(0, 0, 0, 1): 1, (1, 0, 2, 2): 1}),
        (Shape.DIAMOND, {(0, 0, 8, 1): 1, (1, 0, 12, 2): 1, (0, 0, -5, 1): 1}),
        (Shape.HASH_HASH, {(0, 0, 4, 1): 1, (1, 0, 6, 2): 1}),
        (Shape.HASH_BROADCAST, {(0, 0, 4, 1): 1, (1, 0, 6, 2): 3}),
        (Shape.GLOBAL, {(0, 0, 8, 1): 1, (1, 0, 12, 2): 1}),
        (Shape.FEWER, {(0, 0, 8, 1): 1, (1, 0, 12, 2): 1}),
        (Shape.CHOSEN, {(0, 0, 8, 1): 1, (1, 0, 12, 2): 1}),
        (Shape.DISTINCT, {(0, 0, 4, 1): 1, (1, 0, 6, 2): 1}),
    ],
)
def test_what_each_shape_makes_of_two_records(shape: Shape, expected: dict[tuple[int, ...], int]):
    made = workload(shape=shape, splits=1)
    assert expected_rows(made, [SMALL], parallelism=3) == {"sink": Counter(expected)}


EXCHANGES = {
    Shape.WINDOW: ["hash"],
    Shape.KEYED: ["hash"],
    Shape.REBALANCED: ["rebalance"],
    Shape.BROADCAST: ["broadcast"],
    Shape.TWICE: ["hash", "hash"],
    Shape.DIAMOND: ["forward", "forward", "forward", "forward", "hash"],
    Shape.TWO_SINKS: ["forward", "hash"],
    Shape.UNION: ["forward", "forward", "forward", "hash"],
    Shape.UNION_WINDOW: ["forward", "forward", "forward", "hash"],
    Shape.TIMERS: ["hash"],
    Shape.WAITS: ["hash", "broadcast"],
    Shape.HASH_HASH: ["hash", "hash"],
    Shape.HASH_FORWARD: ["hash", "forward"],
    Shape.HASH_BROADCAST: ["hash", "broadcast"],
    Shape.REBALANCE_HASH: ["rebalance", "hash"],
    Shape.PIPELINES: ["hash", "hash"],
    Shape.SLICES: ["forward", "forward"],
    Shape.MIXED: ["hash"],
    Shape.GLOBAL: ["rebalance"],
    Shape.FEWER: ["rebalance", "hash"],
    Shape.CHOSEN: ["custom"],
    Shape.LIMIT: ["rebalance"],
    Shape.LIMIT_BESIDE: ["forward", "rebalance", "forward"],
    Shape.DISTINCT: ["hash"],
    Shape.SPLIT: ["hash"],
    Shape.SIDES: ["hash", "rebalance"],
    Shape.LATE: ["hash", "forward", "forward", "forward"],
    Shape.ASKS: ["hash"],
    Shape.ASKS_WINDOW: ["hash", "hash"],
    Shape.RUNNING: ["hash", "hash"],
    Shape.CHOOSES: ["hash"],
    Shape.MATCHES: ["hash", "forward", "forward", "forward"],
    Shape.JOIN: ["hash", "hash"],
    Shape.CHANGES: ["hash", "hash", "hash", "hash", "hash"],
    Shape.TABLE: [],
    Shape.MEETS: ["hash", "hash"],
    Shape.SORTED: ["hash"],
}
TWO_ENDS = (Shape.TWO_SINKS, Shape.LIMIT_BESIDE, Shape.SPLIT, Shape.SIDES, Shape.PIPELINES, Shape.SLICES, Shape.MIXED)


@pytest.mark.parametrize(("rows", "expected"), [(2, 1), (4, 2), (100, 2)])
def test_the_first_records_are_half_of_a_split(rows: int, expected: int):
    made = workload(shape=Shape.LIMIT, splits=1, rows=rows)
    assert expected_rows(made, [SMALL], parallelism=3) == {"sink": Counter(rows_of(SMALL)[:expected])}


def test_a_record_that_is_not_the_first_of_its_key_is_not_expected():
    again = SMALL.set_column(1, "seq", pa.array([0, 1]))
    assert expected_rows(workload(shape=Shape.DISTINCT), [again], parallelism=3) == {"sink": Counter([(0, 0, 4, 1)])}


@pytest.mark.parametrize("shape", Shape)
@pytest.mark.parametrize("slow_us", [0, 1_000])
def test_the_plan_of_each_shape_has_these_exchanges(shape: Shape, slow_us: int):
    plan = plan_of(shape=shape, slow_us=slow_us)
    assert [edge.partitioning.value for edge in plan.edges] == EXCHANGES[shape]
    steps = [operator.step for vertex in plan.vertices for operator in vertex.operators]
    assert len([step for step in steps if isinstance(step, WriteStep)]) == (2 if shape in TWO_ENDS else 1)


def test_every_vertex_is_counted_when_time_outs_are_drawn():
    for shape in Shape:
        made = workload(shape=shape)
        assert len(plan_of(shape=shape).vertices) <= VERTICES.get(shape, 2) + made.sources - 1


def context(epoch: int, subtask: int = 0) -> WriterContext:
    return WriterContext(job="job", subtask=subtask, parallelism=2, epoch=epoch)


def prepared(sink: SimSink, epoch: int, checkpoint: int, subtask: int = 0) -> list[bytes]:
    writer = sink.writer(context(epoch, subtask))
    writer.write(pa.RecordBatch.from_pydict({"key": [1], "seq": [1], "value": [1], "ts": [1]}, schema=SCHEMA))
    writer.before_barrier()
    return writer.prepare(checkpoint)()


def test_committing_twice_shows_the_rows_once(system: ExternalSystem):
    sink = SimSink(NUMBER)
    tokens = prepared(sink, 1, 1)
    sink.commit(tokens)
    sink.commit(tokens)
    assert list(system.committed) == tokens


def test_two_sinks_of_one_world_do_not_drop_each_others_transactions(system: ExternalSystem):
    one, other = SimSink(NUMBER, "one"), SimSink(NUMBER, "other")
    left = prepared(one, 1, 1) + prepared(other, 1, 1)
    one.clean(context(2), [])
    assert list(system.prepared) == left[1:]
    one.end("job")
    assert list(system.prepared) == left[1:]
    other.end("job")
    assert list(system.prepared) == []


def test_an_empty_transaction_is_none(system: ExternalSystem):
    assert SimSink(NUMBER).writer(context(1)).prepare(1)() == []


def test_cleaning_drops_what_earlier_attempts_of_the_subtask_left(system: ExternalSystem):
    sink = SimSink(NUMBER)
    old, other, new = prepared(sink, 1, 1), prepared(sink, 1, 1, subtask=1), prepared(sink, 2, 2)
    sink.clean(context(2), [])
    assert list(system.prepared) == other + new
    refused: list[str] = []
    system.on_refused = lambda transaction: refused.append(transaction.name)
    with pytest.raises(ExternalError):
        sink.commit(old)
    assert len(refused) == 1


@pytest.mark.parametrize(("after", "visible"), [(False, 0), (True, 1)])
def test_a_failing_commit_did_nothing_or_everything(system: ExternalSystem, after: bool, visible: int):
    sink = SimSink(NUMBER)
    tokens = prepared(sink, 1, 1)
    system.fail(for_us=1_000, share=1.0, after=after)
    with pytest.raises(ExternalError):
        sink.commit(tokens)
    assert len(system.committed) == visible
