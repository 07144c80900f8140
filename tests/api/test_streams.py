"""Each method of a stream makes one step, with the columns that its records will have."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest

from penstock.api.aggregates import count
from penstock.api.steps import MapBatchesStep, MapStep, SelectStep, WatermarkStep, WhereStep, WriteStep
from penstock.api.windows import tumbling
from penstock.core.errors import UsageError
from penstock.sql.schemas import as_schema

ROW = {"auction": 7, "bidder": 1, "price": 100, "ts": None}


@pytest.fixture
def last_step(program, make_sink):
    """The step that made a stream, as it stands in the plan."""

    def find(stream):
        stream.write(make_sink())
        operators = [operator for vertex in program.plan().vertices for operator in vertex.operators]
        return operators[-2].step

    return find


def columns(stream):
    return {field.name: str(field.type) for field in stream.schema}


def rows(step, *given):
    """What a select step makes of rows of bids."""
    frame = pl.from_arrow(pa.Table.from_pylist(list(given), schema=bid_schema()))
    made = frame.with_columns(*step.columns) if step.keep else frame.select(*step.columns)
    return made.to_dicts()


def bid_schema():
    return as_schema("auction bigint, bidder bigint, price bigint, ts timestamp", argument="schema")


# --- columns and rows ------------------------------------------------------------------------------------------------


def test_where_keeps_the_columns(bids, last_step):
    kept = bids.where("price > 100")
    assert kept.schema == bids.schema
    step = last_step(kept)
    assert isinstance(step, WhereStep)
    assert step.schema == bids.schema
    assert pl.DataFrame({"price": [100, 101]}).filter(step.condition).to_dicts() == [{"price": 101}]


def test_where_takes_a_polars_expression(bids, last_step):
    condition = pl.col("price") > 100
    assert last_step(bids.where(condition)).condition is condition


def test_select_has_the_columns_in_the_order_given(bids, last_step):
    made = bids.select("price", "auction as id", pl.col("bidder").alias("who"), double="price * 2")
    assert columns(made) == {"price": "int64", "id": "int64", "who": "int64", "double": "int64"}
    step = last_step(made)
    assert isinstance(step, SelectStep)
    assert (step.keep, step.schema) == (False, made.schema)
    assert rows(step, ROW) == [{"price": 100, "id": 7, "who": 1, "double": 200}]


def test_a_column_may_be_called_name(bids):
    assert columns(bids.select(name="cast(auction as string)")) == {"name": "string"}


def test_constants_alone_give_one_row_per_record(bids, last_step):
    step = last_step(bids.select(one="1", two="'x'"))
    assert rows(step, ROW, ROW) == [{"one": 1, "two": "x"}] * 2
    assert rows(step) == []


def test_with_columns_replaces_in_place_and_appends(bids, last_step):
    made = bids.with_columns("bidder + 1 as more", price="price / 100")
    assert columns(made) == {
        "auction": "int64",
        "bidder": "int64",
        "price": "double",
        "ts": "timestamp[us, tz=UTC]",
        "more": "int64",
    }
    step = last_step(made)
    assert step.keep
    assert rows(step, ROW) == [{"auction": 7, "bidder": 1, "price": 1.0, "ts": None, "more": 2}]


def test_with_columns_sees_the_columns_as_they_were(bids, last_step):
    step = last_step(bids.with_columns(price="auction", auction="price"))
    assert rows(step, ROW)[0]["auction"] == 100
    assert rows(step, ROW)[0]["price"] == 7


def test_drop_keeps_the_others(bids, last_step):
    made = bids.drop("bidder", "ts")
    assert columns(made) == {"auction": "int64", "price": "int64"}
    assert rows(last_step(made), ROW) == [{"auction": 7, "price": 100}]


def test_rename_may_swap(bids, last_step):
    made = bids.rename({"auction": "price", "price": "auction"})
    assert list(columns(made)) == ["price", "bidder", "auction", "ts"]
    assert rows(last_step(made), ROW) == [{"price": 7, "bidder": 1, "auction": 100, "ts": None}]


def test_a_column_that_passes_keeps_its_field(program, make_source):
    field = pa.field("s", pa.large_string(), nullable=False)
    source = make_source("odd")
    source._schema = pa.schema([field, ("n", pa.int32())])
    stream = program.read(source)
    assert stream.select("s").schema == pa.schema([field])
    assert stream.with_columns(n="n + 1").schema.field("s") == field
    assert stream.select(t="upper(cast(n as string))").schema == pa.schema([("t", pa.string())])


@pytest.mark.parametrize(
    ("use", "fact"),
    [
        (lambda s: s.select(), "select needs at least one column"),
        (lambda s: s.with_columns(), "with_columns needs at least one column"),
        (lambda s: s.select("price", "auction as price"), "select would make 2 columns named 'price'"),
        (lambda s: s.select("price", price="auction"), "select would make 2 columns named 'price'"),
        (lambda s: s.with_columns("price as a", a="price"), "with_columns would make 2 columns named 'a'"),
        (lambda s: s.select("prise"), "column 'prise': there is no column 'prise'"),
        (lambda s: s.select(x="prise + 1"), "column 'x' 'prise + 1': there is no column 'prise'"),
        (lambda s: s.where("prise > 1"), "condition 'prise > 1': there is no column 'prise'"),
        (lambda s: s.drop("prise"), "drop: there is no column 'prise'"),
        (lambda s: s.drop("auction", "bidder", "price", "ts"), "drop would leave no column"),
        (lambda s: s.drop(pl.col("price")), "drop takes names of columns"),
        (lambda s: s.rename({"prise": "x"}), "rename: there is no column 'prise'"),
        (lambda s: s.rename({"price": "auction"}), "rename would make 2 columns named 'auction'"),
        (lambda s: s.key_by("prise"), "key_by: there is no column 'prise'"),
        (lambda s: s.key_by(), "a key needs at least one column"),
        (lambda s: s.key_by("price", "price"), "key columns are given twice"),
        (lambda s: s.select(l="NULL"), "is always null"),
        (lambda s: s.map(5, schema="a int"), "map takes a function, not 5"),
        (lambda s: s.for_each_checkpoint("merge"), "for_each_checkpoint takes a function, not 'merge'"),
        (lambda s: s.write("out"), "write takes a sink, not 'out'"),
        (lambda s: s.watermark("tz"), "watermark: there is no column 'tz'"),
        (lambda s: s.watermark("ts", delay=5), "delay is 5, which has no unit"),
        (lambda s: s.watermark("ts", idle_after="0s"), "idle_after is '0s'"),
    ],
)
def test_a_wrong_argument_is_refused_at_once(bids, use, fact):
    with pytest.raises(UsageError) as caught:
        use(bids)
    assert fact in caught.value.message


# --- functions -------------------------------------------------------------------------------------------------------


def test_map_and_flat_map_have_the_schema_given(bids, last_step):
    def same(row):
        return row

    made = bids.map(same, schema="a bigint, b string")
    assert columns(made) == {"a": "int64", "b": "string"}
    assert last_step(made) == MapStep(function=same, flat=False, schema=made.schema)


def test_flat_map_is_marked(bids, last_step):
    made = bids.flat_map(lambda row: [row], schema={"a": int})
    assert last_step(made).flat
    assert columns(made) == {"a": "int64"}


def test_map_batches_takes_a_schema_without_calling_the_function(bids, last_step):
    def unready(batch):
        raise AssertionError

    made = bids.map_batches(unready, schema="a double")
    assert last_step(made) == MapBatchesStep(function=unready, kind="arrow", schema=made.schema)


def test_map_batches_finds_the_schema_by_a_batch_without_rows(bids):
    def arrow(batch):
        assert isinstance(batch, pa.RecordBatch)
        assert batch.schema == bids.schema
        return batch.select(["price"])

    assert columns(bids.map_batches(arrow)) == {"price": "int64"}
    assert columns(bids.map_batches(lambda batch: [batch.select(["ts"])])) == {"ts": "timestamp[us, tz=UTC]"}
    assert columns(bids.map_batches(lambda batch: iter([batch.select(["ts"])]))) == {"ts": "timestamp[us, tz=UTC]"}
    polars = bids.map_batches(lambda frame: frame.select(t=pl.col("price").cast(pl.String)), kind="polars")
    assert columns(polars) == {"t": "string"}


def test_map_batches_finds_the_schema_of_a_pandas_frame(bids):
    pytest.importorskip("pandas")
    made = bids.map_batches(lambda frame: frame[["price", "ts"]], kind="pandas")
    assert columns(made)["price"] == "int64"
    with pytest.raises(UsageError, match="the type of column 'text' that map_batches returns cannot be told"):
        bids.map_batches(lambda frame: frame.assign(text=None), kind="pandas")


def raising(batch):
    raise ValueError("empty")


@pytest.mark.parametrize(
    ("function", "fact"),
    [
        (raising, "the function raised ValueError: empty"),
        (lambda batch: None, "the function returned nothing"),
        (lambda batch: [], "the function returned nothing"),
        (lambda batch: 5, "the function returned int"),
    ],
)
def test_a_schema_that_cannot_be_found_must_be_given(bids, function, fact):
    with pytest.raises(UsageError) as caught:
        bids.map_batches(function)
    assert fact in caught.value.message
    assert "give schema=" in (caught.value.hint or "")


def test_the_kind_of_a_batch_function_is_checked(bids):
    with pytest.raises(UsageError, match="kind is 'numpy'; choose one of 'arrow', 'polars', 'pandas'"):
        bids.map_batches(lambda batch: batch, kind="numpy")


# --- time and windows ------------------------------------------------------------------------------------------------


def test_a_watermark_is_exact(bids, last_step):
    made = bids.watermark("ts", delay="1.5s", idle_after="2 min")
    assert last_step(made) == WatermarkStep(column="ts", delay_us=1_500_000, idle_after_ms=120_000)


@pytest.mark.parametrize(
    ("column", "conversion"),
    [
        ("n", 'n="timestamp_millis(n)"'),
        ("d", 'd="CAST(d AS TIMESTAMP)"'),
        ("s", 's=pl.col("s").str.to_datetime("%Y-%m-%dT%H:%M:%S", time_zone="UTC")'),
    ],
)
def test_event_time_must_be_a_timestamp_and_the_hint_converts(program, make_source, column, conversion):
    stream = program.read(make_source("odd", "n bigint, d date, s string"))
    with pytest.raises(UsageError) as caught:
        stream.watermark(column)
    assert f"column {column!r} is of type" in caught.value.message
    assert caught.value.hint == f"convert the column first: .with_columns({conversion})"
    name, _, written = conversion.partition("=")
    expression = (
        pl.col("s").str.to_datetime("%Y-%m-%dT%H:%M:%S", time_zone="UTC") if name == "s" else written.strip('"')
    )
    stream.with_columns(**{name: expression}).watermark(name)


def test_event_time_must_be_in_microseconds(program, make_source):
    source = make_source("nanos")
    source._schema = pa.schema([("ts", pa.timestamp("ns"))])
    nanos = program.read(source)
    with pytest.raises(UsageError) as caught:
        nanos.watermark("ts")
    assert caught.value.hint == 'convert the column first: .with_columns(ts="CAST(ts AS TIMESTAMP)")'
    converted = nanos.with_columns(ts="CAST(ts AS TIMESTAMP)").watermark("ts")
    assert converted.schema.field("ts").type == pa.timestamp("us", tz="UTC")


def test_a_window_without_event_time_says_how_to_add_it(bids):
    with pytest.raises(UsageError) as caught:
        bids.key_by("auction").window(tumbling("10s"))
    assert caught.value.message == "window needs event time, and this stream has none"
    assert caught.value.hint == 'add .watermark("ts", delay="5s") before key_by'


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s.where("price > 1"),
        lambda s: s.select("auction", "ts"),
        lambda s: s.select("auction", "ts as at"),
        lambda s: s.select("auction", at=pl.col("ts")),
        lambda s: s.with_columns(price="price + 1"),
        lambda s: s.with_columns(at="ts"),
        lambda s: s.drop("price"),
        lambda s: s.rename({"ts": "at"}),
        lambda s: s.rebalance(),
        lambda s: s.map_batches(lambda batch: batch),
        lambda s: s.map(lambda row: row, schema="auction bigint, ts timestamp"),
    ],
)
def test_event_time_stays_while_its_column_does(bids, use):
    made = use(bids.watermark("ts"))
    assert "; event time in " in repr(made)
    made.key_by("auction").window(tumbling("10s")).aggregate(n=count())


@pytest.mark.parametrize(
    ("use", "kind"),
    [
        (lambda s: s.select("auction", at="ts + interval 1 second"), "select"),
        (lambda s: s.with_columns(ts="date_trunc('hour', ts)"), "with_columns"),
        (lambda s: s.drop("ts"), "drop"),
        (lambda s: s.map(lambda row: row, schema="auction bigint, ts timestamp_ntz"), "map"),
        (lambda s: s.drop("ts").where("price > 1"), "drop"),
    ],
)
def test_event_time_is_lost_with_its_column_and_the_error_says_where(bids, use, kind):
    made = use(bids.watermark("ts"))
    with pytest.raises(UsageError) as caught:
        made.key_by("auction").window(tumbling("10s"))
    assert f"the event time in 'ts' was lost in '{kind}' made at test_streams.py:" in caught.value.message


# --- writing and seeing ----------------------------------------------------------------------------------------------


def test_a_sink_says_what_it_cannot_write(bids, make_sink):
    with pytest.raises(UsageError, match="secret cannot be written"):
        bids.select(secret="price").write(make_sink())


def test_one_sink_is_written_by_one_step(bids, make_sink):
    sink = make_sink()
    bids.write(sink)
    with pytest.raises(UsageError, match="one sink cannot be written by two steps; the other step is 'picky' made at"):
        bids.where("price > 1").write(sink)


def test_a_write_step_has_the_columns(program, bids, make_sink):
    sink = make_sink()
    bids.select("price").write(sink)
    assert program.plan().vertices[-1].operators[-1].step == WriteStep(
        sink=sink, schema=pa.schema([("price", pa.int64())])
    )


def test_a_stream_shows_itself(bids):
    timed = bids.select("auction", "ts").watermark("ts").name("timed")
    assert repr(timed) == "<Stream 'timed': auction int64, ts timestamp[us, tz=UTC]; event time in ts>"
    keyed = timed.key_by("auction")
    assert repr(keyed).startswith("<KeyedStream by auction of 'timed': ")
    assert keyed.schema == timed.schema
    assert repr(keyed.window(tumbling("1.5s"))).startswith("<WindowedStream of 1.5 s by auction of 'timed': ")


def test_a_stream_explains_the_way_to_itself_only(bids):
    bids.where("price < 5")
    assert bids.where("price > 100").select("price").explain() == (
        "parallelism 2 of at most 128\n"
        "\n"
        "[1] bids → where → select  (source, 2 subtasks)\n"
        "     bids    bids\n"
        "     where   bids.where-2\n"
        "     select  bids.select"
    )


def test_a_watermark_has_a_delay_or_a_function_and_not_both(bids):
    with pytest.raises(UsageError, match="delay and function were both given"):
        bids.watermark("ts", delay="1s", function=lambda batch: None)
    with pytest.raises(UsageError, match="watermark: function takes a function"):
        bids.watermark("ts", function=5)
