"""A table as a sink, before there is a Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

import penstock as ps
import penstock.testing as kit
from penstock.core.errors import UsageError


@pytest.mark.parametrize(("name", "says"), [(" ", "is empty"), ("/data/out", r"looks like a path.*\n?.*parquet")])
def test_a_name_that_cannot_be_one_is_refused_at_once(name, says):
    with pytest.raises(UsageError, match=says):
        ps.table(name)


def test_columns_that_spark_could_not_read_back_are_refused_at_once():
    with pytest.raises(UsageError, match="which Spark cannot read from Parquet files"):
        ps.table("results").check(pa.schema([("at", pa.timestamp("ns"))]))


def test_a_table_needs_a_spark():
    records = kit.scripted([{"x": 1}], schema="x bigint")
    with pytest.raises(UsageError, match="table results needs Spark"):
        kit.run(lambda env: env.read(records).write(ps.table("results")))
