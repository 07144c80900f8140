"""A PySpark StatefulProcessor does in a step what it does in PySpark's own tester, row for row and state for state."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import cloudpickle
import pandas as pd
import pyarrow as pa
import pytest
import spark_processors as processors
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from penstock.api.grouped import HostedProcessor
from penstock.api.steps import KeyedProcessStep
from penstock.core.ids import Instant
from penstock.spark.processors import host_processor

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COLUMNS = ["k", "v", "t"]
INPUT = pa.schema([("k", pa.string()), ("v", pa.int64()), ("t", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
OUT = "k string, what string, v bigint"
KEYS = ["a", "b", "c", None]


def batch(rows):
    times = [EPOCH + timedelta(milliseconds=t) for _, _, t in rows]
    columns = [[row[n] for row in rows] for n in range(3)]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip([*columns, times], INPUT, strict=True)], schema=INPUT)


def step_of(processor, *, time_mode="None", kind="row", initial_state=None, **changes):
    given_processor = HostedProcessor(
        processor=processor,
        output_schema=changes.get("output_schema", OUT),
        time_mode=time_mode,
        output_mode="Append",
        initial_state=initial_state,
        kind=kind,
        keys=("k",),
        input_schema=INPUT,
        time_column="ts",
    )
    function = host_processor(given_processor)
    key_schema = pa.schema([INPUT.field("k")])
    return KeyedProcessStep(function=function, keys=("k",), key_schema=key_schema, schema=function.schema)


class Ours:
    """The step under test, on a rig: taken down and restored from a snapshot whenever `restore` says so."""

    def __init__(self, rig, processor, **options):
        self._rig = rig
        self._step = cloudpickle.dumps(step_of(processor, **options))
        self.found = rig(cloudpickle.loads(self._step), now=0)

    def rows(self):
        made = [(row["k"], row["what"], row["v"]) for row in self.found.output.rows]
        self.found.output.clear()
        return made

    def restore(self):
        saved = self.found.snapshot()
        self.found.operator.close()
        before = self.found
        watermark = before.operator._keyed_context.watermark_us
        self.found = self._rig(cloudpickle.loads(self._step), restored=[saved], files=before.files, now=before.time)
        if watermark is not None:
            self.found.operator.watermark(watermark)
        assert self.found.output.rows == []

    def state(self, name, key):
        function, operator = self.found.operator._function, self.found.operator
        group = 0
        operator._backend.set_key(key, group)
        try:
            state = function._handle._opened[name]
            return list(state.iterator()) if hasattr(state, "iterator") else _listed(state.get())
        finally:
            operator._backend.unset_key()


def _listed(found):
    return found if found is None or isinstance(found, tuple) else list(found)


def theirs_state(tester, name, key):
    handle = tester.handle
    if name in handle.value_states:
        return tester.peekValueState(name, key)
    if name in handle.list_states:
        return tester.peekListState(name, key)
    return list(tester.peekMapState(name, key).items())


def in_any_order(found):
    return sorted(map(repr, found)) if isinstance(found, list) else found


def by_key(rows):
    """Rows of a batch, in the order of the first row of each key."""
    found = {}
    for row in rows:
        found.setdefault(row[0], []).append(row)
    return found


def as_rows(rows):
    return [Row(k=k, v=v, t=t, ts=EPOCH + timedelta(milliseconds=t)) for k, v, t in rows]


def fed(tester, rows):
    return [(row.k, row.what, row.v) for key, own in by_key(rows).items() for row in tester.test(key, as_rows(own))]


def told(rows):
    return [(row.k, row.what, row.v) for row in rows]


rows_of_a_batch = st.lists(st.tuples(st.sampled_from(KEYS), st.integers(-9, 9), st.integers(1, 5_000)), max_size=12)
RESTORE = "restore"
scripts = st.lists(st.one_of(rows_of_a_batch, st.just(RESTORE)), max_size=6)


@pytest.mark.parametrize(
    ("processor", "name"),
    [
        (processors.RunningCount, "count"),
        (processors.FirstSeen, "seen"),
        (processors.TopThree, "top"),
        (processors.Pairs, "open"),
    ],
)
@given(script=scripts)
def test_rows_and_state_are_those_of_the_tester(rig, processor, name, script):
    ours, tester = Ours(rig, processor()), TwsTester(processor())
    for part in script:
        if part == RESTORE:
            ours.restore()
            continue
        if part:
            ours.found.operator.process(batch(part))
        assert ours.rows() == fed(tester, part)
    for key in KEYS:
        assert in_any_order(ours.state(name, key)) == in_any_order(theirs_state(tester, name, key))


@given(script=st.lists(st.one_of(rows_of_a_batch, st.integers(1, 3_000), st.just(RESTORE)), max_size=8))
def test_event_time_timers_and_late_rows_are_those_of_the_tester(rig, script):
    ours = Ours(rig, processors.Sessions(), time_mode="EventTime")
    tester = TwsTester(processors.Sessions(), timeMode="EventTime", eventTimeExtractor=lambda row: row.t)
    watermark = 0
    for part in script:
        if part == RESTORE:
            ours.restore()
        elif isinstance(part, int):
            watermark += part
            ours.found.operator.watermark(watermark * 1_000)
            assert sorted(ours.rows(), key=repr) == sorted(told(tester.setWatermark(watermark)), key=repr)
        else:
            # The tester calls a processor for keys of which all rows are late, and Spark does not.
            kept = [row for row in part if row[2] > watermark]
            if part:
                ours.found.operator.process(batch(part))
            assert ours.rows() == fed(tester, kept)
    for key in KEYS:
        assert ours.state("session", key) == tester.peekValueState("session", key)


@given(script=st.lists(st.one_of(rows_of_a_batch, st.integers(1, 20), st.just(RESTORE)), max_size=8))
def test_processing_time_timers_are_those_of_the_tester(rig, script):
    ours = Ours(rig, processors.Reminders(), time_mode="ProcessingTime")
    tester = TwsTester(processors.Reminders(), timeMode="ProcessingTime")
    now = 0
    for part in script:
        if part == RESTORE:
            ours.restore()
        elif isinstance(part, int):
            now += part
            ours.found.time = Instant(now)
            ours.found.tick(Instant(now))
            assert sorted(ours.rows(), key=repr) == sorted(told(tester.setProcessingTime(now)), key=repr)
        else:
            if part:
                ours.found.operator.process(batch(part))
            assert ours.rows() == fed(tester, part)
    for key in KEYS:
        assert sorted(ours.state("fired", key)) == sorted(tester.peekListState("fired", key))


@given(
    initial=st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 100)), max_size=8),
    script=scripts,
)
def test_an_initial_state_is_that_of_the_tester(rig, initial, script):
    table = pa.table(
        {"k": pa.array([k for k, _ in initial], pa.string()), "n": [n for _, n in initial] or pa.array([], pa.int64())}
    )
    ours = Ours(rig, processors.Seeded(), initial_state=table)
    tester = TwsTester(processors.Seeded(), initialStateRow=[(k, Row(k=k, n=n)) for k, n in initial])
    for part in script:
        if part == RESTORE:
            ours.restore()
            continue
        if part:
            ours.found.operator.process(batch(part))
        assert ours.rows() == fed(tester, part)
    for key in KEYS:
        assert ours.state("count", key) == tester.peekValueState("count", key)


@given(script=scripts)
def test_dataframes_and_state_are_those_of_the_tester(rig, script):
    ours, tester = Ours(rig, processors.PandasCount(), kind="pandas"), TwsTester(processors.PandasCount())
    for part in script:
        if part == RESTORE:
            ours.restore()
            continue
        if part:
            ours.found.operator.process(batch(part))
        want = []
        for key, own in by_key(part).items():
            made = tester.testInPandas(key, pd.DataFrame(own, columns=COLUMNS))
            want += list(made[["k", "what", "v"]].itertuples(index=False, name=None))
        assert [(k, w, int(v)) for k, w, v in want] == ours.rows()
    for key in KEYS:
        assert ours.state("sum", key) == tester.peekValueState("sum", key)


@given(
    initial=st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 100)), max_size=8),
    script=st.lists(st.one_of(rows_of_a_batch, st.integers(1, 10), st.just(RESTORE)), max_size=8),
)
def test_timers_and_an_initial_state_of_dataframes_are_those_of_the_tester(rig, initial, script):
    table = pa.table(
        {"k": pa.array([k for k, _ in initial], pa.string()), "n": pa.array([n for _, n in initial], pa.int64())}
    )
    ours = Ours(rig, processors.PandasReminders(), time_mode="ProcessingTime", kind="pandas", initial_state=table)
    frames = [(key, pd.DataFrame(own, columns=["k", "n"])) for key, own in by_key(initial).items()]
    tester = TwsTester(processors.PandasReminders(), initialStatePandas=frames, timeMode="ProcessingTime")
    now = 0
    for part in script:
        if part == RESTORE:
            ours.restore()
        elif isinstance(part, int):
            now += part
            ours.found.time = Instant(now)
            ours.found.tick(Instant(now))
            due = tester.setProcessingTime(now)
            assert sorted(ours.rows(), key=repr) == sorted(map(tuple, due.to_dict("split")["data"]), key=repr)
        else:
            for key, own in by_key(part).items():
                tester.testInPandas(key, pd.DataFrame(own, columns=COLUMNS))
            if part:
                ours.found.operator.process(batch(part))
            assert ours.rows() == []
    for key in KEYS:
        assert ours.state("sum", key) == tester.peekValueState("sum", key)
