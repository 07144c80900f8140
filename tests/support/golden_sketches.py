"""What the golden snapshot of sketches holds: the state of a window with approximate aggregates of few values, which
are exact.

`files()` writes the state anew with the code of today; what lies in `tests/golden/sketches-v1` was written once.
"""

from __future__ import annotations

import pyarrow as pa
from state_rig import GROUPS

from penstock.api.steps import Aggregate, WindowStep
from penstock.api.window_schema import partial_schema, result_schema
from penstock.api.windows import TumblingWindow
from penstock.runtime.task.operators.aggregation import group, of_records
from penstock.runtime.task.operators.record_values import record_values
from penstock.runtime.task.operators.window_table import FiredRange, Header, Layout, WindowTable

FILE = "windows-0-0"
TIME = pa.timestamp("us", "UTC")
RECORDS = pa.schema([("k", pa.int64()), ("v", pa.float64()), ("s", pa.string()), ("ts", TIME)])
AGGREGATES = (
    Aggregate(name="distinct", kind="approx_count_distinct", column="s", parameters=(0.05,)),
    Aggregate(name="median", kind="approx_quantile", column="v", parameters=(0.5,)),
)
SHAPE = {"keys": ("k",), "aggregates": AGGREGATES}
WINDOW = TumblingWindow(size_us=10_000_000)
STEP = WindowStep(window=WINDOW, schema=result_schema(RECORDS, time_column="ts", **SHAPE), **SHAPE)
EXPECTED = {"distinct": 3, "median": 2.0}


def files() -> dict[str, bytes]:
    """The state of a window, of all key groups."""
    columns = [[1] * 5, [1.0, None, 2.0, 3.0, float("nan")], ["a", "", "a", None, "b"]]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, RECORDS, strict=False)]
    batch = pa.record_batch([*arrays, pa.array([0] * 5).cast(TIME)], schema=RECORDS)
    values = pa.table({"k": batch.column("k"), **record_values(batch, AGGREGATES)})
    partials = group(values, ["k"], of_records(AGGREGATES), window=WINDOW)
    partials = partials.append_column("window_start", pa.array([0]).cast(TIME))
    table = WindowTable(STEP)
    table.append(partials.select(partial_schema(RECORDS, time_column="ts", **SHAPE).names))
    header = Header(layout=Layout.of(STEP), fired=(FiredRange(first_group=0, last_group=GROUPS - 1, fired_us=None),))
    return {FILE: table.encode(table.freeze(), header=header, groups=GROUPS)}
