"""A process is used again after a slot only if no thread of the slot is left in it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from penstock.core.errors import SlotLost
from penstock.spark import worker


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Thread]:
    """A thread of a slot that does not end before the test does."""
    monkeypatch.setattr(worker, "PATIENCE_S", 0.01)
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="penstock-read-stuck", daemon=True)
    thread.start()
    yield thread
    over.set()
    thread.join()


def test_a_process_without_threads_of_the_slot_is_fit():
    over = threading.Event()
    theirs = threading.Thread(target=over.wait, name="somebody's", daemon=True)
    theirs.start()
    assert worker._is_fit()
    over.set()
    theirs.join()


class Slow(threading.Thread):
    """Ends when it is waited for."""

    def __init__(self) -> None:
        self._over = threading.Event()
        super().__init__(target=self._over.wait, name="penstock-read-slow", daemon=True)

    def join(self, timeout: float | None = None) -> None:
        self._over.set()
        super().join(timeout)


def test_a_thread_that_ends_in_time_is_waited_for():
    Slow().start()
    assert worker._is_fit()


@pytest.mark.usefixtures("blocked")
def test_a_process_with_a_thread_that_does_not_end_is_not_fit(caplog: pytest.LogCaptureFixture):
    assert not worker._is_fit()
    assert "penstock-read-stuck" in caplog.text


@pytest.mark.usefixtures("blocked")
def test_where_spark_reads_ahead_such_a_process_fails(monkeypatch: pytest.MonkeyPatch):
    """Unread input tells PySpark elsewhere that the process is not to be used again; here all of it is read."""
    monkeypatch.setenv(worker.READS_AHEAD, "1")
    with pytest.raises(SlotLost, match="penstock-read-stuck"):
        worker._is_fit()
