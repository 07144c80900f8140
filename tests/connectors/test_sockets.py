"""Lines from a socket: what comes is handed on, nothing comes twice, and what cannot be promised is said."""

from __future__ import annotations

import logging
import socket
import threading
from contextlib import contextmanager

import pytest

import penstock as ps
from penstock.api.connector import End, Pause, Site
from penstock.connectors import sockets
from penstock.core.errors import ExternalError, Fault, UsageError, fault_of
from penstock.testing import collect, run


class Server:
    """Sends the next of its chunks to whoever is connected, and closes the connection after the last chunk."""

    def __init__(self, chunks):
        self._chunks = iter(chunks)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                try:
                    for chunk in self._chunks:
                        connection.sendall(chunk)
                except OSError:
                    # Whoever was connected is gone: what was sent last is lost.
                    continue

    def close(self):
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()


@contextmanager
def serving(chunks):
    server = Server(chunks)
    try:
        yield server
    finally:
        server.close()


def drain(reader, max_rows=100):
    lines, waiting = [], threading.Event()
    while not isinstance(polled := reader.poll(max_rows, 0), End):
        if isinstance(polled, Pause):
            waiting.wait(0.001)
        else:
            lines += polled.column("line").to_pylist()
    return lines


def test_lines_come_whole_however_they_are_sent():
    with serving([b"to be\nor ", b"not", b" to be\r\n\n\xff\n", b"the rest"]) as server:
        source = ps.socket("127.0.0.1", server.port)
        (split,) = source.splits(3)
        reader = source.open([split])
        assert drain(reader, max_rows=2) == ["to be", "or not to be", "", "�", "the rest"]
        assert reader.snapshot() == []
        assert source.open([]).poll(1, 0) == End()
        reader.close()


def test_a_reader_that_is_closed_lets_its_thread_end():
    release = threading.Event()

    def chunks():
        yield b"one\n"
        release.wait(60)
        yield b"two\n"

    with serving(chunks()) as server:
        source = ps.socket("127.0.0.1", server.port)
        reader, before = source.open(source.splits(1)), threading.active_count()
        while isinstance(reader.poll(10, 0), Pause):
            threading.Event().wait(0.001)
        assert len(reader.snapshot()) == 1
        reader.close()
        for thread in threading.enumerate():
            if thread.name == "penstock-read-socket":
                thread.join(60)
        assert threading.active_count() < before
        release.set()


def test_nobody_to_connect_to_is_an_error_that_may_pass():
    with serving([]) as server:
        port = server.port
    source = ps.socket("127.0.0.1", port)
    with pytest.raises(ExternalError, match=r"could not be read: .*refused") as raised:
        drain(source.open(source.splits(1)))
    assert fault_of(raised.value) is Fault.PASSING


def test_a_line_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(sockets, "LONGEST_LINE_BYTES", 100)
    with serving([b"x" * 1000]) as server:
        source = ps.socket("127.0.0.1", server.port)
        with pytest.raises(UsageError, match="line of more than 100 bytes"):
            drain(source.open(source.splits(1)))


@pytest.mark.parametrize(("host", "port"), [("", 1), (None, 1), ("x", 0), ("x", 70_000), ("x", "1"), ("x", True)])
def test_mistakes_are_told_when_the_program_is_written(host, port):
    with pytest.raises(UsageError, match=r"(host|port) is"):
        ps.socket(host, port)


class Beginning(Site):
    has_ended = False
    inputs = known_inputs = results = kept_files = fresh_token = handing_over = table = None


def test_a_job_warns_when_it_starts_that_lines_may_be_lost(caplog):
    source = ps.socket("localhost", 9999)
    with caplog.at_level(logging.WARNING):
        assert source.prepared(Beginning()) is source
    assert "socket localhost:9999 cannot be read again" in caplog.text


@pytest.mark.parametrize("seed", range(20))
def test_no_line_comes_twice_and_none_is_lost_without_a_crash(seed):
    crashes = 2 if seed % 2 else 0
    with serving(f"{n}\n".encode() for n in range(3000)) as server:
        source = ps.socket("127.0.0.1", server.port)
        found = run(lambda env: env.read(source).write(collect()), seed=seed, crashes=crashes)
    numbers = [int(row["line"]) for row in found]
    assert numbers == sorted(set(numbers))
    assert crashes or numbers == list(range(3000))
