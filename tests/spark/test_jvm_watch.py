"""A slot learns that Spark has let go of it, and the learning ends with the slot."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.spark.jvm_watch import JvmWatch, jvm_socket

PATIENCE_S = 60


@pytest.fixture(autouse=True)
def _nothing_is_collected() -> Iterator[None]:
    """What other tests left to be collected has connections, to Spark's JVM too, that would come and go meanwhile."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def open_descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


def test_outside_of_a_worker_there_is_no_socket_and_nothing_is_watched():
    assert jvm_socket() is None
    with JvmWatch(None, lambda: None) as watch:
        assert not any(t.name == "penstock-jvm-watch" for t in threading.enumerate())
    assert not watch.closed


def test_the_socket_is_found_in_the_frame_of_the_workers_main_function():
    ours, theirs = socket.socketpair()
    with ours, theirs, ours.makefile("rb") as infile:
        namespace = {"__name__": "pyspark.worker", "find": jvm_socket}
        exec("def main(infile):\n    return find()", namespace)
        assert namespace["main"](infile) == ours.fileno()
        assert namespace["main"](None) is None


def test_a_closed_socket_is_noticed_once_and_the_watch_ends_with_its_block():
    before = open_descriptors()
    noticed = threading.Event()
    ours, theirs = socket.socketpair()
    with ours, JvmWatch(ours.fileno(), noticed.set) as watch:
        theirs.close()
        assert noticed.wait(PATIENCE_S)
        assert watch.closed
    assert open_descriptors() == before


def test_an_open_socket_with_something_to_read_is_no_reason_to_leave():
    before = open_descriptors()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"more input")
        with JvmWatch(ours.fileno(), lambda: None) as watch:
            pass
    assert not watch.closed
    assert open_descriptors() == before


def test_a_loop_that_does_not_end_is_ended():
    ended = threading.Event()
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, JvmWatch(ours.fileno(), lambda: None, grace_ms=0, end=ended.set):
        assert ended.wait(PATIENCE_S)


def test_a_loop_that_ends_in_time_is_not():
    noticed, ended = threading.Event(), threading.Event()
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, JvmWatch(ours.fileno(), noticed.set, grace_ms=60_000, end=ended.set):
        assert noticed.wait(PATIENCE_S)
    assert not ended.is_set()
