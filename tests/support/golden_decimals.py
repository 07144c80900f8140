"""What the golden snapshot of decimals holds: the state of a window with sums and means of decimals of several lengths.

`files()` writes the state anew with the code of today; what lies in `tests/golden/decimals-v1` was written once.
"""

from __future__ import annotations

from decimal import Decimal

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
TYPES = {"short": pa.decimal128(5, 2), "long": pa.decimal128(30, 4), "longest": pa.decimal128(38, 6)}
RECORDS = pa.schema([("k", pa.int64()), *TYPES.items(), ("ts", TIME)])
AGGREGATES = tuple(
    Aggregate(name=f"{kind}_{column}", kind=kind, column=column) for column in TYPES for kind in ("sum", "mean")
)
SHAPE = {"keys": ("k",), "aggregates": AGGREGATES}
WINDOW = TumblingWindow(size_us=10_000_000)
STEP = WindowStep(window=WINDOW, schema=result_schema(RECORDS, time_column="ts", **SHAPE), **SHAPE)

LARGE = Decimal("12345678901234567890.1234")
ROWS = [
    (1, Decimal("999.99"), LARGE, Decimal("-0.000001"), 5),
    (1, Decimal("-0.01"), None, Decimal("0.000002"), 1),
    (1, Decimal("0.03"), LARGE, Decimal("1.5"), 9),
    (2, None, None, None, 4),
]
EXPECTED = {
    1: {
        "sum_short": Decimal("1000.01"),
        "mean_short": Decimal("333.336667"),
        "sum_long": Decimal("24691357802469135780.2468"),
        "mean_long": Decimal("12345678901234567890.12340000"),
        "sum_longest": Decimal("1.500001"),
        "mean_longest": Decimal("0.5000003333"),
    },
    2: dict.fromkeys(aggregate.name for aggregate in AGGREGATES),
}


def files() -> dict[str, bytes]:
    """The state of a window, of all key groups."""
    columns = list(zip(*ROWS, strict=True))
    arrays = [pa.array(values, field.type) for values, field in zip(columns[:-1], RECORDS, strict=False)]
    batch = pa.record_batch([*arrays, pa.array(columns[-1], pa.int64()).cast(TIME)], schema=RECORDS)
    values = pa.table({"k": batch.column("k"), **record_values(batch, AGGREGATES)})
    partials = group(values, ["k"], of_records(AGGREGATES), window=WINDOW)
    partials = partials.append_column("window_start", pa.array([0] * partials.num_rows).cast(TIME))
    table = WindowTable(STEP)
    table.append(partials.select(partial_schema(RECORDS, time_column="ts", **SHAPE).names))
    header = Header(layout=Layout.of(STEP), fired=(FiredRange(first_group=0, last_group=GROUPS - 1, fired_us=None),))
    return {FILE: table.encode(table.freeze(), header=header, groups=GROUPS)}
