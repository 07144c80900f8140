"""Records are due at even distances by the clock; the sink tells how late they came."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from penstock.api.connector import End, Pause, WriterContext
from penstock.bench.latency import KEYS, SCHEMA, LatencySink, PacedSource, read_latency

START_MS = 1_700_000_000_000


def drain(reader, now_ms, max_rows=1_000):
    """Every record that is due at `now_ms`, and what came after them."""
    created = []
    while isinstance(polled := reader.poll(max_rows, now_ms), pa.RecordBatch):
        assert polled.schema == SCHEMA
        assert polled.num_rows <= max_rows
        created += polled.column("created_us").to_pylist()
    return created, polled


def context(subtask=0, epoch=1):
    return WriterContext(job="bench-1", subtask=subtask, parallelism=2, epoch=epoch)


def batch(*created_us):
    return pa.record_batch([pa.array(range(len(created_us)), pa.int64()), pa.array(created_us)], schema=SCHEMA)


# --- the source ------------------------------------------------------------------------------------------------------


def test_a_record_is_created_when_it_is_due_however_late_it_is_read():
    source = PacedSource(rate=1_000, seconds=1)
    reader = source.open(source.splits(1))
    assert drain(reader, START_MS) == ([START_MS * 1_000], Pause(1))
    created, _ = drain(reader, START_MS + 3)
    assert created == [(START_MS + ms) * 1_000 for ms in (1, 2, 3)]


def test_records_between_two_milliseconds_keep_their_distance():
    source = PacedSource(rate=4_000, seconds=1)
    reader = source.open(source.splits(1))
    drain(reader, START_MS)
    created, _ = drain(reader, START_MS + 1)
    assert [c - START_MS * 1_000 for c in created] == [250, 500, 750, 1_000]


@pytest.mark.parametrize("splits", [1, 2, 3, 7])
def test_all_splits_together_give_every_record_once(splits):
    source = PacedSource(rate=1_000, seconds=0.1)
    created = []
    for split in source.splits(splits):
        reader = source.open([split])
        for ms in (0, 10, 60, 100, 500):
            found, last = drain(reader, START_MS + ms, max_rows=7)
            created += found
        assert last == End()
    assert sorted(created) == [(START_MS + n) * 1_000 for n in range(100)]


def test_a_reader_of_several_splits_reads_all_of_them():
    source = PacedSource(rate=1_000, seconds=0.1)
    reader = source.open(source.splits(3))
    created, last = drain(reader, START_MS)
    later, end = drain(reader, START_MS + 1_000)
    assert len(created) + len(later) == 100
    assert (last, end) == (Pause(1), End())


def test_without_splits_there_is_nothing_to_read():
    assert PacedSource(rate=1_000, seconds=1).open([]).poll(10, START_MS) == End()


def test_a_snapshot_gives_exactly_the_records_that_were_not_read():
    source = PacedSource(rate=1_000, seconds=0.05)
    reader = source.open(source.splits(2))
    before, _ = drain(reader, START_MS)
    before += drain(reader, START_MS + 20)[0]
    again = source.open(reader.snapshot())
    after, _ = drain(again, START_MS + 1_000)
    assert sorted(before + after) == [(START_MS + n) * 1_000 for n in range(50)]
    assert again.snapshot() == []


def test_keys_are_spread():
    source = PacedSource(rate=10_000, seconds=1)
    reader = source.open(source.splits(1))
    reader.poll(1, START_MS)
    polled = reader.poll(10_000, START_MS + 1_000)
    keys = polled.column("key").to_pylist()
    assert len(set(keys)) == len(keys) == KEYS - 1


# --- the sink --------------------------------------------------------------------------------------------------------


def test_times_show_only_when_they_are_committed(tmp_path):
    sink = LatencySink(str(tmp_path / "times"))
    sink.start("bench-1")
    writer = sink.writer(context())
    now_us = time.time_ns() // 1_000
    writer.write(batch(now_us - 5_000, now_us - 6_000))
    prepared = writer.prepare(1)()
    assert read_latency(tmp_path / "times", warmup_s=0) is None
    sink.commit(prepared)
    sink.commit(prepared)
    found = read_latency(tmp_path / "times", warmup_s=0)
    assert found.records == 2
    assert found.p50_ms >= 5.5
    assert found.p99_ms >= found.p50_ms


def test_a_checkpoint_without_records_has_nothing_to_commit(tmp_path):
    assert LatencySink(str(tmp_path)).writer(context()).prepare(1)() == []


def test_subtasks_and_checkpoints_do_not_get_in_each_others_way(tmp_path):
    sink = LatencySink(str(tmp_path))
    for subtask in (0, 1):
        writer = sink.writer(context(subtask))
        for checkpoint in (1, 2):
            writer.write(batch(0))
            sink.commit(writer.prepare(checkpoint)())
    assert read_latency(tmp_path, warmup_s=0).records == 4


def test_the_warm_up_is_left_out(tmp_path):
    sink = LatencySink(str(tmp_path))
    writer = sink.writer(context())
    writer.write(batch(0, 999_999, 1_000_000, 2_000_000))
    sink.commit(writer.prepare(1)())
    assert read_latency(tmp_path, warmup_s=1).records == 2
    assert read_latency(tmp_path, warmup_s=3) is None
