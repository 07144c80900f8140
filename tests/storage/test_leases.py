"""The lease of a driver that meets others in a folder, when that folder fails it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from penstock.core.errors import StorageError
from penstock.core.ids import JobId, Term
from penstock.core.recovery import layout
from penstock.storage.election import FileElection
from penstock.storage.files import FileStore

JOB = layout.job_folder(JobId("job"))


def open_files() -> list[Path]:
    return [each.readlink() for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]


def election_in(folder: Path) -> FileElection:
    return FileElection(FileStore(folder), JOB, lease_ms=1_000, anew=False, clock_ms=lambda: 0.0)


def test_a_full_disk_is_an_error_of_the_storage_and_leaves_no_lease_behind(tmp_path, monkeypatch):
    """Whoever waits on standby waits for the storage then; another kind of error would end it."""

    def no_space(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", no_space)
    with pytest.raises(StorageError, match=r"the lease .* could not be written: No space left on device"):
        election_in(tmp_path).campaign(lambda: None)
    assert tmp_path / layout.lease_file(JOB, Term(0)) not in open_files()


# --- leases of somebody who can write to the directory ---------------------------------------------------------------


@pytest.mark.parametrize("way", ["link", "hard link", "pipe"])
def test_a_driver_writes_its_lease_into_no_file_that_was_there(tmp_path, way):
    victim, lease = tmp_path / "victim", tmp_path / "d" / layout.lease_file(JOB, Term(0))
    victim.write_bytes(b"mine")
    lease.parent.mkdir(parents=True)
    {"link": lease.symlink_to, "hard link": lease.hardlink_to, "pipe": lambda _: os.mkfifo(lease)}[way](victim)
    leader = election_in(tmp_path / "d").campaign(lambda: None)
    assert leader is not None
    leader.resign()
    assert victim.read_bytes() == b"mine"
    assert lease.read_bytes().startswith(b"resigned")


def test_a_folder_of_leases_that_is_a_link_is_not_followed(tmp_path):
    private, leases = tmp_path / "private", tmp_path / "d" / layout.leases_folder(JOB)
    private.mkdir()
    (private / "+notes").write_bytes(b"mine")
    leases.parent.mkdir(parents=True)
    leases.symlink_to(private)
    with pytest.raises(StorageError, match="symbolic link"):
        election_in(tmp_path / "d").campaign(lambda: None)
    assert [path.name for path in private.iterdir()] == ["+notes"]


@pytest.mark.parametrize("way", ["link", "pipe", "large"])
def test_a_lease_that_is_none_keeps_nobody_waiting_and_takes_no_memory(tmp_path, way):
    first = election_in(tmp_path).campaign(lambda: None)
    assert first is not None
    first.resign()
    lease = tmp_path / layout.lease_file(JOB, Term(0))
    lease.unlink()
    if way == "link":
        lease.symlink_to("/dev/zero")
    elif way == "pipe":
        os.mkfifo(lease)
    else:
        with lease.open("wb") as file:
            file.truncate(1 << 42)
    for look in (lambda: election_in(tmp_path).campaign(lambda: None), election_in(tmp_path).is_held):
        with pytest.raises(StorageError, match=f"reading {lease} failed"):
            look()
