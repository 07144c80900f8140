"""The control socket of a job: who may call it, what a caller gets, and what becomes of those who talk nonsense."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import PeerError, SnapshotFailed, UsageError
from penstock.net.control import ControlServer, Request, call, find_job, running_jobs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "jobs"


def echo(request: Request) -> dict[str, Any]:
    if request.command == "fail":
        raise SnapshotFailed("the disk is full", hint="free some space")
    return {"command": request.command, **request.arguments}


@pytest.fixture
def server(folder: Path):
    served = ControlServer("counts-0123abcd", echo, folder=folder)
    yield served
    served.close()


def test_a_call_is_answered(server: ControlServer, folder: Path):
    assert call("counts-0123abcd", "stop", folder, drain=True) == {"command": "stop", "drain": True}


def test_what_the_job_refuses_reaches_the_caller_with_what_to_do(server: ControlServer, folder: Path):
    with pytest.raises(PeerError) as caught:
        call("counts-0123abcd", "fail", folder)
    assert (caught.value.message, caught.value.hint) == ("the disk is full", "free some space")


@pytest.mark.parametrize("line", [b"\n", b"stop\n", b"[]\n", b'{"command": 7}\n', b"\xff\xfe\n"])
def test_nonsense_is_answered_and_the_next_caller_is_served(server: ControlServer, folder: Path, line: bytes):
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(server.path))
        caller.sendall(line)
        assert b"cannot be read" in caller.makefile("rb").readline()
    assert call("counts-0123abcd", "view", folder) == {"command": "view"}


def test_a_caller_that_hangs_up_harms_nobody(server: ControlServer, folder: Path):
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(server.path))
    assert call("counts-0123abcd", "view", folder) == {"command": "view"}


def test_only_the_user_can_open_the_folder(server: ControlServer, folder: Path):
    assert folder.stat().st_mode & 0o077 == 0
    folder.chmod(0o755)
    with pytest.raises(UsageError, match="others can enter"):
        ControlServer("other", echo, folder=folder)
    with pytest.raises(UsageError, match="others can enter"):
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
    second = ControlServer("counts-89abcdef", echo, folder=folder)
    third = ControlServer("totals-89abcdef", echo, folder=folder)
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
    first, second = (ControlServer(job, echo, folder=folder) for job in ("one-00000000", "two-00000000"))
    first.close()
    assert running_jobs(folder) == ["two-00000000"]
    second.close()
    assert not folder.exists()


def test_a_driver_that_was_taken_over_from_leaves_the_socket_of_the_one_that_has_the_job(folder: Path):
    old = ControlServer("counts", lambda _: {"driver": "old"}, folder=folder)
    new = ControlServer("counts", lambda _: {"driver": "new"}, folder=folder)
    old.close()
    assert call("counts", "view", folder) == {"driver": "new"}
    new.close()
    assert not folder.exists()
