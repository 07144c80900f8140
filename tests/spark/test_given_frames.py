"""What is not the DataFrame that a method takes is refused with the method that takes it. No Spark is started."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame

from penstock.core.errors import UsageError
from penstock.spark.dataframes import DataFrameSource
from penstock.spark.streams import StreamSource


def frame(*, streaming: bool) -> DataFrame:
    """A DataFrame that knows of itself only whether it is streaming."""
    kind = type("Frame", (DataFrame,), {"isStreaming": streaming})
    return object.__new__(kind)


def make_stream(given: object) -> StreamSource:
    return StreamSource(given, trigger_ms=None, available_now=False, directory=None)


@pytest.mark.parametrize(
    ("make", "given", "hint"),
    [
        (DataFrameSource, frame(streaming=True), "use from_stream for a streaming DataFrame"),
        (DataFrameSource, [1], "spark.createDataFrame(...) makes a DataFrame"),
        (make_stream, frame(streaming=False), "use from_dataframe for a batch DataFrame"),
        (make_stream, [1], "spark.readStream makes a streaming DataFrame; for rows that are there"),
    ],
    ids=["a stream as a batch", "a list as a batch", "a batch as a stream", "a list as a stream"],
)
def test_the_hint_names_what_takes_it(make, given, hint):
    with pytest.raises(UsageError) as caught:
        make(given)
    assert caught.value.hint.startswith(hint)
