"""What `penstock bench window` says of its rounds."""

from __future__ import annotations

import pytest

from penstock.bench.latency import Latency
from penstock.bench.metering import Throughput
from penstock.bench.window import BenchResult, Round, summary
from penstock.bench.window_query import BidInput, penstock_query
from penstock.connectors import nexmark
from penstock.testing import collect, run


def throughput(rate: float, cpu: float) -> Throughput:
    return Throughput(rows=100, seconds=10, rows_per_second=rate, cpu_seconds=cpu)


def rounds(*pairs: tuple[float, float], spark: float | None) -> tuple[Round, ...]:
    return tuple(
        Round(penstock=throughput(rate, 3), without_checkpoints=throughput(other, 2), spark=spark)
        for rate, other in pairs
    )


def test_the_cost_of_checkpoints_is_the_median_of_the_rounds_in_time_and_in_processor_time():
    found = summary(BenchResult(rounds=rounds((90, 100), (50, 100), (99, 100), spark=None), latency=None))
    assert found == {
        "penstock_events_per_second": 90,
        "checkpoint_cost": 0.1,
        "cpu_seconds_per_million": round(3e6 / 900, 4),
        "cpu_seconds_per_million_without_checkpoints": 2_000,
        "checkpoint_cpu_cost": round((3 / 900) / (2 / 1_000) - 1, 4),
    }


def test_structured_streaming_and_the_latency_are_told_if_they_were_measured():
    latency = Latency(records=1, p50_ms=1.5, p99_ms=2.5)
    found = summary(BenchResult(rounds=rounds((90, 100), spark=45), latency=latency))
    assert found["ratio_to_spark"] == pytest.approx(2)
    assert (found["latency_ms_p50"], found["latency_ms_p99"]) == (1.5, 2.5)


def test_with_many_keys_most_keys_are_in_each_whole_window():
    bids = BidInput(events=6_000, keys=1_000)
    rows = run(lambda program: penstock_query(program, bids.source(), collect(), key=bids.key))
    windows = {row["window_start"] for row in rows}
    assert all(0 <= row["auction"] < 1_000 for row in rows)
    assert len(windows) == 3
    assert len([row for row in rows if row["window_start"] == min(windows)]) > 800
    assert nexmark.BASE_TIME in windows
