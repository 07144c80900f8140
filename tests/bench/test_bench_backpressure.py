"""The pipeline of the back-pressure benchmark, when it counts as full, and what is made of the measurements."""

from __future__ import annotations

import io
import json
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from job_views import make_view

from penstock.api.connector import WriterContext
from penstock.api.steps import MapStep
from penstock.bench.backpressure import (
    BackpressureOptions,
    BackpressureResult,
    Measured,
    ModeResult,
    show,
    summary,
)
from penstock.bench.memory import resident_bytes
from penstock.bench.pressure import (
    FULL_FOR_MS,
    KEYS,
    SCHEMA,
    DroppingSink,
    Numbers,
    Pressure,
    SourceRate,
    Throttle,
    pressure_plan,
)
from penstock.cli import main
from penstock.core.job.events import JobState
from penstock.plan.graph import Partitioning
from penstock.settings import NetworkSettings

# --- the pipeline ----------------------------------------------------------------------------------------------------


def numbers_of(reader, polls, rows):
    return [n for _ in range(polls) for n in reader.poll(rows, 0).column("n").to_pylist()]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_all_splits_together_give_every_number_once(parallelism):
    source = Numbers()
    found = []
    for split in source.splits(parallelism):
        found += numbers_of(source.open([split]), polls=3, rows=10)
    assert sorted(found) == list(range(30 * parallelism))


def test_a_snapshot_of_the_source_goes_on_where_it_was():
    source = Numbers()
    reader = source.open(source.splits(2))
    before = numbers_of(reader, polls=4, rows=5)
    after = numbers_of(source.open(reader.snapshot()), polls=2, rows=5)
    assert sorted(before + after) == list(range(30))


def test_every_key_column_is_spread_evenly_and_differs_from_the_others():
    batch = Numbers().open(Numbers().splits(1)).poll(KEYS, 0)
    columns = [batch.column(key).to_pylist() for key in "abc"]
    assert all(sorted(column) == list(range(KEYS)) for column in columns)
    assert columns[0] != columns[1] != columns[2] != columns[0]


def test_the_sink_has_nothing_to_commit():
    writer = DroppingSink().writer(WriterContext(job="bench-1", subtask=0, parallelism=2, epoch=1))
    writer.write(pa.RecordBatch.from_pylist([{"n": 1, "a": 1, "b": 1, "c": 1}], schema=SCHEMA))
    assert writer.prepare(1)() == []


def test_three_exchanges_by_key_lead_to_the_slow_end():
    plan = pressure_plan(parallelism=2, rows_per_second=1_000)
    assert [(e.partitioning, e.keys) for e in plan.edges] == [(Partitioning.HASH, (key,)) for key in "abc"]
    slow = plan.vertices[-1].operators[0].step
    assert isinstance(slow, MapStep)
    assert [v.name for v in plan.vertices] == ["numbers", "stage-1", "stage-2", "slow → nowhere"]


def test_without_a_rate_nothing_holds_the_end_back():
    plan = pressure_plan(parallelism=2, rows_per_second=None)
    assert not any(isinstance(o.step, MapStep) for v in plan.vertices for o in v.operators)


class FakeTime:
    """A clock that only sleeping, and the test, moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(sys.modules["penstock.bench.pressure"], "time", fake)
    return fake


def test_a_throttle_lets_its_rate_through_and_changes_nothing(clock):
    throttle = Throttle(rate=500)
    begun = clock.now_s
    rows = [throttle({"n": n}) for n in range(1_000)]
    assert rows == [{"n": n} for n in range(1_000)]
    assert clock.now_s - begun == pytest.approx(2.0, abs=0.025)


def test_a_throttle_does_not_make_up_for_a_long_gap(clock):
    throttle = Throttle(rate=500)
    throttle({"n": 0})
    clock.now_s += 60
    begun = clock.now_s
    for n in range(1_000):
        throttle({"n": n})
    assert clock.now_s - begun == pytest.approx(2.0, abs=0.025)


# --- looking at it ---------------------------------------------------------------------------------------------------


def tasks(**queued_bytes):
    return {f"{name}[0]": {"queued_bytes": float(size)} for name, size in queued_bytes.items()}


@pytest.fixture
def pressure() -> Pressure:
    return Pressure(NetworkSettings(output_bytes=1_000))


def test_pressure_is_full_when_every_step_that_sends_has_had_a_full_queue_for_a_while(pressure):
    full = replace(make_view(), tasks=tasks(numbers=900, **{"stage-1": 500, "stage-2": 1_200, "slow": 0}))
    assert not pressure.look(full, 10_000)
    assert not pressure.look(full, 10_000 + FULL_FOR_MS - 1)
    assert pressure.look(full, 10_000 + FULL_FOR_MS)


def test_one_full_task_of_each_step_is_enough(pressure):
    """The faster end of an exchange runs dry while the other holds everything up."""
    dry = {"stage-1[1]": {"queued_bytes": 0.0}}
    full = replace(make_view(), tasks=tasks(numbers=900, **{"stage-1": 500, "slow": 0}) | dry)
    pressure.look(full, 10_000)
    assert pressure.look(full, 10_000 + FULL_FOR_MS)


def test_a_sender_that_got_rid_of_its_queue_begins_the_wait_anew(pressure):
    full = replace(make_view(), tasks=tasks(numbers=900, slow=0))
    pressure.look(full, 10_000)
    assert not pressure.look(replace(make_view(), tasks=tasks(numbers=499, slow=0)), 10_500)
    assert not pressure.look(full, 10_000 + FULL_FOR_MS)
    assert pressure.look(full, 10_000 + 2 * FULL_FOR_MS)


def test_a_job_of_which_nothing_is_known_is_under_no_pressure(pressure):
    for view in (make_view(), replace(make_view(state=JobState.DEPLOYING), tasks=tasks(numbers=900))):
        assert not pressure.look(view, 10_000)
        assert not pressure.look(view, 90_000)


def test_the_source_rate_counts_from_the_first_report_to_the_one_that_completes_the_time():
    rate = SourceRate(over_ms=3_000)
    looks = [(0, 0), (400, 1_000), (500, 1_000), (2_400, 5_000), (3_399, 5_000), (3_400, 5_000), (3_500, 7_200)]
    found = [rate.look(make_view(rows_in=rows), 50_000 + ms) for ms, rows in looks]
    assert found == [None] * 6 + [pytest.approx(2_000.0)]


def test_memory_is_read_as_the_system_tells_it(tmp_path):
    (tmp_path / "17").mkdir()
    (tmp_path / "17" / "status").write_text("Name:\tpython\nVmPeak:\t  900 kB\nVmRSS:\t  123 kB\n")
    (tmp_path / "18").mkdir()
    (tmp_path / "18" / "status").write_text("Name:\tkthread\n")
    assert resident_bytes(17, processes=tmp_path) == 123 * 1024
    assert resident_bytes(18, processes=tmp_path) is None
    assert resident_bytes(19, processes=tmp_path) is None


# --- the result ------------------------------------------------------------------------------------------------------


def mode(*durations_ms, persisted=0):
    checkpoints = tuple(Measured(duration_ms=ms, persisted_bytes=persisted + ms) for ms in durations_ms)
    return ModeResult(checkpoints=checkpoints, memory_bytes=(200_000_000, 210_000_000))


def result(aligned, unaligned):
    return BackpressureResult(source_rate=1_000_000, aligned=aligned, unaligned=unaligned)


def test_medians_count_and_the_share_is_that_of_the_medians():
    found = summary(result(mode(4_000, 9_000, 5_000), mode(100, 300, 200, persisted=1_000)))
    assert found == {"aligned_ms": 5_000, "unaligned_ms": 200, "unaligned_share": 0.04, "persisted_bytes": 1_200}


def test_a_mode_without_a_checkpoint_tells_nothing():
    assert summary(result(mode(), mode(100, persisted=7))) == {
        "aligned_ms": None,
        "unaligned_ms": 100,
        "unaligned_share": None,
        "persisted_bytes": 107,
    }
    assert list(summary(result(mode(100), mode())).values()) == [100, None, None, None]


@pytest.mark.parametrize("modes", [(mode(4_000), mode(100)), (mode(), mode(100)), (mode(4_000), mode())])
def test_the_table_has_a_row_for_each_mode_with_the_memory_of_the_workers(modes):
    screen = io.StringIO()
    options = BackpressureOptions(checkpoints=1, parallelism=2, directory=None, as_json=False)
    show(screen, options, result(*modes))
    rows = [line for line in screen.getvalue().splitlines() if "200 → 210" in line]
    assert [row.split("│")[1].strip() for row in rows] == ["aligned", "unaligned"]


@pytest.mark.parametrize(("modes", "code"), [((mode(4_000), mode(100)), 0), ((mode(4_000), mode()), 1)])
def test_a_mode_that_never_completed_a_checkpoint_fails_the_command(monkeypatch, modes, code):
    @contextmanager
    def no_spark(options):
        yield None

    monkeypatch.setattr("penstock.terminal.session.spark_session", no_spark)
    monkeypatch.setattr(sys.modules["penstock.bench.backpressure"]._Runs, "all", lambda self: result(*modes))
    ran = CliRunner().invoke(main, ["bench", "backpressure", "--json"])
    assert ran.exit_code == code, ran.output
    assert list(json.loads(ran.stdout)) == ["aligned_ms", "unaligned_ms", "unaligned_share", "persisted_bytes"]
    assert "starting Spark local[4]" in ran.stderr


def test_a_directory_that_cannot_be_written_is_refused_before_spark_is_started():
    ran = CliRunner().invoke(main, ["bench", "backpressure", "--directory", "/proc/nowhere"])
    assert ran.exit_code == 2
    assert "cannot be written" in ran.stderr
    assert not Path("/proc/nowhere").exists()
