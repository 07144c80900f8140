"""The table of generators that everything else is held to comes from Spark itself.

`python tests/sql/test_generators_on_spark.py --write` runs every select of `spark_generators.json` on a local Spark and
writes the outcome into the file; the test says when the two have come apart.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

TABLE = Path(__file__).parent / "spark_generators.json"


def outcome(spark, table, texts):
    """What Spark gives for a select: the columns and their rows, or that it fails."""
    from pyspark.errors import PySparkException

    schema = spark.createDataFrame([], table["columns"]).schema
    frame = spark.createDataFrame([tuple(row.values()) for row in table["rows"]], schema).coalesce(1)
    try:
        made = frame.selectExpr(*texts)
        found = made.toArrow()
    except PySparkException as error:
        return {"select": texts, "fails": error.getCondition() or type(error).__name__}
    columns = ", ".join(f"{field.name} {field.type}" for field in found.schema)
    return {"select": texts, "columns": columns, "rows": [list(row.values()) for row in found.to_pylist()]}


@pytest.mark.slow
def test_the_stored_generators_are_what_spark_computes(spark):
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    assert [outcome(spark, table, case["select"]) for case in table["cases"]] == table["cases"]


def write():
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    rows = ",\n  ".join(json.dumps(row) for row in table["rows"])
    cases = ",\n  ".join(json.dumps(outcome(spark, table, case["select"])) for case in table["cases"])
    text = (
        f'{{\n "columns": {json.dumps(table["columns"])},\n "rows": [\n  {rows}\n ],\n "cases": [\n  {cases}\n ]\n}}\n'
    )
    TABLE.write_text(text, encoding="utf-8")
    spark.stop()


if __name__ == "__main__" and "--write" in sys.argv:
    write()
