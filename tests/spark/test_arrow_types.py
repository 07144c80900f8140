"""Spark's types as Arrow types. No Spark is started."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import ArrayType, LongType, StructField, StructType, TimestampType

from penstock.spark.arrow_types import to_arrow_schema, to_arrow_type, zone_for


def test_times_are_utc_also_within_others():
    times = StructType([StructField("at", TimestampType()), StructField("n", LongType())])
    assert to_arrow_schema(times).field("at").type == pa.timestamp("us", "UTC")
    assert to_arrow_type(ArrayType(TimestampType())).value_type == pa.timestamp("us", "UTC")


def test_a_pyspark_that_does_not_know_the_argument_is_not_given_it():
    assert zone_for(lambda kind, timestamp_utc=True: kind) == {}
    assert zone_for(lambda kind, *, timezone=None: kind) == {"timezone": "UTC"}
