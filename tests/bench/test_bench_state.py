"""The benchmark of state drives real back ends and prints what programs can read."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from penstock.bench import state_rows
from penstock.bench.state import Increment, SyncPart, measure_increment, measure_restore
from penstock.bench.state_keys import Keyspace
from penstock.cli import main
from penstock.core.errors import HostError

SMALL = ("--keys", "20000", "--sync-keys", "20000", "--restore-mb", "2", "--rounds", "3")


def run(*arguments: str):
    return CliRunner().invoke(main, ("bench", "state", *arguments))


def test_json_is_one_line_with_the_four_numbers_first():
    result = run(*SMALL, "--rows", "0", "--room-mb", "2", "--cache-mb", "1", "--json")
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    found = json.loads(line)
    assert list(found)[:4] == ["incremental_share", "sync_growth", "restore_mb_per_second", "rows_ratio_to_spark"]
    assert 0 < found["incremental_share"] < 0.2
    assert found["sync_growth"] > 0
    both = (found["restore_mb_per_second_rocksdb"], found["restore_mb_per_second_memory"])
    assert found["restore_mb_per_second"] == min(both) > 0
    assert found["rows_ratio_to_spark"] is None
    assert found["snapshot_pause_ms"] > 0
    assert found["resident_share"] is not None


def test_without_json_the_numbers_come_in_words():
    result = run(*SMALL, "--rows", "0")
    assert result.exit_code == 0, result.output
    assert "1% of 20,000 keys in RocksDB changed" in result.stdout
    assert "restore of 2 MB, memory" in result.stdout
    assert "the loop is blocked for at most" in result.stdout
    assert "may hold" not in result.stdout


@pytest.mark.parametrize("option", ["--keys", "--sync-keys", "--restore-mb", "--rounds", "--parallelism"])
def test_a_size_that_cannot_be_is_refused(option):
    result = run(option, "0")
    assert result.exit_code == 2
    assert option in result.stderr


def test_rows_are_compared_with_the_ratio(monkeypatch):
    monkeypatch.setattr(state_rows, "measure_rows", lambda work, **_: (300.0, 20.0))
    found = json.loads(run(*SMALL, "--rows", "1000", "--json").stdout)
    assert (found["rows_ratio_to_spark"], found["rows_per_second"]) == (15.0, 300)


def test_what_spark_needs_is_asked_for_before_it_is_started(monkeypatch, tmp_path):
    monkeypatch.setattr(state_rows, "find_spec", lambda name: None)
    with pytest.raises(HostError, match="protobuf"):
        state_rows.measure_rows(tmp_path, rows=1, parallelism=1, screen=None)


def test_a_share_counts_what_was_uploaded_and_not_what_was_referred_to(tmp_path):
    found = measure_increment(tmp_path, keys=20_000, seed=1)
    assert found.full_bytes > 20_000
    assert found.new_bytes < found.full_bytes / 4
    assert Increment(full_bytes=200, new_bytes=50).share == 0.25
    assert SyncPart(many=3.0, few=2.0).growth == 1.5


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_a_measured_restore_brings_everything_back(tmp_path, kind):
    space = Keyspace(kind, tmp_path, value_type=pa.int64())
    space.put(np.arange(1_000), list(range(1_000)))
    files, _ = space.checkpoint()
    other = Keyspace(kind, tmp_path, value_type=pa.int64())
    other.restore(files)
    seen = [file.size for file in other.checkpoint()[0]]
    assert sum(seen) > 1_000
    space.backend.close()
    other.backend.close()
    assert measure_restore(kind, tmp_path, megabytes=1, seed=1) > 0
