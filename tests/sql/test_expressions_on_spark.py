"""The table of SQL expressions that everything else is held to comes from Spark itself.

`python tests/sql/test_expressions_on_spark.py --write` runs every expression of `spark_expressions.json` on a local
Spark and writes what it gave into the file; the test says when the two have come apart.
"""

from __future__ import annotations

import json
import math
import os
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

TABLE = Path(__file__).parent / "spark_expressions.json"


def input_frame(spark, table):
    schema = spark.createDataFrame([], table["columns"]).schema
    return spark.createDataFrame([[_given(row[f.name], f) for f in schema.fields] for row in table["rows"]], schema)


def _given(value, field):
    if value is None:
        return None
    match field.dataType.typeName():
        case "timestamp":
            return datetime.fromisoformat(value).replace(tzinfo=UTC)
        case "date":
            return date.fromisoformat(value)
        case "float" | "double":
            return float(value)
        case _:
            return value


def outcome(frame, expression):
    """What Spark gives for one expression: its type and values as JSON can hold them, or that it fails."""
    from pyspark.errors import PySparkException

    try:
        column = frame.selectExpr(f"({expression}) AS x").toArrow().column("x").combine_chunks()
    except PySparkException:
        return {"expression": expression, "fails": True}
    return {"expression": expression, "type": str(column.type), "values": plain(column)}


def batched(cases, size=40):
    """In groups: one query per expression is slow, and so is one for all of them."""
    return [cases[start : start + size] for start in range(0, len(cases), size)]


def outcomes_together(frame, cases):
    expressions = [case["expression"] for case in cases]
    result = frame.selectExpr(*(f"({text}) AS x{i}" for i, text in enumerate(expressions))).toArrow()
    return [
        {"expression": text, "type": str(column.type), "values": plain(column.combine_chunks())}
        for text, column in zip(expressions, result.columns, strict=True)
    ]


def plain(column):
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return [_plain_value(value) for value in column.to_pylist()]


def _plain_value(value):
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Decimal):
        return str(value)
    return value.isoformat() if isinstance(value, date) else value


CONF = {
    "spark.sql.session.timeZone": "UTC",
    # Compiling hundreds of expressions takes far longer than interpreting them over a few rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture
def interpreting_spark(spark):
    before = {key: spark.conf.get(key) for key in CONF}
    for key, value in CONF.items():
        spark.conf.set(key, value)
    yield spark
    for key, value in before.items():
        spark.conf.set(key, value)


@pytest.mark.slow
def test_the_stored_table_is_what_spark_computes(interpreting_spark):
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    frame = input_frame(interpreting_spark, table).coalesce(1)
    computed = [case for case in table["cases"] if "values" in case]
    failing = [case for case in table["cases"] if "fails" in case]
    assert [result for group in batched(computed) for result in outcomes_together(frame, group)] == computed
    assert [outcome(frame, case["expression"]) for case in failing] == failing


def write():
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    for key, value in CONF.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    frame = input_frame(spark, table).coalesce(1)
    cases = [outcome(frame, case["expression"]) for case in table["cases"]]
    spark.stop()
    lines = ",\n  ".join(json.dumps(case, ensure_ascii=False) for case in cases)
    rows = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in table["rows"])
    columns = json.dumps(table["columns"], ensure_ascii=False)
    text = f'{{\n "columns": {columns},\n "rows": [\n  {rows}\n ],\n "cases": [\n  {lines}\n ]\n}}\n'
    TABLE.write_text(text, encoding="utf-8")


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    write()
