"""What the golden snapshot of aggregates holds: the state of a window with every kind of aggregate that has a partial
column of its own form, made of a few records.

`files()` writes the state anew with the code of today; what lies in `tests/golden/aggregates-v1` was written once.
"""

from __future__ import annotations

import polars as pl
import pyarrow as pa
from state_rig import GROUPS

from penstock.api.aggregate_functions import AggregateFunction
from penstock.api.aggregate_kinds.description import CUSTOM, OBJECT, Condition
from penstock.api.steps import Aggregate, WindowStep
from penstock.api.window_schema import partial_schema, result_schema
from penstock.api.windows import TumblingWindow
from penstock.runtime.task.operators.aggregation import group, of_records
from penstock.runtime.task.operators.record_values import record_values
from penstock.runtime.task.operators.window_table import FiredRange, Header, Layout, WindowTable

FILE = "windows-0-0"
TIME = pa.timestamp("us", "UTC")
RECORDS = pa.schema(
    [("k", pa.string()), ("v", pa.float64()), ("s", pa.string()), ("b", pa.bool_()), ("o", pa.int64()), ("ts", TIME)]
)
WHERE = Condition("o > 1", pl.col("o") > 1)


class Longest(AggregateFunction):
    """The length of the longest text, with a state of a declared type."""

    state_type = "struct<length: bigint>"
    result_type = "bigint"

    def create(self):
        return {"length": 0}

    def add(self, state, row):
        return {"length": max(state["length"], len(row["s"] or ""))}

    def merge(self, a, b):
        return max(a, b, key=lambda state: state["length"])

    def result(self, state):
        return state["length"]


class Letters(Longest):
    """The letters of all texts, with a state that is pickled."""

    state_type = object
    result_type = "string"

    def create(self):
        return ()

    def add(self, state, row):
        return self.merge(state, tuple(row["s"] or ""))

    def merge(self, a, b):
        # In order, so that equal states are pickled as the same bytes.
        return tuple(sorted({*a, *b}))

    def result(self, state):
        return "".join(state)


def _custom(name, function, state):
    parameters = (type(function).__name__, state, *function.columns)
    return Aggregate(name=name, kind=CUSTOM, column=None, parameters=parameters, function=function)


AGGREGATES = (
    Aggregate(name="any", kind="any", column="b"),
    Aggregate(name="all", kind="all", column="b"),
    Aggregate(name="variance", kind="variance", column="v"),
    Aggregate(name="stddev_pop", kind="stddev_pop", column="v"),
    Aggregate(name="first", kind="first", column="s", by="ts"),
    Aggregate(name="last_known", kind="last", column="s", by="ts", parameters=("ignore_nulls",)),
    Aggregate(name="min_by", kind="min_by", column="s", by="v"),
    Aggregate(name="max_by", kind="max_by", column="v", by="o", where=WHERE),
    Aggregate(name="top", kind="top_n", column="v", parameters=(2,)),
    Aggregate(name="top_by", kind="top_n", column="s", by="o", parameters=(2,)),
    Aggregate(name="list", kind="collect_list", column="s"),
    Aggregate(name="set", kind="collect_set", column="v"),
    Aggregate(name="distinct", kind="count_distinct", column="s"),
    Aggregate(name="median", kind="quantile", column="v", parameters=(0.5,)),
    Aggregate(name="some", kind="count", column=None, where=WHERE),
    _custom("longest", Longest("s"), "struct<length: int64>"),
    _custom("letters", Letters("s"), OBJECT),
)
SHAPE = {"keys": ("k",), "aggregates": AGGREGATES}
WINDOW = TumblingWindow(size_us=10_000_000)
STEP = WindowStep(window=WINDOW, schema=result_schema(RECORDS, time_column="ts", **SHAPE), **SHAPE)

ROWS = [
    ("a", 1.0, "one", True, 3, 5),
    ("a", 4.0, None, False, 1, 1),
    ("a", 1.0, "three", None, 2, 9),
    ("b", None, None, None, None, 4),
]
EXPECTED = {
    "a": {
        "any": True,
        "all": False,
        "variance": 3.0,
        "stddev_pop": 2**0.5,
        "first": None,
        "last_known": "three",
        "min_by": "one",
        "max_by": 1.0,
        "top": [4.0, 1.0],
        "top_by": ["one", "three"],
        "list": ["one", "three"],
        "set": [1.0, 4.0],
        "distinct": 2,
        "median": 1.0,
        "some": 2,
        "longest": 5,
        "letters": "ehnort",
    },
    "b": {
        **dict.fromkeys(("any", "all", "variance", "stddev_pop", "first", "last_known", "min_by", "max_by", "median")),
        **{name: [] for name in ("top", "top_by", "list", "set")},
        **dict.fromkeys(("distinct", "some", "longest"), 0),
        "letters": "",
    },
}


def files() -> dict[str, bytes]:
    """The state of a window, of all key groups."""
    schema = partial_schema(RECORDS, time_column="ts", **SHAPE)
    columns = list(zip(*ROWS, strict=True))
    arrays = [pa.array(values, field.type) for values, field in zip(columns[:-1], RECORDS, strict=False)]
    batch = pa.record_batch([*arrays, pa.array(columns[-1], pa.int64()).cast(TIME)], schema=RECORDS)
    table = WindowTable(STEP)
    for row in range(batch.num_rows):
        record = batch.slice(row, 1)
        values = pa.table({"k": record.column("k"), **record_values(record, AGGREGATES)})
        partials = group(values, ["k"], of_records(AGGREGATES), window=WINDOW)
        partials = partials.append_column("window_start", pa.array([0]).cast(TIME))
        table.append(partials.select(schema.names))
    fired = (FiredRange(first_group=0, last_group=GROUPS - 1, fired_us=None),)
    header = Header(layout=Layout.of(STEP), fired=fired)
    return {FILE: table.encode(table.freeze(), header=header, groups=GROUPS)}
