"""Files of a checkpoint that is read are deleted when the reader has let go, and all other files at once."""

from __future__ import annotations

import msgspec
import pytest
from completed_records import completed

from penstock.core.coordinator.effects import DeleteFiles
from penstock.core.ids import Instant
from penstock.runtime.master.readings import LONGEST_MS, Readings

NOW = Instant(1_000)


@pytest.fixture
def deleted():
    return []


@pytest.fixture
def readings(deleted):
    return Readings()


def record(number, *files):
    return msgspec.structs.replace(completed(number), location=f"job/chk-{number}", private_files=files)


def ask(readings, deleted, deletion):
    """Delete now, or when no reader needs the files."""
    if not readings.postponed(deletion, lambda: deleted.append(deletion.cleaning)):
        deleted.append(deletion.cleaning)


def folder(number):
    return DeleteFiles(cleaning=number, paths=(), folder=f"job/chk-{number}")


def test_only_what_the_reader_needs_stays_until_the_reader_lets_go(readings, deleted):
    reading = readings.hold(record(7, "job/shared/a"), NOW)
    ask(readings, deleted, folder(6))
    ask(readings, deleted, folder(7))
    ask(readings, deleted, DeleteFiles(cleaning=8, paths=("job/shared/a", "job/shared/b"), folder=None))
    ask(readings, deleted, DeleteFiles(cleaning=9, paths=("job/shared/b",), folder=None))
    assert deleted == [6, 9]
    readings.let_go(reading.number)
    assert deleted == [6, 9, 7, 8]
    readings.let_go(reading.number)
    assert deleted == [6, 9, 7, 8]


def test_of_two_readers_the_last_one_counts(readings, deleted):
    first, second = readings.hold(record(7), NOW), readings.hold(record(7), NOW)
    ask(readings, deleted, folder(7))
    readings.let_go(first.number)
    assert deleted == []
    readings.let_go(second.number)
    assert deleted == [7]


def test_a_reader_that_does_not_let_go_is_forgotten(readings, deleted, caplog):
    readings.hold(record(7), NOW)
    ask(readings, deleted, folder(7))
    assert readings.next_deadline() == NOW + LONGEST_MS
    readings.turn(Instant(NOW + LONGEST_MS - 1))
    assert deleted == []
    readings.turn(Instant(NOW + LONGEST_MS))
    assert (deleted, readings.next_deadline()) == ([7], None)
    assert "has been read for too long" in caplog.text


def test_at_the_end_of_the_job_nothing_is_kept(readings, deleted):
    readings.hold(record(7), NOW)
    ask(readings, deleted, folder(7))
    readings.end()
    assert deleted == [7]
    assert readings.hold(record(8), NOW) is None
    ask(readings, deleted, folder(8))
    assert deleted == [7, 8]
