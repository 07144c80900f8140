"""The jobs of a world: what they read, what they must give, and the external system they write to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.api.connector import End, Pause, WriterContext
from penstock.core.errors import ExternalError
from penstock.sim.external import ExternalSystem, enter, leave
from penstock.sim.jobs import (
    SCHEMA,
    TICK_US,
    Shape,
    SimSink,
    SimSource,
    Workload,
    expected_rows,
    make_inputs,
    make_plan,
    rows_of,
)
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
    return Workload(**{**values, **changes})


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


def test_no_record_is_later_than_the_watermark_allows(system: ExternalSystem):
    source = SimSource(NUMBER, workload())
    plan = make_plan(workload(), world=NUMBER, parallelism=1, sink=SimSink(NUMBER))
    delay_us = plan.vertices[0].operators[1].step.delay_us
    furthest, worst = 0, 0
    for batch in read_all(source, source.splits(1), reopen_every=1_000)[0]:
        times = [row[3] for row in rows_of(batch)]
        worst = max(worst, furthest - min(times))
        furthest = max(furthest, *times)
    assert 0 < worst <= delay_us


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
    assert expected_rows(workload(window_us=10), [table]) == Counter(
        {(1, 0, 10, 2, 7): 1, (2, 10, 20, 1, 5): 1, (1, 10, 20, 1, 8): 1}
    )


@pytest.mark.parametrize("shape", Shape)
def test_the_plan_of_each_shape_exchanges_once(shape: Shape):
    plan = make_plan(workload(shape=shape), world=NUMBER, parallelism=2, sink=SimSink(NUMBER))
    assert len(plan.edges) == 1
    assert plan.edges[0].partitioning.all_to_all


def context(epoch: int, subtask: int = 0) -> WriterContext:
    return WriterContext(job="job", subtask=subtask, parallelism=2, epoch=epoch)


def prepared(sink: SimSink, epoch: int, checkpoint: int, subtask: int = 0) -> list[bytes]:
    writer = sink.writer(context(epoch, subtask))
    writer.write(pa.RecordBatch.from_pydict({"key": [1], "seq": [1], "value": [1], "ts": [1]}, schema=SCHEMA))
    return writer.prepare(checkpoint)()


def test_committing_twice_shows_the_rows_once(system: ExternalSystem):
    sink = SimSink(NUMBER)
    tokens = prepared(sink, 1, 1)
    sink.commit(tokens)
    sink.commit(tokens)
    assert list(system.committed) == tokens


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
