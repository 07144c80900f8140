"""The lease of a driver that meets others in a folder, when that folder fails it."""

from __future__ import annotations

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


def test_a_full_disk_is_an_error_of_the_storage_and_leaves_no_lease_behind(tmp_path):
    """Whoever waits on standby waits for the storage then; another kind of error would end it."""
    lease = tmp_path / layout.lease_file(JOB, Term(0))
    lease.parent.mkdir(parents=True)
    lease.symlink_to("/dev/full")
    election = FileElection(FileStore(tmp_path), JOB, lease_ms=1_000, anew=False, clock_ms=lambda: 0.0)
    with pytest.raises(StorageError, match=r"the lease .* could not be written: No space left on device"):
        election.campaign(lambda: None)
    assert Path("/dev/full") not in open_files()
