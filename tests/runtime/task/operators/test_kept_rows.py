"""Rows that an operator kept in a snapshot are read only if they take no more memory than their part has bytes."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from penstock.api.functions import KeyedBroadcastFunction
from penstock.api.program import Program
from penstock.core.errors import CorruptFile, UsageError
from penstock.plan.checkpoint_graph import checkpoint_graph
from penstock.runtime.task.operators.kept_rows import as_part, rows_in
from penstock.settings import JobSettings
from penstock.testing import collect


def part_of(batch: pa.RecordBatch, **options) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def test_rows_come_back_as_they_were_kept():
    batch = pa.record_batch({"n": [1, None, 3], "truth": [True, None, False], "words": [["a"], [], None]})
    assert rows_in(as_part(batch.slice(1)), "asks") == [batch.slice(1)]
    assert rows_in(as_part(batch.slice(0, 0)), "asks") == rows_in(b"", "asks") == []


def test_many_truth_values_are_taken():
    assert rows_in(as_part(pa.record_batch({"truth": [True] * 100_000})), "asks")[0].num_rows == 100_000


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_rows_are_refused_before_they_are_unpacked(compression):
    part = part_of(pa.record_batch({"n": [0] * 1_000_000}), compression=compression)
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptFile, match="'asks' kept in the snapshot cannot be read: a batch is compressed"):
        rows_in(part, "asks")
    assert pa.total_allocated_bytes() == before


def test_a_message_of_an_early_version_of_arrow_is_refused():
    """In such a message the compression stands where nobody looks."""
    part = part_of(pa.record_batch({"n": [0]}), metadata_version=pa.ipc.MetadataVersion.V4)
    with pytest.raises(CorruptFile, match="another version of the Arrow format"):
        rows_in(part, "asks")


def test_offsets_that_point_outside_are_refused():
    part = as_part(pa.record_batch({"word": ["abc", "defg"]}))
    offsets = struct.pack("<3i", 0, 3, 7)
    assert part.count(offsets) == 1
    with pytest.raises(CorruptFile, match="cannot be read"):
        rows_in(part.replace(offsets, struct.pack("<3i", 0, 1_000_000, 7)), "asks")


def test_more_rows_than_the_bytes_can_hold_are_refused():
    with pytest.raises(CorruptFile, match="cannot hold 1000000 rows"):
        rows_in(as_part(pa.record_batch({"nothing": pa.nulls(1_000_000)})), "asks")


def test_types_of_which_few_bytes_become_many_values_are_refused_unless_the_program_has_them():
    batch = pa.record_batch({"x": pa.array([[None] * 9], pa.list_(pa.null()))})
    with pytest.raises(CorruptFile, match="whose values take no bytes"):
        rows_in(as_part(batch), "asks")
    assert rows_in(as_part(batch), "asks", batch.schema) == [batch]


def test_what_is_no_arrow_data_is_refused():
    with pytest.raises(CorruptFile, match="cannot be read"):
        rows_in(b"no rows", "asks")


def test_rows_with_other_columns_than_in_the_program_are_refused():
    part = as_part(pa.record_batch({"n": [1]}))
    with pytest.raises(UsageError, match="have the columns n: int64, and its rows have n: string in this program"):
        rows_in(part, "asks", pa.schema([("n", pa.string())]))
    assert (
        rows_in(as_part(pa.record_batch({"n": pa.array([], pa.int64())})), "asks", pa.schema([("n", pa.string())]))
        == []
    )


@pytest.mark.parametrize("waits", ["an async function", "a broadcast stream"])
def test_the_program_says_which_rows_a_step_keeps(waits):
    """So that a restore into a program with other rows is refused before anything starts."""
    program = Program(JobSettings())
    orders = program.from_iterable([{"item": "pen", "n": 1}], name="orders")
    if waits == "an async function":
        orders.async_map(never_called, schema="n bigint", name="step").write(collect())
    else:
        prices = program.from_iterable([{"item": "pen", "price": 3}], name="prices")
        both = orders.key_by("item").connect(prices, wait="end")
        both.process(Nothing(), schema="n bigint", name="step").write(collect())
    labels = {o: label for v in checkpoint_graph(program.plan()).vertices for o, label in v.labels.items()}
    (kept,) = (state for label in labels.values() for state in label.states.values() if state.kind == "rows")
    assert kept.type == "item: string, n: int64"


async def never_called(row):
    raise AssertionError


class Nothing(KeyedBroadcastFunction):
    def on_row(self, row, context):
        return None

    def on_broadcast(self, row, context):
        return None
