"""What a PySpark StatefulProcessor may rely on in a step, and how it is told what it did wrong."""

# Names and parameters are those of PySpark's class.
# ruff: noqa: N802, N803

from __future__ import annotations

import datetime
import decimal
import pickle
import threading
from typing import ClassVar

import cloudpickle
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    ValueState,
)
from pyspark.sql.types import LongType, StringType, StructType

from penstock.api.grouped import HostedProcessor
from penstock.api.program import Program
from penstock.api.steps import KeyedProcessStep
from penstock.core.elements import MAX_WATERMARK
from penstock.core.errors import UsageError, UserCodeError
from penstock.core.ids import Instant
from penstock.spark.processors import host_processor
from penstock.testing import scripted

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
OUT = "k bigint, text string"


def rows(*found):
    made = [[row[n] for row in found] for n in range(2)]
    times = [row[2] * 1_000 if len(row) > 2 else None for row in found]
    arrays = [pa.array(c, f.type) for c, f in zip([*made, times], SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=SCHEMA)


def hosted(processor, **changes):
    given = {
        "output_schema": OUT,
        "time_mode": "None",
        "output_mode": "Append",
        "initial_state": None,
        "kind": "row",
        "keys": ("k",),
        "input_schema": SCHEMA,
        "time_column": "ts",
    }
    return host_processor(HostedProcessor(processor=processor, **(given | changes)))


def step_of(processor, **changes):
    function = hosted(processor, **changes)
    keys = pa.schema([SCHEMA.field(key) for key in changes.get("keys", ("k",))])
    return KeyedProcessStep(function=function, keys=tuple(keys.names), key_schema=keys, schema=function.schema)


def texts(found):
    return [(row["k"], row["text"]) for row in found.output.rows]


class Made(StatefulProcessor):
    """Does in `init` and for every key what it is given."""

    def __init__(self, handle_rows=None, init=None, expired=None):
        self._rows, self._init, self._expired = handle_rows, init, expired

    def init(self, handle):
        self.handle = handle
        if self._init:
            self._init(self, handle)

    def handleInputRows(self, key, rows, timerValues):
        return self._rows(self, key, rows, timerValues) if self._rows else iter([])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        return self._expired(self, key, timerValues, expiredTimerInfo)


def told(processor, key, rows, times):
    """One row per call that says what it was given."""
    yield Row(k=key[0], text=",".join(str(row.v) for row in rows))


# --- calls -----------------------------------------------------------------------------------------------------------


def test_a_key_is_called_once_per_batch_in_the_order_of_first_rows(rig):
    found = rig(step_of(Made(told)))
    found.operator.process(rows((2, 1), (1, 2), (2, 3), (3, 4), (1, 5), (2, 6)))
    assert texts(found) == [(2, "1,3,6"), (1, "2,5"), (3, "4")]


def test_rows_have_all_columns_and_keys_are_tuples(rig):
    seen = []

    def look(processor, key, rows, times):
        seen.extend((key, row) for row in rows)
        return iter([])

    step = step_of(Made(), keys=("k", "v"))
    found = rig(step)
    found.operator._function._processor._rows = look
    found.operator.process(rows((1, 2, 3), (1, None, 4)))
    time = datetime.datetime(1970, 1, 1, 0, 0, 0, 3_000, tzinfo=datetime.UTC)
    assert seen[0] == ((1, 2), Row(k=1, v=2, ts=time))
    assert seen[1][0] == (1, None)
    assert isinstance(seen[0][1], Row)
    assert seen[0][1].asDict() == {"k": 1, "v": 2, "ts": time}
    assert type(pickle.loads(pickle.dumps(seen[0][1]))) is Row


def test_a_lazy_result_is_consumed_under_its_own_key(rig):
    def init(processor, handle):
        processor.value = handle.getValueState("value", "n bigint")

    def lazily(processor, key, rows, times):
        processor.value.update((key[0] * 10,))
        return (Row(k=key[0], text=str(processor.value.get())) for _ in range(1))

    found = rig(step_of(Made(lazily, init)))
    found.operator.process(rows((1, 0), (2, 0)))
    assert texts(found) == [(1, "(10,)"), (2, "(20,)")]


class Lives(StatefulProcessor):
    told: ClassVar[list[str]] = []

    def init(self, handle):
        self.told.append("init")

    def handleInputRows(self, key, rows, timerValues):
        return iter([])

    def close(self):
        self.told.append("close")


def test_a_processor_is_made_and_closed_once_per_attempt(rig):
    step = step_of(Lives())
    assert Lives.told == ["init", "close"], "the driver asked for its states"
    Lives.told.clear()
    found = rig(step)
    found.operator.process(rows((1, 1)))
    found.operator.process(rows((1, 1)))
    assert Lives.told == ["init"]
    found.operator.close()
    found.operator.close()
    assert Lives.told == ["init", "close"]


@pytest.mark.parametrize("time_mode", ["None", "processingtime", "EventTime"])
def test_timer_values_are_those_of_the_time_mode(rig, time_mode):
    def times(processor, key, rows, values):
        yield Row(k=key[0], text=f"{values.getCurrentProcessingTimeInMs()} {values.getCurrentWatermarkInMs()}")

    found = rig(step_of(Made(times), time_mode=time_mode))
    found.operator.process(rows((1, 1, 500)))
    found.operator.watermark(7_000)
    found.operator.process(rows((1, 1, 500)))
    want = {"None": ["-1 -1", "-1 -1"], "processingtime": ["1000 -1"] * 2, "EventTime": ["1000 0", "1000 7"]}
    assert [text for _, text in texts(found)] == want[time_mode]


def test_late_rows_are_dropped_with_event_time_only(rig):
    for time_mode, kept in (("EventTime", "3,4"), ("None", "1,2,3,4")):
        found = rig(step_of(Made(told), time_mode=time_mode))
        found.operator.watermark(20_000)
        found.operator.process(rows((1, 1, 10), (1, 2, 20), (1, 3, 21), (1, 4, 30)))
        assert texts(found) == [(1, kept)]


def test_a_row_without_event_time_is_not_late(rig):
    found = rig(step_of(Made(told), time_mode="EventTime"))
    found.operator.watermark(20_000)
    found.operator.process(rows((1, 4)))
    assert texts(found) == [(1, "4")]


# --- timers ----------------------------------------------------------------------------------------------------------


def register(processor, key, rows, times):
    for row in rows:
        processor.handle.registerTimer(row.v)
    return iter([])


def expire(processor, key, times, info):
    left = list(processor.handle.listTimers())
    yield Row(k=key.k, text=f"{info.getExpiryTimeInMs()} of {left}")


def test_timers_fire_when_their_time_has_come_in_order_of_time_then_key(rig):
    found = rig(step_of(Made(register, expired=expire), time_mode="ProcessingTime"))
    found.operator.process(rows((2, 1_500), (1, 1_500), (1, 1_200), (1, 1_500), (1, 9_000)))
    found.time = Instant(1_500)
    assert found.tick(found.time) == 9_000
    assert texts(found) == [(1, "1200 of [1200, 1500, 9000]"), (1, "1500 of [1500, 9000]"), (2, "1500 of [1500]")]


def test_a_timer_that_is_set_again_while_it_fires_is_gone_all_the_same(rig):
    def again(processor, key, times, info):
        processor.handle.deleteTimer(info.getExpiryTimeInMs())
        gone = list(processor.handle.listTimers())
        processor.handle.registerTimer(info.getExpiryTimeInMs())
        yield Row(k=key[0], text=f"{gone} {list(processor.handle.listTimers())}")

    found = rig(step_of(Made(register, expired=again), time_mode="EventTime"))
    found.operator.process(rows((1, 5, 1)))
    found.operator.watermark(5_000)
    found.operator.watermark(6_000)
    assert texts(found) == [(1, "[] [5]")]


def test_at_the_end_of_the_data_event_time_timers_fire(rig):
    found = rig(step_of(Made(register, expired=expire), time_mode="EventTime"))
    found.operator.process(rows((1, 10**9, 1)))
    found.operator.watermark(MAX_WATERMARK)
    found.operator.finish()
    assert texts(found) == [(1, f"{10**9} of [{10**9}]")]


def test_a_processor_without_a_timer_method_ignores_timers(rig):
    class NoMethod(StatefulProcessor):
        def init(self, handle):
            self.handle = handle

        def handleInputRows(self, key, rows, timerValues):
            self.handle.registerTimer(5)
            return iter([])

    found = rig(step_of(NoMethod(), time_mode="EventTime"))
    found.operator.process(rows((1, 5, 1)))
    found.operator.watermark(5_000)
    assert texts(found) == []


def test_timers_without_a_time_mode_are_refused(rig):
    found = rig(step_of(Made(register)))
    with pytest.raises(UserCodeError, match="registerTimer was called with time mode None"):
        found.operator.process(rows((1, 5)))


@pytest.mark.parametrize("method", ["registerTimer", "deleteTimer", "listTimers"])
def test_timers_in_init_are_refused(method):
    def init(processor, handle):
        getattr(handle, method)(*(() if method == "listTimers" else (5,)))

    with pytest.raises(UsageError, match=f"{method} was called in init"):
        hosted(Made(init=init), time_mode="ProcessingTime")


# --- state -----------------------------------------------------------------------------------------------------------

EVERYTHING = (
    "t timestamp, d date, n timestamp_ntz, a array<int>, s struct<x:int,y:string>, m map<string,int>, "
    "c decimal(10,2), b binary, f float, i int, l bigint, o boolean"
)


def test_values_come_back_as_spark_gives_them_also_after_a_restore(rig):
    local = datetime.datetime(2020, 1, 1, 3)  # noqa: DTZ001  # Spark gives times of the local zone
    value = (
        local.astimezone(datetime.UTC),
        datetime.date(2024, 1, 1),
        local,
        [1, 2],
        (1, "a"),
        {"a": 1},
        decimal.Decimal("1.5"),
        b"ab",
        1.5,
        np.int32(3),
        np.int64(4),
        True,
    )
    want = (local, value[1], local, [1, 2], Row(x=1, y="a"), {"a": 1}, decimal.Decimal("1.50"), b"ab", 1.5, 3, 4, True)
    nulls = (None,) * len(value)

    def init(processor, handle):
        processor.value = handle.getValueState("value", EVERYTHING)
        processor.list = handle.getListState("list", EVERYTHING)
        processor.map = handle.getMapState("map", "t timestamp", EVERYTHING)

    def put(processor, key, rows, times):
        if next(rows).v:
            processor.value.update(value)
            processor.list.put([value, nulls])
            processor.map.updateValue((local,), value)
        assert processor.value.get() == want
        assert [type(v).__name__ for v in processor.value.get()] == [type(v).__name__ for v in want]
        assert isinstance(processor.value.get()[4], Row)
        assert list(processor.list.get()) == [want, nulls]
        assert list(processor.map.iterator()) == [((local,), want)]
        assert processor.map.getValue((local,)).i == 3
        return iter([])

    step = step_of(Made(put, init))
    found = rig(step)
    found.operator.process(rows((1, 1)))
    saved = found.snapshot()
    found.operator.process(rows((1, 0)))
    again = rig(step_of(Made(put, init)), restored=[saved], files=found.files)
    again.operator.process(rows((1, 0)))


def test_states_are_of_sparks_classes(rig):
    def init(processor, handle):
        assert isinstance(handle, StatefulProcessorHandle)
        assert isinstance(handle.getValueState("v", StructType().add("n", LongType())), ValueState)
        assert isinstance(handle.getListState("l", "n bigint"), ListState)
        assert isinstance(handle.getMapState("m", "n bigint", StructType().add("s", StringType())), MapState)

    rig(step_of(Made(init=init)))


def test_a_snapshot_has_one_state_per_variable_with_the_types_of_its_schema(rig):
    def init(processor, handle):
        handle.getValueState("v", "n bigint, s string")
        handle.getMapState("m", "n bigint", "x double")
        handle.getMapState("p", "n bigint, s string", "x double")

    found = rig(step_of(Made(init=init)))
    specs = {spec.name: str(spec) for spec in found.operator._backend._context.specs}
    assert specs == {
        "v": "value<struct<n: int64, s: string>>",
        "m": "map<int64, struct<x: double>>",
        "p": "map<object, struct<x: double>>",
    }


def test_what_has_expired_is_not_seen_and_every_write_renews(rig):
    def init(processor, handle):
        processor.value = handle.getValueState("value", "n bigint", 100)
        processor.list = handle.getListState("list", "n bigint", 100)
        processor.map = handle.getMapState("map", "n bigint", "n bigint", 100)

    def step(processor, key, rows, times):
        for row in rows:
            if row.v:
                processor.value.update((row.v,))
                processor.list.appendValue((row.v,))
                processor.map.updateValue((row.v,), (row.v,))
        yield Row(k=1, text=f"{processor.value.get()} {list(processor.list.get())} {sorted(processor.map.keys())}")

    found = rig(step_of(Made(step, init), time_mode="ProcessingTime"), now=1_000)
    for now, v in ((1_000, 1), (1_050, 2), (1_099, 0), (1_100, 0), (1_149, 0), (1_150, 0)):
        found.time = Instant(now)
        found.operator.process(rows((1, v)))
    assert [text for _, text in texts(found)] == [
        "(1,) [(1,)] [(1,)]",
        "(2,) [(1,), (2,)] [(1,), (2,)]",
        "(2,) [(1,), (2,)] [(1,), (2,)]",
        "(2,) [(2,)] [(2,)]",
        "(2,) [(2,)] [(2,)]",
        "None [] []",
    ]


def test_a_state_that_is_deleted_is_not_restored(rig):
    def first(processor, handle):
        processor.old = handle.getValueState("old", "n bigint")
        processor.new = handle.getValueState("new", "n bigint")

    def fill(processor, key, rows, times):
        processor.old.update((1,))
        processor.new.update((2,))
        return iter([])

    def then(processor, handle):
        handle.deleteIfExists("old")
        processor.new = handle.getValueState("new", "n bigint")

    def look(processor, key, rows, times):
        yield Row(k=key[0], text=str(processor.new.get()))

    found = rig(step_of(Made(fill, first)))
    found.operator.process(rows((1, 1)))
    second = rig(step_of(Made(look, then)), restored=[found.snapshot()], files=found.files)
    second.operator.process(rows((1, 1)))
    assert texts(second) == [(1, "(2,)")]
    saved = second.snapshot(2)

    def third(processor, handle):
        processor.old = handle.getListState("old", "s string")

    def empty(processor, key, rows, times):
        yield Row(k=key[0], text=str(list(processor.old.get())))

    last = rig(step_of(Made(empty, third)), restored=[saved], files=found.files)
    last.operator.process(rows((1, 1)))
    assert texts(last) == [(1, "[]")]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda p: p.value.update((1, 2)), "state 'value' has the fields n; .* does not fit"),
        (lambda p: p.value.update(5), "state 'value' has the fields n"),
        (lambda p: p.value.update(("x",)), "field 'n' of state 'value' is of type int64; 'x' does not fit"),
        (lambda p: p.list.put([]), "state 'list' was given an empty list"),
        (lambda p: p.list.appendList([]), "state 'list' was given an empty list"),
        (lambda p: p.handle.getValueState("late", "n bigint"), "state 'late' was asked for after init"),
        (lambda p: p.handle.deleteIfExists("value"), "state 'value' was deleted after init"),
    ],
)
def test_what_a_state_cannot_hold_says_so(rig, wrong, text):
    def init(processor, handle):
        processor.value = handle.getValueState("value", "n bigint")
        processor.list = handle.getListState("list", "n bigint")

    def use(processor, key, rows, times):
        wrong(processor)
        return iter([])

    found = rig(step_of(Made(use, init)))
    with pytest.raises(UserCodeError, match=text):
        found.operator.process(rows((1, 1)))


# --- results ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ([Row(k=1, txt="a")], "expected rows with the fields k, text; got a row with the fields k, txt"),
        ([Row(1, "a")], "whose fields have no names"),
        ([{"k": 1, "text": "a"}], "expected rows of k: int64, text: string; got dict"),
        ([Row(k="x", text="a")], "field 'k' must be int64"),
        (Row(k=1, text="a"), "got int 1"),
    ],
)
def test_a_wrong_result_says_what_was_expected_and_what_came(rig, result, text):
    found = rig(step_of(Made(lambda *_: result)))
    with pytest.raises(UserCodeError, match=text):
        found.operator.process(rows((1, 1)))


def test_fields_of_results_may_come_in_any_order_and_be_nested(rig):
    made = [Row(text="a", s=Row(x=1, y=[Row(z=2)])), Row(s=None, text="b")]
    found = rig(step_of(Made(lambda *_: made), output_schema="s struct<x:int, y:array<struct<z:int>>>, text string"))
    found.operator.process(rows((1, 1)))
    assert found.output.rows == [{"s": {"x": 1, "y": [{"z": 2}]}, "text": "a"}, {"s": None, "text": "b"}]


def test_what_a_processor_raises_names_the_step(rig):
    found = rig(step_of(Made(lambda *_: 1 / 0)))
    with pytest.raises(UserCodeError, match=r"(?s)the step.*ZeroDivisionError"):
        found.operator.process(rows((1, 1)))


# --- pandas ----------------------------------------------------------------------------------------------------------


def test_dataframes_have_all_columns_and_at_most_so_many_rows(rig):
    seen = []

    def look(processor, key, frames, times):
        seen.extend((key, frame.to_dict("list"), list(frame.index)) for frame in frames)
        return iter([])

    step = step_of(Made(), kind="pandas")
    step.function.chunk_rows = 2
    step.function.timezone = "Asia/Tokyo"
    found = rig(step)
    found.operator._function._processor._rows = look
    found.operator.process(rows((1, 1, 0), (2, 2, 0), (1, 3, 0), (1, 4, 0)))
    nine = pd.Timestamp(1970, 1, 1, 9)
    assert seen == [
        ((1,), {"k": [1, 1], "v": [1, 3], "ts": [nine, nine]}, [0, 1]),
        ((1,), {"k": [1], "v": [4], "ts": [nine]}, [0]),
        ((2,), {"k": [2], "v": [2], "ts": [nine]}, [0]),
    ]


def test_times_of_dataframes_go_back_as_they_came(rig):
    step = step_of(
        Made(lambda p, k, frames, t: (f[["ts", "k"]] for f in frames)),
        kind="pandas",
        output_schema="k bigint, ts timestamp",
    )
    step.function.timezone = "Asia/Tokyo"
    found = rig(step)
    found.operator.process(rows((1, 1, 7)))
    assert found.output.rows == [{"k": 1, "ts": datetime.datetime(1970, 1, 1, 0, 0, 0, 7_000, tzinfo=datetime.UTC)}]


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ([Row(k=1, text="a")], "expected DataFrames of k: int64, text: string; got Row"),
        ([pd.DataFrame({"k": [1]})], "got a DataFrame with the columns k"),
        ([pd.DataFrame({"k": ["x"], "text": ["a"]})], "column 'k' must be int64"),
    ],
)
def test_a_wrong_dataframe_says_what_was_expected(rig, result, text):
    found = rig(step_of(Made(lambda *_: result), kind="pandas"))
    with pytest.raises(UserCodeError, match=text):
        found.operator.process(rows((1, 1)))


# --- what is refused when the program is written ---------------------------------------------------------------------


def declares(*names, **options):
    def init(processor, handle):
        for name in names:
            handle.getValueState(name, options.get("schema", "n bigint"), options.get("ttl"))

    return Made(init=init)


@pytest.mark.parametrize(
    ("processor", "changes", "text"),
    [
        (Made, {}, "takes an object, not the class Made"),
        (lambda row: row, {}, "takes a processor, not"),
        (Made(), {"time_mode": "Sometimes"}, "time_mode is 'Sometimes'"),
        (Made(), {"output_mode": "Complete"}, "output_mode is Complete"),
        (Made(), {"output_mode": "Some"}, "output_mode is 'Some'"),
        (Made(), {"kind": "arrow"}, "kind is 'arrow'"),
        (Made(), {"time_mode": "EventTime", "time_column": None}, "EventTime needs event time"),
        (Made(), {"output_schema": "k wrongtype"}, "output_schema"),
        (declares("a", ttl=100), {"time_mode": "EventTime"}, "state 'a' has a time to live"),
        (declares("a", ttl=-1), {"time_mode": "ProcessingTime"}, "the time to live of state 'a' is -1"),
        (declares("a", schema="n wrongtype"), {}, "the schema of state 'a'"),
        (Made(init=lambda p, h: h.getValueState("a", "n bigint").get()), {}, "state 'a' was used in init"),
        (Made(init=lambda p, h: (h.getValueState("a", "n bigint"), h.getListState("a", "n bigint"))), {}, "twice"),
        (Made(init=lambda p, h: (h.getValueState("a", "n bigint"), h.deleteIfExists("a"))), {}, "deletes state 'a'"),
        (Made(init=lambda p, h: (h.deleteIfExists("a"), h.getValueState("a", "n bigint"))), {}, "deletes state 'a'"),
        (Made(), {"initial_state": [1]}, "initial_state is"),
        (
            Made(),
            {"initial_state": pa.table({"v": [1]})},
            "needs the key column 'k' of type int64; the column is not there",
        ),
        (
            Made(),
            {"initial_state": pa.table({"k": ["1"]})},
            "needs the key column 'k' of type int64; the column is string",
        ),
    ],
)
def test_what_cannot_run_is_refused_when_it_is_written(processor, changes, text):
    with pytest.raises(UsageError, match=text):
        hosted(processor, **changes)


def test_what_cannot_be_pickled_is_refused_when_it_is_written():
    processor = Made()
    processor.lock = threading.Lock()
    with pytest.raises(UsageError, match="Made cannot be pickled"):
        hosted(processor)


def test_init_must_ask_for_the_same_states_everywhere(rig):
    step = step_of(declares("a"))
    step.function._pickled = cloudpickle.dumps(declares("b"))
    with pytest.raises(UserCodeError, match="init asked for state 'b' in a slot"):
        rig(step)


def test_without_a_host_it_says_where_processors_run():
    stream = Program().read(scripted([{"k": 1}], schema="k bigint")).key_by("k")
    with pytest.raises(UsageError, match="needs an Environment on Spark"):
        stream.transform_with_state(Made(), output_schema=OUT)
