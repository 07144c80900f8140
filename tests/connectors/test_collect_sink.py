"""Rows that the driver keeps: each once, with its checkpoint, and not without bound."""

from __future__ import annotations

import doctest
import logging
import pickle
import struct

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock import testing
from penstock.api.arrow_bounds import check_stream
from penstock.api.connector import WriterContext
from penstock.connectors import collect_sink
from penstock.testing import run, scripted

SCHEMA = pa.schema([("n", pa.int64())])
CONTEXT = WriterContext(job="job", subtask=0, parallelism=1, epoch=1)


def batch(*numbers):
    return pa.record_batch({"n": pa.array(numbers, pa.int64())}, schema=SCHEMA)


@pytest.fixture
def sink():
    made = ps.collect(limit=5)
    made.fitted(SCHEMA)
    made.start("job")
    return made


def prepared(sink, *numbers, checkpoint=1):
    writer = pickle.loads(pickle.dumps(sink)).writer(CONTEXT)
    writer.write(batch(*numbers))
    return writer.prepare(checkpoint)()


def test_rows_are_kept_when_they_are_committed_and_a_commit_that_is_made_again_adds_nothing(sink):
    first, second = prepared(sink, 1, 2), prepared(sink, 3)
    assert sink.rows == []
    committer = sink.committer()
    for _ in range(2):
        committer.commit(1, first)
    assert sink.rows == [{"n": 1}, {"n": 2}]
    committer.commit(2, second)
    committer.commit(2, second)
    assert (sink.rows, len(sink)) == ([{"n": 1}, {"n": 2}, {"n": 3}], 3)


def test_rows_can_be_had_in_every_shape(sink):
    sink.committer().commit(1, prepared(sink, 1, 2))
    assert sink.to_arrow().equals(pa.table({"n": [1, 2]}))
    assert sink.to_polars()["n"].to_list() == [1, 2]
    assert sink.to_pandas()["n"].tolist() == [1, 2]


def test_without_rows_the_columns_are_known(sink):
    assert sink.to_arrow().schema == SCHEMA
    assert list(sink.to_pandas().columns) == ["n"]


def test_a_job_that_goes_on_in_this_process_keeps_its_rows_and_another_job_begins_without(sink):
    sink.committer().commit(1, prepared(sink, 1))
    sink.start("job")
    sink.committer().commit(2, prepared(sink, 2))
    assert [row["n"] for row in sink.rows] == [1, 2]
    sink.start("another job")
    assert sink.rows == []


def test_too_many_rows_are_refused_by_the_driver_and_what_was_kept_stays(sink):
    committer = sink.committer()
    committer.commit(1, prepared(sink, 1, 2, 3))
    with pytest.raises(ps.UsageError, match=r"at most 5 rows.*\n?.*"):
        committer.commit(2, prepared(sink, 4, 5, 6))
    assert len(sink) == 3


def test_a_subtask_refuses_what_the_driver_would_refuse(sink):
    writer = sink.writer(CONTEXT)
    writer.write(batch(1, 2, 3))
    with pytest.raises(ps.UsageError, match="collect keeps at most 5 rows"):
        writer.write(batch(4, 5, 6))


def test_rows_of_a_snapshot_with_other_columns_are_refused(sink):
    other = ps.collect()
    writer = other.writer(CONTEXT)
    writer.write(pa.record_batch({"text": ["a"]}))
    with pytest.raises(ps.UsageError, match="with the columns text"):
        sink.committer().commit(1, writer.prepare(1)())


def test_a_snapshot_that_has_no_rows_but_something_else_is_refused(sink):
    with pytest.raises(ps.CorruptFile, match="cannot be read"):
        sink.committer().commit(1, [b"no rows"])


def stream(numbers, compression, **more):
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression, **more)
    with pa.ipc.new_stream(sink, SCHEMA, options=options) as writer:
        writer.write_batch(pa.record_batch([numbers], schema=SCHEMA))
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_rows_that_an_earlier_version_compressed_are_kept(sink, compression):
    sink.committer().commit(1, [stream(pa.array([1, None, 3]), compression), stream(pa.array([], pa.int64()), "zstd")])
    assert [row["n"] for row in sink.rows] == [1, None, 3]


def test_rows_are_written_as_they_are():
    check_stream(pa.py_buffer(prepared(ps.collect(), *range(10_000))[0]))


def test_compressed_rows_that_would_fill_the_memory_are_refused_before_they_are_unpacked(sink):
    bomb = stream(pa.array(np.zeros(5_000_000, np.int64)), "zstd")
    before = pa.total_allocated_bytes()
    with pytest.raises(ps.CorruptFile, match="would become 80000000 bytes in memory"):
        sink.committer().commit(1, [bomb, bomb])
    assert pa.total_allocated_bytes() == before


def test_rows_whose_bytes_lie_are_refused(sink):
    words = pa.schema([("word", pa.string())])
    made = pa.BufferOutputStream()
    with pa.ipc.new_stream(made, words) as writer:
        writer.write_batch(pa.record_batch({"word": ["abc", "defg"]}))
    data = made.getvalue().to_pybytes()
    offsets = struct.pack("<3i", 0, 3, 7)
    assert data.count(offsets) == 1
    sink.fitted(words)
    with pytest.raises(ps.CorruptFile, match="cannot be read"):
        sink.committer().commit(1, [data.replace(offsets, struct.pack("<3i", 0, 3, 1_000_000))])
    for wrong in (-5, 2**62):
        packed = stream(pa.array(range(1_000)), "zstd").replace(struct.pack("<q", 8_000), struct.pack("<q", wrong))
        with pytest.raises(ps.CorruptFile, match=r"less than no bytes|would become"):
            sink.committer().commit(1, [packed])


def test_types_of_which_few_bytes_become_many_values_are_refused_where_the_columns_are_not_known():
    sink = ps.collect()
    sink.start("job")
    writer = sink.writer(CONTEXT)
    writer.write(pa.record_batch({"x": pa.array([[None] * 9], pa.list_(pa.null()))}))
    with pytest.raises(ps.CorruptFile, match="whose values take no bytes"):
        sink.committer().commit(1, writer.prepare(1)())


def test_limits_that_are_no_number_of_rows_are_refused():
    for limit in (0, -1, True, "many"):
        with pytest.raises(ps.UsageError, match="limit is"):
            ps.collect(limit=limit)


class GoingOn:
    begins = False
    job = "job"


def test_a_job_that_goes_on_without_its_earlier_rows_says_so(caplog):
    with caplog.at_level(logging.WARNING):
        made = ps.collect()
        assert made.prepared(GoingOn(), SCHEMA) is made
        assert "collect() will not have them" in caplog.text
        caplog.clear()
        made.start("job")
        made.prepared(GoingOn(), SCHEMA)
        assert caplog.text == ""


# --- in a job --------------------------------------------------------------------------------------------------------


def test_the_kit_has_the_same_sink():
    assert testing.collect is ps.collect


@pytest.mark.parametrize("seed", range(25))
def test_every_row_is_collected_once_whatever_dies(seed):
    scripts = [[{"n": n + first} for n in range(20)] for first in (0, 100)]
    sink = ps.collect()
    run(lambda env: env.read(scripted(*scripts, schema="n bigint")).write(sink), seed=seed, crashes=2)
    assert sorted(row["n"] for row in sink.rows) == [*range(20), *range(100, 120)]


def test_a_job_with_too_many_rows_fails_and_says_what_to_do():
    source = scripted([{"n": n} for n in range(100)], schema="n bigint")
    with pytest.raises(ps.JobFailed, match="collect keeps at most 10 rows"):
        run(lambda env: env.read(source).write(ps.collect(limit=10)))


def test_the_example_is_true():
    assert doctest.testmod(collect_sink).failed == 0
