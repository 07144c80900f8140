"""SQL text computes what Spark computes: every expression of the stored table, its type and its value in every row."""

from __future__ import annotations

import json
import math
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import cloudpickle
import polars as pl
import pyarrow as pa
import pytest
from polars.exceptions import PolarsError

from penstock.api.expressions import compile_columns
from penstock.sql.schemas import as_schema

TABLE = json.loads((Path(__file__).parent / "spark_expressions.json").read_text(encoding="utf-8"))
SCHEMA = as_schema(TABLE["columns"], argument="columns")
COMPUTED = [case for case in TABLE["cases"] if "values" in case]
FAILING = [case for case in TABLE["cases"] if "fails" in case]


def expression_of(case):
    return case["expression"]


def given(value, kind):
    if value is None:
        return None
    if pa.types.is_timestamp(kind):
        return datetime.fromisoformat(value).replace(tzinfo=UTC)
    if pa.types.is_date(kind):
        return date.fromisoformat(value)
    return float(value) if pa.types.is_floating(kind) else value


@pytest.fixture(scope="module")
def batch():
    rows = [{field.name: given(row[field.name], field.type) for field in SCHEMA} for row in TABLE["rows"]]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def evaluate(batch, compiled):
    """What a slot would compute, in the type that was promised."""
    (column,) = compiled.columns
    result = pl.from_arrow(batch).with_columns(compiled.expr)[column.field.name]
    array = result.to_arrow()
    assert array.type in (column.field.type, pa.large_string())
    return array.cast(column.field.type)


def plain(column):
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return [plain_value(value) for value in column.to_pylist()]


def plain_value(value):
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Decimal):
        return str(value)
    return value.isoformat() if isinstance(value, date) else value


@pytest.mark.parametrize("case", COMPUTED, ids=expression_of)
def test_type_and_values_are_those_of_spark(batch, case):
    compiled = compile_columns(case["expression"], SCHEMA, argument="expression", name="x")
    result = evaluate(batch, compiled)
    assert (str(result.type), plain(result)) == (case["type"], case["values"])


@pytest.mark.parametrize("case", COMPUTED, ids=expression_of)
def test_a_row_is_computed_by_itself_also_after_the_trip_to_a_slot(batch, case):
    compiled = compile_columns(case["expression"], SCHEMA, argument="expression", name="x")
    shipped = pickle.loads(cloudpickle.dumps(compiled))
    rows = [evaluate(batch.slice(row, 1), shipped) for row in range(batch.num_rows)]
    assert [value for row in rows for value in plain(row)] == case["values"]
    assert len(evaluate(batch.slice(0, 0), shipped)) == 0


@pytest.mark.parametrize("case", FAILING, ids=expression_of)
def test_fails_where_spark_fails(batch, case):
    compiled = compile_columns(case["expression"], SCHEMA, argument="expression", name="x")
    with pytest.raises(PolarsError):
        evaluate(batch, compiled)
