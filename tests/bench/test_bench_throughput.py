"""Events per second: without the warm-up, to the last record, over all readers together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.api.connector import End, Pause, Sink, SinkWriter, Source, SourceReader, WriterContext
from penstock.bench import metering
from penstock.bench.metering import MeteredSink, MeteredSource, read_throughput
from penstock.bench.structured_streaming import MicroBatch, steady_throughput

SECOND = 1_000_000_000


class Three(Source):
    """Polls of 3 rows, nothing, 5 rows, and the end."""

    schema = pa.schema([("x", pa.int64())])

    def splits(self, parallelism):
        return [b"a", b"b"]

    def open(self, splits):
        return ThreeReader(splits)


class ThreeReader(SourceReader):
    def __init__(self, splits):
        self.left = [pa.record_batch({"x": list(range(3))}), Pause(1), pa.record_batch({"x": list(range(5))}), End()]
        self.kept = list(splits)
        self.completed = []
        self.closed = False

    def poll(self, max_rows, now_ms):
        return self.left.pop(0)

    def snapshot(self):
        return self.kept

    def checkpoint_completed(self, checkpoint):
        self.completed.append(checkpoint)

    def close(self):
        self.closed = True


def note(folder: Path, name: str, *pairs: tuple[float, int]) -> None:
    """A file as a reader leaves it: (second, rows). The process uses half of a processor."""
    rows = [(int(second * SECOND), count, int(second * SECOND) // 2) for second, count in pairs]
    (folder / name).write_bytes(np.array(rows, dtype=metering._NOTE).tobytes())


def test_a_metered_source_is_its_inner_source_but_for_the_notes(tmp_path):
    inner = Three()
    source = MeteredSource(inner, str(tmp_path / "meters"))
    assert (source.schema, source.name, source.splits(2)) == (inner.schema, "three", [b"a", b"b"])
    reader = source.open([b"a"])
    polled = [reader.poll(10, 0) for _ in range(4)]
    reader.checkpoint_completed(3)
    assert [p.num_rows if isinstance(p, pa.RecordBatch) else p for p in polled] == [3, Pause(1), 5, End()]
    assert reader.snapshot() == [b"a"]
    reader.close()
    assert reader._inner.completed == [3]
    assert reader._inner.closed
    (file,) = (tmp_path / "meters").iterdir()
    notes = np.frombuffer(file.read_bytes(), dtype=metering._NOTE)
    assert notes["rows"].tolist() == [3, 5]
    assert notes["at_ns"][0] <= notes["at_ns"][1]


class Kept(Sink):
    """Remembers the calls."""

    def __init__(self):
        self.calls = []

    def check(self, schema):
        self.calls.append(("check", schema))

    def start(self, job):
        self.calls.append(("start", job))

    def writer(self, context):
        return KeptWriter(self.calls)

    def commit(self, committables):
        self.calls.append(("commit", committables))

    def clean(self, context, keep):
        self.calls.append(("clean", keep))

    def end(self, job):
        self.calls.append(("end", job))


class KeptWriter(SinkWriter):
    def __init__(self, calls):
        self.calls = calls

    def write(self, batch):
        self.calls.append(("write", batch.num_rows))

    def prepare(self, checkpoint):
        return lambda: [b"prepared"]

    def close(self):
        self.calls.append(("close",))


def test_a_metered_sink_is_its_inner_sink_but_for_the_notes(tmp_path):
    inner = Kept()
    sink = MeteredSink(inner, str(tmp_path / "meters"))
    context = WriterContext(job="j", subtask=0, parallelism=1, epoch=1)
    assert sink.name == "kept"
    sink.check(Three.schema)
    sink.start("j")
    sink.clean(context, [b"k"])
    writer = sink.writer(context)
    writer.write(pa.record_batch({"x": [1, 2]}))
    sink.commit(writer.prepare(1)())
    writer.close()
    sink.end("j")
    assert inner.calls == [
        ("check", Three.schema),
        ("start", "j"),
        ("clean", [b"k"]),
        ("write", 2),
        ("commit", [b"prepared"]),
        ("close",),
        ("end", "j"),
    ]
    (file,) = (tmp_path / "meters").iterdir()
    assert np.frombuffer(file.read_bytes(), dtype=metering._NOTE)["rows"].tolist() == [2]


def test_a_run_is_over_when_its_last_result_is_written(tmp_path):
    note(tmp_path, "read-a", (0, 10), (1, 10), (2, 10))
    note(tmp_path, "written-a", (1, 1), (6, 1))
    found = read_throughput(tmp_path, warmup_share=0.0)
    assert (found.rows, found.seconds) == (30, 6.0)
    assert found.rows_per_second == pytest.approx(20 / 6)


def test_readers_count_together_and_the_warm_up_does_not(tmp_path):
    note(tmp_path, "read-a", (0, 10), (1, 10), (2, 10), (3, 10))
    note(tmp_path, "read-b", (0.5, 10), (1.5, 10), (2.5, 10), (5, 10))
    found = read_throughput(tmp_path, warmup_share=0.25)
    assert found.rows == 80
    assert found.seconds == 4.5
    assert found.rows_per_second == pytest.approx(60 / 4.5)


def test_the_processor_time_of_all_processes_counts_after_the_warm_up(tmp_path):
    note(tmp_path, "read-1-a", (0, 10), (1, 10), (2, 10), (3, 10))
    note(tmp_path, "written-1-a", (4, 1), (7, 1))
    note(tmp_path, "read-2-b", (0.5, 10), (1.5, 10), (2.5, 10), (5, 10))
    found = read_throughput(tmp_path, warmup_share=0.25)
    assert (found.seconds, found.cpu_seconds) == (6.5, (7 - 1 + 5 - 0.5) / 2)
    assert found.cpu_seconds_per_million == pytest.approx(found.cpu_seconds / 60 * 1e6)


@pytest.mark.parametrize("pairs", [[], [(1, 10)]])
def test_too_little_to_measure_is_no_measurement(tmp_path, pairs):
    note(tmp_path, "read-a", *pairs)
    assert read_throughput(tmp_path, warmup_share=0.0) is None


def test_a_run_that_left_no_notes_is_no_measurement(tmp_path):
    assert read_throughput(tmp_path, warmup_share=0.25) is None


def batches(*durations_ms: float) -> list[MicroBatch]:
    """Micro-batches of 100 rows that start 1 s apart."""
    return [MicroBatch(start_ms=1_000 * i, duration_ms=ms, rows=100) for i, ms in enumerate(durations_ms)]


def test_micro_batches_after_the_warm_up_count_with_the_pauses_between_them():
    found = steady_throughput(batches(9_000, 500, 500, 500), warmup_share=0.25)
    assert found.seconds == 2.5
    assert found.rows_per_second == pytest.approx(300 / 2.5)
    assert found.rows == 400


def test_without_warm_up_every_micro_batch_counts():
    assert steady_throughput(batches(500, 500), warmup_share=0.0).rows_per_second == pytest.approx(200 / 1.5)


@pytest.mark.parametrize("durations_ms", [[], [0]])
def test_micro_batches_that_took_no_time_are_no_measurement(durations_ms):
    assert steady_throughput(batches(*durations_ms), warmup_share=0.0) is None
