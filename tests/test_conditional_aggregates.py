"""Aggregates with a condition, in whole jobs."""

from __future__ import annotations

import datetime

import polars as pl
import pytest

import penstock as ps
from penstock.testing import collect, run, scripted

TIME = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
ROWS = [{"k": 1, "v": value, "ts": TIME} for value in (0, 1, 2, None, 5)]


def aggregated(**aggregates):
    def build(env):
        stream = env.read(scripted(ROWS, schema="k bigint, v bigint, ts timestamp")).watermark("ts")
        stream.key_by("k").window(ps.tumbling("10s")).aggregate(**aggregates).write(collect())

    (row,) = run(build)
    return {name: row[name] for name in aggregates}


def test_text_and_expressions_mean_the_same_and_null_is_not_true():
    found = aggregated(
        text=ps.sum("v", where="v > 1"),
        expression=ps.sum("v", where=pl.col("v") > 1),
        always=ps.count(where="true"),
        never=ps.count(where="false"),
        without=ps.sum("v", where="v > 9"),
    )
    assert found == {"text": 7, "expression": 7, "always": 5, "never": 0, "without": None}


def test_a_condition_that_cannot_be_computed_fails_the_job_and_names_the_step():
    with pytest.raises(ps.JobFailed, match="combine"):
        aggregated(n=ps.count(where="10 div v > 1"))
