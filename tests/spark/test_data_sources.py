"""What can be said of a Python Data Source without a job, and how its parts are called. No Spark is started."""

# Names and parameters are those of PySpark's classes.
# ruff: noqa: N802

from __future__ import annotations

import threading
from datetime import UTC, datetime

import cloudpickle
import msgspec
import pyarrow as pa
import pytest
from documented_sources import BatchFiles, Counter, Files, Lines, Sqlite, Squares
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)

import penstock as ps
from penstock.api.connector import UserCodeRaised
from penstock.api.program import Program
from penstock.connectors.nexmark import BASE_TIME
from penstock.spark.data_source_reading import Split
from penstock.spark.task_context import as_own_task

NOW = 0


class Given(DataSource):
    """Reads what a test gives it."""

    columns = "id bigint, text string"
    rows: object = None

    def schema(self):
        return self.columns

    def reader(self, schema):
        return GivenReader(self.rows)


class GivenReader(DataSourceReader):
    def __init__(self, rows) -> None:
        self.rows = rows

    def read(self, partition):
        return iter(self.rows)


def given(rows, *, columns="id bigint, text string", **options) -> ps.Source:
    kind = type("Given", (Given,), {"columns": columns, "rows": rows})
    return ps.data_source(kind, mode="batch", **options)


def polled(reader, max_rows=1_000, *, into=None) -> list[pa.RecordBatch]:
    """All that a reader gives; its partitions are read on threads, so it may have to be asked again."""
    found = [] if into is None else into
    while not isinstance(batch := reader.poll(max_rows, NOW), ps.End):
        if isinstance(batch, ps.Pause):
            threading.Event().wait(0.001)
        else:
            found.append(batch)
    return found


def rows_of(batches) -> list[tuple]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def read_all(source: ps.Source, max_rows=1_000) -> list[tuple]:
    return rows_of(polled(source.open(source.splits(2)), max_rows))


# --- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows",
    [
        [(1, "a"), (2, None)],
        [[1, "a"], [2, None]],
        [Row(text="a", id=1), Row(text=None, id=2)],
        [
            pa.RecordBatch.from_pydict({"id": [1], "text": ["a"]}),
            pa.RecordBatch.from_pydict(
                {"id": [2], "text": [None]}, pa.schema([("id", pa.int64()), ("text", pa.string())])
            ),
        ],
    ],
    ids=["tuples", "lists", "rows by name", "arrow"],
)
def test_rows_come_in_every_form_that_spark_takes(rows):
    assert read_all(given(rows)) == [(1, "a"), (2, None)]


def test_a_reader_hands_on_no_more_rows_than_it_is_asked_for():
    batches = pa.RecordBatch.from_pydict({"id": list(range(10)), "text": ["x"] * 10})
    for rows in ([batches], [(number, "x") for number in range(10)]):
        source = given(rows)
        found = polled(source.open(source.splits(1)), 4)
        assert max(batch.num_rows for batch in found) <= 4
        assert [row[0] for row in rows_of(found)] == list(range(10))


def test_values_are_converted_as_in_spark():
    columns = "at timestamp, day date, amount decimal(10, 2), tags array<string>"
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    source = given([(at, at.date(), None, ["a", "b"])], columns=columns)
    assert read_all(source) == [(at, at.date(), None, ["a", "b"])]
    assert source.schema.field("at").type == pa.timestamp("us", "UTC")


def test_a_batch_of_other_columns_is_refused():
    source = given([pa.RecordBatch.from_pydict({"id": pa.array([1], pa.int32()), "text": ["a"]})])
    with pytest.raises(ps.UsageError, match=r"returned a batch with the columns id: int32.*data source is id: int64"):
        read_all(source)


def test_rows_before_an_error_are_handed_on_and_then_it_comes():
    def rows():
        yield (1, "a")
        raise ValueError("the page is missing")

    class Broken(GivenReader):
        def read(self, partition):
            return rows()

    class Source(Given):
        def reader(self, schema):
            return Broken(None)

    source = ps.data_source(Source, mode="batch")
    reader = source.open(source.splits(1))
    found: list[pa.RecordBatch] = []
    with pytest.raises(UserCodeRaised) as raised:
        polled(reader, into=found)
    assert rows_of(found) == [(1, "a")]
    assert raised.value.what == "read of data source 'Source'"
    assert str(raised.value.__cause__) == "the page is missing"


# --- positions -------------------------------------------------------------------------------------------------------


def test_a_partition_goes_on_behind_the_rows_that_were_handed_on():
    rows = [(number, f"n{number}") for number in range(20)]
    source = given(rows)
    reader = source.open(source.splits(1))
    first: list = []
    while len(first) < 5:
        batch = reader.poll(5 - len(first), NOW)
        first += rows_of([batch]) if isinstance(batch, pa.RecordBatch) else []
    saved = reader.snapshot()
    reader.close()
    assert first + rows_of(polled(source.open(saved), 3)) == rows
    assert first + rows_of(polled(source.open(saved))) == rows


@pytest.mark.parametrize(
    ("again", "how"),
    [
        ([(9, "z"), (0, "n0"), (1, "n1")], "the last of these rows differs now"),
        ([(0, "n0")], "the partition now ends 1 rows earlier"),
    ],
)
def test_a_partition_that_does_not_give_the_same_rows_again_is_refused(again, how):
    source = given([pa.RecordBatch.from_pydict({"id": [0, 1, 2], "text": ["n0", "n1", "n2"]})])
    reader = source.open(source.splits(1))
    while not isinstance(reader.poll(2, NOW), pa.RecordBatch):
        threading.Event().wait(0.001)
    saved = reader.snapshot()
    reader.close()
    with pytest.raises(ps.UsageError, match=f"did not give the same rows again.*{how}"):
        polled(given(again).open(saved))


def test_splits_count_when_they_are_read_to_their_ends():
    source = ps.data_source(Squares, options={"count": 40}, mode="batch")
    reader = source.open(source.splits(1))
    assert reader.splits_read == 0
    assert len(rows_of(polled(reader))) == 40
    assert reader.splits_read == 4
    assert reader.snapshot() == []


# --- planning --------------------------------------------------------------------------------------------------------


def enumerator_of(kind, mode="stream", **options):
    enumerator = ps.data_source(kind, options=options, mode=mode).enumerator()
    enumerator.start(None)
    return enumerator


def planned(found) -> list[tuple]:
    splits = [msgspec.msgpack.decode(split, type=Split) for split in found.splits]
    return [(s.number, s.index, s.start, cloudpickle.loads(s.partition)) for s in splits]


def test_ranges_are_planned_one_after_another_within_the_limit_of_the_reader():
    plans = enumerator_of(Counter, total=5, rowsPerBatch=3, numPartitions=2)
    first = plans.discover(None)
    assert [(n, i, s, p.first, p.stop) for n, i, s, p in planned(first)] == [
        (0, 0, '{"next": 0}', 0, 2),
        (0, 1, '{"next": 0}', 2, 3),
    ]
    second = plans.discover(first.position)
    assert [(n, s, p.first, p.stop) for n, _, s, p in planned(second)] == [
        (1, '{"next": 3}', 3, 4),
        (1, '{"next": 3}', 4, 5),
    ]
    third = plans.discover(second.position)
    assert not third.splits
    assert not third.ended
    assert third.wait_ms == 100
    # After a failure the same position gives the same range.
    assert planned(plans.discover(first.position)) == planned(second)


def test_what_is_available_now_ends_when_the_reader_stands_still():
    plans = enumerator_of(Counter, "available-now", total=5, rowsPerBatch=3)
    first = plans.discover(None)
    second = plans.discover(first.position)
    third = plans.discover(second.position)
    assert [found.ended for found in (first, second, third)] == [False, False, True]


class Plain(DataSource):
    """A reader with a limit, that cannot be told to stop at what is there."""

    def schema(self):
        return "id bigint"

    def streamReader(self, schema):
        return PlainReader()


class PlainReader(DataSourceStreamReader):
    def initialOffset(self):
        return {"topic": {0: 0, 1: 0}}

    def latestOffset(self, start, limit):
        # Numbers as keys come back as texts, as they do from Spark.
        assert start == {"topic": {"0": 0, "1": 0}}
        return {"topic": {"0": 9, "1": 9}, "limit": type(limit).__name__}

    def partitions(self, start, end):
        return [InputPartition((start, end))]

    def read(self, partition):
        return iter([])


def test_what_is_available_now_is_one_range_if_the_reader_cannot_say_when_to_end():
    found = enumerator_of(Plain, "available-now").discover(None)
    assert found.ended
    ((_, _, _, partition),) = planned(found)
    assert partition.value == ({"topic": {"0": 0, "1": 0}}, {"topic": {"0": 9, "1": 9}, "limit": "ReadAllAvailable"})


def test_an_offset_is_committed_when_everything_before_it_has_been_read(tmp_path):
    plans = enumerator_of(Counter, total=9, rowsPerBatch=3, numPartitions=2, notes=tmp_path)
    first = plans.discover(None)
    second = plans.discover(first.position)
    third = plans.discover(second.position)

    def committed():
        file = tmp_path / "committed"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    plans.consumed(second.position, [first.splits[1], *second.splits])
    assert committed() == []
    plans.consumed(second.position, [second.splits[0]])
    plans.consumed(third.position, [second.splits[1], *third.splits])
    assert committed() == [3]
    plans.consumed(third.position, [])
    assert committed() == [3, 9]
    plans.close()


def test_rows_that_the_driver_read_travel_once_and_are_read_again_between_their_offsets(tmp_path):
    file = tmp_path / "lines"
    file.write_text("a\nb\nc\n")
    options = {"path": file, "linesPerRead": 2, "notes": tmp_path}
    source = ps.data_source(Lines, options=options)
    plans = source.enumerator()
    plans.start(None)
    first = plans.discover(None)
    reader = source.open([])
    reader.add_splits(first.splits)
    saved = reader.snapshot()
    assert rows_of(polled(reader)) == [(0, "a"), (1, "b")]
    assert not (tmp_path / "replayed").exists()
    assert rows_of(polled(source.open(saved))) == [(0, "a"), (1, "b")]
    assert (tmp_path / "replayed").read_text() == "[0, 2]\n"
    assert plans.discover(plans.discover(first.position).position).splits == []


class Stuck(DataSource):
    """A simple reader whose offset stays where it is."""

    def schema(self):
        return "id bigint"

    def simpleStreamReader(self, schema):
        return StuckReader()


class StuckReader(SimpleDataSourceStreamReader):
    def initialOffset(self):
        return {"at": 0}

    def read(self, start):
        return iter([(1,)]), start


def test_a_simple_reader_that_gives_rows_must_advance():
    with pytest.raises(ps.UsageError, match=r"read of data source 'Stuck' gave 1 rows behind .*the same offset"):
        enumerator_of(Stuck).discover(None)


# --- what is wrong with a program ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ps.data_source(Files), "'files' does not give its schema"),
        (lambda: ps.data_source(Files, schema="a int"), "'files' has no streamReader and no simpleStreamReader"),
        (lambda: ps.data_source(Counter, mode="batch"), "'counter' has no reader"),
        (lambda: ps.data_source(Counter, mode="micro"), "mode is 'micro'"),
        (lambda: ps.data_source("counter"), "takes a Python Data Source, not 'counter'"),
        (lambda: ps.data_source(Counter(options={})), "takes a class, not an object of Counter"),
        (lambda: ps.data_source(Counter, schema="a nothing"), "the schema of data source 'counter'"),
        (lambda: ps.data_sink(dict), "data_sink takes a Python Data Source"),
        (lambda: ps.data_source(ps.NexmarkBids), "option 'events' is missing"),
        (lambda: ps.data_source(ps.NexmarkBids, options={"events": "many"}), "option 'events' is 'many'"),
    ],
)
def test_what_cannot_be_is_refused_when_the_program_is_written(make, text):
    with pytest.raises(ps.UsageError, match=text):
        make()


def test_a_source_that_cannot_be_written_is_refused_and_so_is_a_sink_that_is_used_twice():
    program = Program()
    stream = program.read(ps.data_source(Counter))
    with pytest.raises(ps.UsageError, match="'counter' has no streamWriter\n  hint: give the class a method"):
        stream.write(ps.data_sink(Counter))
    with pytest.raises(ps.UsageError, match=r"'batch-files' has no streamWriter\n  hint: the class has a `writer`"):
        stream.write(ps.data_sink(BatchFiles))
    stream.write(ps.data_sink(Sqlite, options={"path": "a"}))
    with pytest.raises(ps.UsageError, match="one sink cannot be written by two steps"):
        stream.write(ps.data_sink(Sqlite, options={"PATH": "a"}))
    stream.write(ps.data_sink(Sqlite, options={"path": "b"}))


def test_options_are_texts_whose_names_have_no_case():
    seen = {}

    class Options(Given):
        def schema(self):
            seen.update(flag=self.options["FLAG"], count=self.options["count"], missing=self.options.get("nothing"))
            return "id bigint"

        def reader(self, schema):
            return GivenReader([])

    ps.data_source(Options, options={"flag": True, "Count": 3, "nothing": None}, mode="batch")
    assert seen == {"flag": "true", "count": "3", "missing": None}


# --- Spark's task context --------------------------------------------------------------------------------------------


def test_each_call_looks_like_a_task_of_its_own(monkeypatch):
    slot = object.__new__(TaskContext)
    slot._partitionId, slot._attemptNumber, slot._taskAttemptId, slot._stageId = 0, 0, 7, 3
    monkeypatch.setattr(TaskContext, "_taskContext", slot)
    seen = []

    def call(partition):
        with as_own_task(partition=partition, attempt=2):
            context = TaskContext.get()
            seen.append((context.partitionId(), context.attemptNumber(), context.taskAttemptId(), context.stageId()))

    for partition in (4, 4, 5):
        thread = threading.Thread(target=call, args=(partition,))
        thread.start()
        thread.join()
    assert [(partition, attempt, stage) for partition, attempt, _, stage in seen] == [(4, 2, 3), (4, 2, 3), (5, 2, 3)]
    assert len({number for _, _, number, _ in seen}) == 3
    context = TaskContext.get()
    assert (context.partitionId(), context.attemptNumber(), context.taskAttemptId()) == (0, 0, 7)


# --- Nexmark ---------------------------------------------------------------------------------------------------------


def test_nexmark_as_a_data_source_gives_the_bids_of_the_source():
    events = 5_000
    bids = ps.nexmark.bids(events=events, seed=3)
    reader = bids.open(bids.splits(1))
    expected = sorted(rows_of(polled(reader, 100_000)))
    options = {"events": events, "seed": 3, "maxBidsPerTrigger": 1_500}
    assert sorted(read_all(ps.data_source(ps.NexmarkBids, options=options, mode="batch"), 10_000)) == expected

    source = ps.data_source(ps.NexmarkBids, options=options)
    plans, found, splits = source.enumerator(), None, []
    plans.start(None)
    while found is None or found.splits:
        found = plans.discover(None if found is None else found.position)
        splits += found.splits
    assert sorted(rows_of(polled(source.open(splits), 10_000))) == expected
    assert min(row[3] for row in expected) >= BASE_TIME
