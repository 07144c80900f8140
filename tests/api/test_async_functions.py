"""Which functions `async_map` takes, what it refuses, and what a function takes: rows or batches."""

from __future__ import annotations

import functools
import re

import polars as pl
import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.async_functions import call_of, closing_of, kind_of, opening_of
from penstock.api.steps import AsyncMapStep
from penstock.core.errors import UsageError

SCHEMA = "auction bigint"


async def later(row):
    return row


async def many(row):
    yield row


def at_once(row):
    return row


class Called:
    async def __call__(self, row):
        return row


class Sessions(ps.AsyncFunction):
    async def open(self, context):
        pass

    async def on_row(self, row):
        return row


class Batches(ps.AsyncFunction):
    async def on_batch(self, batch):
        return batch


class OpenWithout:
    async def open(self):
        pass

    async def on_row(self, row):
        return row


class Both:
    async def on_row(self, row):
        return row

    async def on_batch(self, batch):
        return batch


class PlainRow(ps.AsyncFunction):
    def on_row(self, row):
        return row


class PlainOpen:
    def open(self):
        pass

    async def on_row(self, row):
        return row


def step_of(stream) -> AsyncMapStep:
    return stream._state.ledger.step(stream._state.last_step).step


@pytest.mark.parametrize("function", [later, Called(), Sessions(), Batches(), OpenWithout(), functools.partial(later)])
def test_async_functions_and_objects_with_async_methods_are_taken(bids, function):
    assert bids.async_map(function, schema=SCHEMA).schema.names == ["auction"]


@pytest.mark.parametrize(
    ("function", "text", "hint"),
    [
        (at_once, "async_map takes an async function, and at_once is not async", "use map, flat_map or map_batches"),
        (lambda row: row, "is not async", "async def"),
        (PlainRow(), "PlainRow.on_row is not async", "async def"),
        (PlainOpen(), "PlainOpen.open is not async", "async def"),
        (many, "many is an async generator", "return the rows in a list"),
        (Both(), "Both has on_row and on_batch", "only one"),
        (Sessions, "not the class Sessions", r"write Sessions\(\)"),
        (17, "async_map takes an async function, not 17", "async def"),
        (ps.AsyncFunction(), "takes an async function", "async def"),
    ],
)
def test_other_functions_are_refused_with_what_to_use_instead(bids, function, text, hint):
    with pytest.raises(UsageError, match=text) as caught:
        bids.async_map(function, schema=SCHEMA)
    assert caught.value.hint is not None
    assert re.search(hint, caught.value.hint)


@pytest.mark.parametrize("method", ["map", "flat_map", "map_batches"])
def test_steps_that_take_no_async_function_name_the_step_that_does(bids, method):
    with pytest.raises(UsageError, match="is async") as caught:
        getattr(bids, method)(later, schema=SCHEMA)
    assert "async_map" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"concurrency": 0}, "concurrency is 0"),
        ({"concurrency": True}, "concurrency is True"),
        ({"retries": -1}, "retries is -1"),
        ({"timeout": "0s"}, "timeout is '0s'"),
        ({"timeout": 3}, "timeout is 3"),
        ({"retry_pause": "0ms"}, "retry_pause is '0ms'"),
        ({"on_failure": "ignore"}, "on_failure='ignore'"),
    ],
)
def test_choices_that_make_no_sense_are_refused(bids, given, text):
    with pytest.raises(UsageError, match=text):
        bids.async_map(later, schema=SCHEMA, **given)


def test_records_that_go_to_all_subtasks_are_refused(bids):
    with pytest.raises(UsageError, match=r"async_map cannot follow broadcast\(\)"):
        bids.broadcast().async_map(later, schema=SCHEMA)


def test_the_step_knows_by_which_columns_its_records_come(bids):
    assert step_of(bids.async_map(later, schema=SCHEMA)).keys == ()
    assert step_of(bids.rebalance().async_map(later, schema=SCHEMA)).keys == ()
    assert step_of(bids.repartition("auction").async_map(later, schema=SCHEMA)).keys == ("auction",)


def test_an_async_step_begins_a_vertex_of_its_own(bids):
    bids.where("price > 1").async_map(later, schema=SCHEMA, name="asks").map(at_once, schema=SCHEMA).write(
        ps.parquet("out")
    )
    vertices = bids._state.ledger.plan_of(bids._state.ledger.steps_of_job).vertices
    assert [vertex.operators[0].name for vertex in vertices][1:] == ["asks"]


def test_event_time_is_kept_if_its_column_is(bids):
    timed = bids.watermark("ts")
    kept = timed.async_map(later, schema=pa.schema([timed.schema.field("ts")]))
    assert kept._state.time_column == "ts"
    assert timed.async_map(later, schema=SCHEMA)._state.time_column is None


# --- rows or batches -------------------------------------------------------------------------


def annotated(kind):
    async def function(given):
        return given

    function.__annotations__["given"] = kind
    return function


class Frames:
    async def __call__(self, frame: pl.DataFrame) -> pl.DataFrame:
        return frame


@pytest.mark.parametrize(
    ("function", "batch", "kind"),
    [
        (later, None, "rows"),
        (later, True, "arrow"),
        (Batches(), None, "arrow"),
        (annotated(pa.RecordBatch), None, "arrow"),
        (annotated(pl.DataFrame), None, "polars"),
        (annotated("pl.DataFrame"), None, "polars"),
        (annotated("pd.DataFrame"), None, "pandas"),
        (annotated(dict), None, "rows"),
        (annotated(pl.DataFrame), False, "rows"),
        (functools.partial(annotated(pl.DataFrame)), None, "polars"),
        (Frames(), None, "polars"),
    ],
)
def test_the_annotation_or_the_argument_says_what_a_function_takes(function, batch, kind):
    assert kind_of(function, batch=batch) == kind


# --- the calls -------------------------------------------------------------------------------


def test_the_opening_gets_the_context_if_it_takes_one():
    assert opening_of(later, None) is None
    assert closing_of(later) is None
    for function in (Sessions(), OpenWithout()):
        opening = opening_of(function, None)
        opening().close()
        assert call_of(function) == function.on_row
