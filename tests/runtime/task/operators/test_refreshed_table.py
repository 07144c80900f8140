"""A table that is read anew while a stream is joined with it: which version a record meets, and what becomes of
failures."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest

from penstock.api.join_steps import JoinKind, TableJoinStep
from penstock.api.static_tables import RefreshedTable, TableVersion
from penstock.api.streams.join_words import ColumnsByKey, pair_columns
from penstock.runtime.task.operators import table_join

RECORDS = pa.schema([("k", pa.int64())])
ROWS = pa.schema([("k", pa.int64()), ("price", pa.int64())])


class Versions(RefreshedTable):
    """A table whose versions the test makes."""

    every_ms = 4_000

    def __init__(self):
        self.prices = {1: [10]}
        self.gone = set()
        self.broken = set()

    @property
    def schema(self):
        return ROWS

    def read_anew(self):
        raise AssertionError("only the driver reads the table")

    def newest(self):
        if "newest" in self.broken:
            raise OSError("the folder cannot be listed")
        number = max(self.prices)
        return TableVersion(number, 1_000 * number)

    def batches_of(self, version):
        if version.number in self.gone:
            self.gone.discard(version.number)
            self.prices[version.number + 1] = [price + 1 for price in self.prices[version.number]]
            raise FileNotFoundError(version.number)
        if version.number in self.broken:
            raise OSError("the disk is full of holes")
        for price in self.prices[version.number]:
            yield pa.record_batch([[1, 2], [price, price + 1]], schema=ROWS)


def step_of(table, *, by_key=False):
    columns = pair_columns(
        ColumnsByKey(keys=("k",), schema=RECORDS), ColumnsByKey(keys=("k",), schema=ROWS), suffix=None
    )
    how = JoinKind.LEFT
    return TableJoinStep(keys=("k",), table_keys=("k",), table=table, by_key=by_key, how=how, columns=columns)


def prices(found, *keys):
    found.output.clear()
    work = found.operator.process(pa.record_batch([list(keys)], schema=RECORDS))
    while work is not None and work.go_on():
        """Until nothing is left."""
    return [row["price"] for row in found.output.rows]


def settle(found):
    """Background work is done until nothing more is asked for."""
    for _ in range(10):
        found.background.run()
        found.background.collect()


def look(found, after_ms=60_000):
    found.time += after_ms
    found.operator.tick(found.time)


def test_a_newer_version_takes_the_place_of_the_older_version(rig):
    table = Versions()
    found = rig(step_of(table))
    assert prices(found, 1, 2, 3) == [10, 11, None]
    table.prices[2] = [20]
    # Nobody has looked yet.
    assert prices(found, 1) == [10]
    look(found)
    # The version is being read.
    assert prices(found, 1) == [10]
    settle(found)
    assert prices(found, 1) == [20]
    metrics = found.operator.metrics()
    assert (metrics["table_version"], metrics["table_rows"], metrics["table_reads_failed"]) == (2, 2, 0)
    assert metrics["table_age_seconds"] == (found.time - 2_000) / 1_000


def test_the_operator_looks_again_and_again(rig):
    table = Versions()
    found = rig(step_of(table))
    first = found.operator.tick(found.time)
    assert first == found.time + table.every_ms // 20
    look(found, after_ms=first - found.time)
    # Meanwhile it does not look a second time.
    assert found.operator.tick(found.time) is None
    settle(found)
    assert prices(found, 1) == [10]
    assert found.operator.tick(found.time) == found.time + table.every_ms // 20
    for number in (2, 3):
        table.prices[number] = [10 * number]
        look(found)
        settle(found)
        assert prices(found, 1) == [10 * number]


def test_all_records_of_a_batch_meet_the_same_version(rig):
    table = Versions()
    found = rig(step_of(table))
    found.operator.slice.run_by(lambda: 0.0, 1)
    found.operator.slice.begin(1)
    table.prices[2] = [20]
    look(found)
    work = found.operator.process(pa.record_batch([[1] * 5], schema=RECORDS))
    settle(found)
    while work is not None and work.go_on():
        found.operator.slice.begin(1)
    assert [row["price"] for row in found.output.rows] == [10] * 5
    assert prices(found, 1) == [20]


def test_an_attempt_begins_with_the_newest_version(rig):
    table = Versions()
    table.prices[7] = [70]
    found = rig(step_of(table), restored=[])
    assert prices(found, 1) == [70]
    assert found.operator.metrics()["table_version"] == 7


def test_a_version_that_goes_away_while_it_is_read_is_not_missed(rig):
    table = Versions()
    table.gone.add(1)
    assert prices(rig(step_of(table)), 1) == [11]


def test_a_version_that_cannot_be_read_leaves_the_older_version_and_is_told(rig, caplog):
    table = Versions()
    found = rig(step_of(table))
    table.prices[2] = [20]
    table.broken.add(2)
    look(found)
    with caplog.at_level(logging.WARNING):
        settle(found)
    assert prices(found, 1) == [10]
    assert found.operator.metrics()["table_reads_failed"] == 1
    assert "table of 'the step' could not be read; version 1 stays: OSError: the disk" in caplog.text
    assert found.failures == []
    table.broken.clear()
    look(found)
    settle(found)
    assert prices(found, 1) == [20]


def test_a_folder_that_cannot_be_listed_is_looked_into_again(rig):
    table = Versions()
    found = rig(step_of(table))
    table.prices[2] = [20]
    table.broken.add("newest")
    look(found)
    settle(found)
    assert prices(found, 1) == [10]
    table.broken.clear()
    look(found)
    settle(found)
    assert prices(found, 1) == [20]


def test_a_large_version_is_read_in_pieces(rig, monkeypatch):
    monkeypatch.setattr(table_join, "_PIECE_ROWS", 4)
    table = Versions()
    found = rig(step_of(table))
    table.prices[2] = [20] * 10
    look(found)
    pieces = 0
    while found.operator.metrics()["table_version"] == 1:
        found.background.run()
        found.background.collect()
        pieces += 1
    # Two batches of two rows in each piece, and the end.
    assert pieces == 6
    assert prices(found, 1) == [20] * 10


def test_a_subtask_keeps_the_rows_of_its_keys_of_every_version(rig):
    table = Versions()
    subtasks = [rig(step_of(table, by_key=True), subtask=n, parallelism=2) for n in (0, 1)]
    table.prices[2] = [20]
    for found in subtasks:
        look(found)
        settle(found)
    assert sum(found.operator.metrics()["table_rows"] for found in subtasks) == 2
    assert all(found.operator.metrics()["table_version"] == 2 for found in subtasks)


def test_an_operator_that_is_closed_reads_no_more(rig):
    table = Versions()
    found = rig(step_of(table))
    table.prices[2] = [20]
    look(found)
    found.background.run()
    found.operator.close()
    found.background.collect()
    assert found.operator.metrics()["table_version"] == 1


@pytest.mark.parametrize(("every_ms", "look_ms"), [(1_000, 200), (60_000, 3_000), (3_600_000, 30_000)])
def test_how_often_an_operator_looks_depends_on_how_often_the_table_is_read(rig, every_ms, look_ms):
    table = Versions()
    table.every_ms = every_ms
    found = rig(step_of(table))
    assert found.operator.tick(found.time) == found.time + look_ms
