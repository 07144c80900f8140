"""The control socket of a job: who may call it, what a caller gets, and what becomes of those who talk nonsense, too
slowly, too much, or not at all."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import NoAnswer, PeerError, SnapshotFailed, UsageError
from penstock.core.ids import Instant
from penstock.net.control import Request, call, find_job, running_jobs
from penstock.net.control_server import CallLimits, ControlServer

JOB = "counts-0123abcd"


class SetClock:
    """Shows what it was set to. One that runs goes on by a second whenever somebody looks at it."""

    def __init__(self, *, runs: bool = False) -> None:
        self.ms = 0.0
        self._runs = runs

    def now(self) -> Instant:
        return Instant(int(self.precise_ms()))

    def precise_ms(self) -> float:
        self.ms += 1_000 if self._runs else 0
        return self.ms


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "jobs"


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


def echo(request: Request) -> dict[str, Any]:
    if request.command == "fail":
        raise SnapshotFailed("the disk is full", hint="free some space")
    return {"command": request.command, **request.arguments}


@pytest.fixture
def server(folder: Path, clock: SetClock) -> Iterator[ControlServer]:
    served = ControlServer(JOB, echo, clock=clock, folder=folder)
    yield served
    served.close()


def caller_of(server: ControlServer) -> socket.socket:
    caller = socket.socket(socket.AF_UNIX)
    caller.connect(str(server.path))
    return caller


def is_hung_up_on(caller: socket.socket) -> bool:
    """Waits until the other side says something or hangs up."""
    try:
        return caller.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_call_is_answered(server: ControlServer, folder: Path):
    assert call(JOB, "stop", folder, drain=True) == {"command": "stop", "drain": True}


def test_what_the_job_refuses_reaches_the_caller_with_what_to_do(server: ControlServer, folder: Path):
    with pytest.raises(PeerError) as caught:
        call(JOB, "fail", folder)
    assert (caught.value.message, caught.value.hint) == ("the disk is full", "free some space")


@pytest.mark.parametrize("line", [b"\n", b"stop\n", b"[]\n", b'{"command": 7}\n', b"\xff\xfe\n"])
def test_nonsense_is_answered_and_the_next_caller_is_served(server: ControlServer, folder: Path, line: bytes):
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(server.path))
        caller.sendall(line)
        assert b"cannot be read" in caller.makefile("rb").readline()
    assert call(JOB, "view", folder) == {"command": "view"}


def test_a_caller_that_hangs_up_harms_nobody(server: ControlServer, folder: Path):
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(server.path))
    assert call(JOB, "view", folder) == {"command": "view"}


def test_only_the_user_can_open_the_folder(server: ControlServer, folder: Path):
    assert folder.stat().st_mode & 0o077 == 0
    folder.chmod(0o755)
    with pytest.raises(UsageError, match="other users can enter"):
        ControlServer("other", echo, clock=SetClock(), folder=folder)
    with pytest.raises(UsageError, match="other users can enter"):
        running_jobs(folder)


def test_jobs_that_are_gone_are_not_listed_and_leave_no_socket(server: ControlServer, folder: Path):
    dead = folder / "dead-00000000.job"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(dead))
    assert dead.exists()
    assert running_jobs(folder) == ["counts-0123abcd"]
    assert [path.name for path in folder.iterdir()] == ["counts-0123abcd.job"]
    with pytest.raises(PeerError, match="cannot be reached"):
        call("dead-00000000", "view", folder)


def test_a_job_is_found_by_its_id_its_name_or_how_they_begin(server: ControlServer, folder: Path):
    second = ControlServer("counts-89abcdef", echo, clock=SetClock(), folder=folder)
    third = ControlServer("totals-89abcdef", echo, clock=SetClock(), folder=folder)
    try:
        assert find_job("counts-0123abcd", folder) == "counts-0123abcd"
        assert find_job("counts-0", folder) == "counts-0123abcd"
        assert find_job("Totals", folder) == "totals-89abcdef"
        with pytest.raises(UsageError, match="may be any of"):
            find_job("counts", folder)
        with pytest.raises(UsageError, match="no running job is called 'sums'") as caught:
            find_job("sums", folder)
        assert "totals-89abcdef" in str(caught.value.hint)
    finally:
        second.close()
        third.close()


def test_nothing_runs_where_nothing_ever_ran(folder: Path):
    assert running_jobs(folder) == []
    with pytest.raises(UsageError, match="no running job"):
        find_job("counts", folder)


def test_the_last_job_leaves_no_folder_behind(folder: Path):
    first, second = (
        ControlServer(job, echo, clock=SetClock(), folder=folder) for job in ("one-00000000", "two-00000000")
    )
    first.close()
    assert running_jobs(folder) == ["two-00000000"]
    second.close()
    assert not folder.exists()


def test_a_job_can_be_called_however_long_the_path_of_its_socket_is(tmp_path: Path, clock: SetClock):
    folder = tmp_path.joinpath(*("a-long-name" * 5 for _ in range(3)), "jobs")
    folder.parent.mkdir(parents=True)
    server = ControlServer(JOB, echo, clock=clock, folder=folder)
    assert running_jobs(folder) == [JOB]
    assert call(JOB, "list", folder) == {"command": "list"}
    server.close()
    assert not folder.exists()


def test_a_driver_that_was_taken_over_from_leaves_the_socket_of_the_one_that_has_the_job(folder: Path):
    old = ControlServer("counts", lambda _: {"driver": "old"}, clock=SetClock(), folder=folder)
    new = ControlServer("counts", lambda _: {"driver": "new"}, clock=SetClock(), folder=folder)
    old.close()
    assert call("counts", "view", folder) == {"driver": "new"}
    new.close()
    assert not folder.exists()


# --- callers that cost something -------------------------------------------------------------------------------------


def test_a_silent_caller_does_not_keep_the_job_from_ending(folder: Path, clock: SetClock):
    """The clock stands still: the end of the job waits for no time-out either."""
    server = ControlServer(JOB, echo, clock=clock, folder=folder)
    with caller_of(server) as silent, caller_of(server) as begun:
        begun.sendall(b'{"command": "st')
        assert call(JOB, "view", folder) == {"command": "view"}
        server.close()
        assert is_hung_up_on(silent)
        assert is_hung_up_on(begun)


def test_a_request_that_drips_in_is_given_up_as_a_whole(server: ControlServer, folder: Path, clock: SetClock):
    with caller_of(server) as dripping:
        dripping.settimeout(0.01)
        for byte in b'{"command": "view", "arguments": {}}' * 1_000:
            try:
                dripping.sendall(bytes([byte]))
                # Every byte comes a second after the byte before.
                clock.ms += 1_000
                assert dripping.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                break
            break
        else:
            pytest.fail("the caller was listened to for 10 hours")
    assert call(JOB, "view", folder) == {"command": "view"}


def test_a_caller_that_only_listens_is_hung_up_on(server: ControlServer, folder: Path, clock: SetClock):
    with caller_of(server) as half_open:
        half_open.shutdown(socket.SHUT_WR)
        assert is_hung_up_on(half_open)
    with caller_of(server) as half_open:
        half_open.sendall(b'{"command": "view"}')
        half_open.shutdown(socket.SHUT_WR)
        assert half_open.makefile("rb").readline() == b'{"result":{"command":"view"}}\n'
    with caller_of(server) as silent:
        assert call(JOB, "view", folder) == {"command": "view"}
        clock.ms += 5_000
        assert is_hung_up_on(silent)


def test_an_endless_request_is_refused_before_it_is_all_there(server: ControlServer, folder: Path):
    with caller_of(server) as caller:
        sent = 0
        try:
            for _ in range(1_000):
                sent += caller.send(b"x" * 100_000)
        except OSError:
            assert sent < 10_000_000
        else:
            pytest.fail("100 MB were taken")
        assert b"longer than 65536 bytes" in caller.makefile("rb").readline()
    assert call(JOB, "view", folder) == {"command": "view"}
    with pytest.raises(PeerError, match="longer than 65536 bytes"):
        call(JOB, "savepoint", folder, directory="x" * 1_000_000)


def test_of_many_silent_callers_the_oldest_make_room(folder: Path, clock: SetClock):
    server = ControlServer(JOB, echo, clock=clock, folder=folder, limits=CallLimits(connections=8))
    silent = [caller_of(server) for _ in range(40)]
    try:
        assert call(JOB, "view", folder) == {"command": "view"}
        # Itself took a place, too.
        assert all(is_hung_up_on(caller) for caller in silent[:33])
        silent[-1].sendall(b'{"command": "late"}\n')
        assert silent[-1].makefile("rb").readline() == b'{"result":{"command":"late"}}\n'
    finally:
        server.close()
        for caller in silent:
            caller.close()


@pytest.mark.parametrize("at_work", [1, 128])
def test_all_of_many_callers_at_once_are_served(folder: Path, clock: SetClock, at_work: int):
    server = ControlServer(JOB, echo, clock=clock, folder=folder, limits=CallLimits(at_work=at_work))
    count = 200
    together = threading.Barrier(count)

    def ask(number: int) -> dict[str, Any]:
        together.wait()
        # The clock stands still, and with it the signs of life; a busy machine takes its time.
        return call(JOB, "view", folder, heard_within_s=120, number=number)

    try:
        with ThreadPoolExecutor(count) as callers:
            answers = list(callers.map(ask, range(count)))
        assert answers == [{"command": "view", "number": number} for number in range(count)]
    finally:
        server.close()


def test_whoever_waits_for_an_answer_is_told_that_it_is_coming(folder: Path, clock: SetClock):
    may_end = threading.Event()

    def slow(request: Request) -> dict[str, Any]:
        may_end.wait()
        return {"command": request.command}

    server = ControlServer(JOB, slow, clock=clock, folder=folder)
    try:
        with caller_of(server) as caller, caller.makefile("rb") as lines:
            caller.sendall(b'{"command": "stop"}\n')
            for _ in range(3):
                clock.ms += 1_000
                assert lines.readline() == b"\n"
            with ThreadPoolExecutor(1) as other:
                answered = other.submit(call, JOB, "stop", folder)
                may_end.set()
                assert answered.result() == {"command": "stop"}
            assert list(lines)[-1] == b'{"result":{"command":"stop"}}\n'
    finally:
        may_end.set()
        server.close()


def test_a_caller_that_does_not_read_its_answer_is_hung_up_on(folder: Path, clock: SetClock):
    def talk(request: Request) -> dict[str, Any]:
        return {"text": "x" * (50_000_000 if request.command == "view" else 1)}

    server = ControlServer(JOB, talk, clock=clock, folder=folder)
    try:
        with caller_of(server) as deaf:
            deaf.sendall(b'{"command": "view"}\n')
            while deaf.recv(1) == b"\n":
                pass  # not yet
            read = 1
            clock.ms += 5_000
            # Between two calls that are answered the server looks at the time.
            for _ in range(2):
                call(JOB, "short", folder)
            while part := deaf.recv(1_000_000):
                read += len(part)
            assert read < 50_000_000
        assert len(call(JOB, "view", folder)["text"]) == 50_000_000
    finally:
        server.close()


def test_a_request_that_is_never_done_does_not_keep_the_job_from_ending(folder: Path, caplog):
    may_end, begun = threading.Event(), threading.Event()

    def endless(_: Request) -> dict[str, Any]:
        begun.set()
        may_end.wait()
        return {}

    server = ControlServer(JOB, endless, clock=SetClock(runs=True), folder=folder)
    with caller_of(server) as caller:
        caller.sendall(b'{"command": "stop"}\n')
        begun.wait()
        server.close()
        assert "still at work" in caplog.text
        assert caller.makefile("rb").read().strip() == b""
    may_end.set()


def test_what_breaks_in_the_job_is_answered(folder: Path, clock: SetClock, caplog):
    server = ControlServer(JOB, lambda _: {}["gone"], clock=clock, folder=folder)
    try:
        with pytest.raises(PeerError, match="view failed in the job: KeyError: 'gone'"):
            call(JOB, "view", folder)
    finally:
        server.close()


# --- jobs that do not answer -----------------------------------------------------------------------------------------


@pytest.fixture(params=["it takes the call and is silent", "too many wait to be let in"])
def stopped(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is left of a driver whose process was stopped: the kernel goes on taking calls for it, up to a number."""
    folder.mkdir(mode=0o700)
    monkeypatch.setattr("penstock.net.control.TAKES_CALL_WITHIN_S", 1)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as other:
        listener.bind(str(folder / f"{JOB}.job"))
        if "too many" in request.param:
            listener.listen(0)
            other.connect(str(folder / f"{JOB}.job"))
        else:
            listener.listen(8)
        yield


@pytest.mark.usefixtures("stopped")
def test_a_job_that_is_stopped_is_there_and_does_not_answer(folder: Path):
    assert running_jobs(folder) == [JOB]
    assert find_job("counts", folder) == JOB
    with pytest.raises(NoAnswer, match=f"job {JOB} does not answer"):
        call(JOB, "view", folder, heard_within_s=0.1)
