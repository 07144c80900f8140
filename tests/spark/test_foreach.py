"""When a function that is handed results is called, and called again. No Spark: a frame is a list of files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from commits_rig import hold_that

from penstock.api.hold import HoldUnknown
from penstock.core.errors import CorruptFile, JobTakenOver, StorageError
from penstock.spark.foreach import LandedResults

A, B = "s0-p2-e1-0.parquet", "s1-p2-e1-0.parquet"


class Function:
    """What a user gives; raises as long as it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], int]] = []
        self.raises = False

    def __call__(self, frame: list[str], checkpoint: int) -> None:
        self.calls.append((frame, checkpoint))
        if self.raises:
            raise ValueError("no")


def files_of(*uris: str) -> list[str]:
    return [uri.rsplit("/", 1)[1] for uri in uris]


@pytest.fixture
def function() -> Function:
    return Function()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "results" / "job" / "sink"
    made.mkdir(parents=True)
    return made


class Session:
    """Reads files, when it is active."""

    _jvm = "java"
    _jsparkSession = "session"  # noqa: N815  # PySpark's name

    def __init__(self) -> None:
        self._is_active = False

    def _get_j_spark_session_class(self, java: str) -> SimpleNamespace:
        assert java == self._jvm
        return SimpleNamespace(setActiveSession=self._activate)

    @property
    def sparkContext(self) -> SimpleNamespace:  # noqa: N802  # PySpark's name
        return SimpleNamespace(setJobGroup=lambda _group, _description: None)

    def _activate(self, session: str) -> None:
        assert session == self._jsparkSession
        self._is_active = True

    @property
    def read(self) -> SimpleNamespace:
        assert self._is_active
        return SimpleNamespace(parquet=files_of)


@pytest.fixture
def committer(folder, function):
    return LandedResults(folder, Session(), function).committer()


@pytest.fixture
def prepared(folder) -> list[bytes]:
    for name in (A, B):
        (folder / name).touch()
    return [str(folder / name).encode() for name in (A, B)]


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_a_function_that_raises_is_called_again_with_the_same(committer, function, folder, prepared):
    function.raises = True
    with pytest.raises(ValueError, match="no"):
        committer.commit(7, prepared)
    assert names(folder) == [A, B]
    function.raises = False
    committer.commit(7, prepared)
    assert function.calls == [([A, B], 7)] * 2
    assert names(folder) == []


def test_a_function_that_has_returned_is_not_called_again(committer, function, prepared):
    """The checkpoint in which this is on record may not have completed when the job restarts."""
    committer.commit(7, prepared)
    committer.commit(7, prepared)
    assert function.calls == [([A, B], 7)]


def test_what_earlier_attempts_left_goes_but_for_what_will_be_committed(committer, folder):
    """Also that of other subtasks, of another parallelism: whoever carries it now, all of it is kept."""
    for name in ("s0-p3-e1-0", "s1-p3-e1-0", "s0-p2-e2-1", "s0-p3-e3-0"):
        (folder / f"{name}.parquet").touch()
    committer.clean_up("job", 3, [str(folder / "s1-p3-e1-0.parquet").encode()])
    assert names(folder) == ["s0-p3-e3-0.parquet", "s1-p3-e1-0.parquet"]


def test_a_driver_that_ended_while_it_deleted_goes_on_deleting(committer, function, folder, prepared):
    """1. The function has returned, which is on record. 2. The driver ends with one of two files deleted."""
    (folder / "returned-7").touch()
    (folder / A).unlink()
    committer.commit(7, prepared)
    assert function.calls == []
    assert names(folder) == []


def test_files_that_are_missing_without_a_reason_are_told(committer, function, folder, prepared):
    (folder / B).unlink()
    with pytest.raises(StorageError, match=r"1 of 2 files of checkpoint 7 are missing, the first of them .*/s1-p2"):
        committer.commit(7, prepared)
    assert function.calls == []


def test_what_is_owed_stays_when_the_job_ends_and_nothing_else_does(committer, folder, prepared, tmp_path):
    committer.close(owes=True)
    assert names(folder) == [A, B]
    committer.close(owes=False)
    assert list(tmp_path.iterdir()) == []


LOST, AWAY = JobTakenOver("another driver has it"), StorageError("the records are away")


def test_a_driver_that_has_lost_the_job_does_not_call_the_function(committer, function, folder, prepared):
    committer.hold = hold_that(LOST)
    with pytest.raises(JobTakenOver):
        committer.commit(7, prepared)
    assert (function.calls, names(folder)) == ([], [A, B])


def test_a_driver_that_loses_the_job_while_the_function_runs_deletes_nothing(committer, function, folder, prepared):
    committer.hold = hold_that(None, LOST)
    with pytest.raises(JobTakenOver):
        committer.commit(7, prepared)
    assert (len(function.calls), names(folder)) == (1, [A, B])


def test_a_function_that_returned_in_doubt_is_not_called_again(committer, function, folder, prepared):
    committer.hold = hold_that(None, AWAY, AWAY)
    with pytest.raises(HoldUnknown):
        committer.commit(7, prepared)
    assert names(folder) == ["returned-7", A, B]
    committer.commit(7, prepared)
    assert (len(function.calls), names(folder)) == (1, [])


# --- snapshots of somebody else --------------------------------------------------------------------------------------


@pytest.fixture
def victim(tmp_path) -> Path:
    made = tmp_path / "private" / A
    made.parent.mkdir()
    made.write_bytes(b"mine")
    return made


@pytest.mark.parametrize("way", ["alone", "second", "up", "down", "relative", "name", "nul", "bytes"])
def test_a_file_elsewhere_is_neither_handed_on_nor_deleted(committer, function, folder, prepared, victim, way):
    """That the function has returned is what somebody may have written: without it, the file would have to be one that
    Spark can read."""
    crafted = {
        "alone": [str(victim)],
        "second": [prepared[0].decode(), str(victim)],
        "up": [f"{folder}/../../../private/{A}"],
        "down": [f"{folder}/a/b/{A}"],
        "relative": [f"results/job/sink/{A}"],
        "name": [f"{folder}/important.parquet"],
        "nul": [f"{folder}/\0/{A}"],
        "bytes": [f"{folder}/"],
    }[way]
    encoded = [text.encode() for text in crafted] + ([b"\xff"] if way == "bytes" else [])
    for place in (folder, victim.parent):
        (place / "returned-7").touch()
    (folder / "important.parquet").touch()
    with pytest.raises(CorruptFile, match="no job prepares results there"):
        committer.commit(7, encoded)
    assert victim.read_bytes() == b"mine"
    assert names(folder) == ["important.parquet", "returned-7", A, B]
    assert function.calls == []


@pytest.mark.parametrize("way", ["folder", "file"])
def test_no_link_is_followed_to_results(committer, function, folder, victim, way):
    if way == "folder":
        (folder.parent / "link").symlink_to(victim.parent)
        with pytest.raises(StorageError, match="symbolic link"):
            committer.commit(7, [str(folder.parent / "link" / A).encode()])
    else:
        (folder / A).symlink_to(victim)
        committer.commit(7, [str(folder / A).encode()])
    assert victim.read_bytes() == b"mine"
    assert function.calls == []


def test_a_folder_of_results_that_became_a_link_is_not_emptied(committer, folder, victim):
    folder.parent.rename(folder.parent.with_name("aside"))
    (victim.parent / folder.name).mkdir()
    (victim.parent / folder.name / A).write_bytes(b"mine")
    folder.parent.symlink_to(victim.parent)
    committer.close(owes=False)
    assert (victim.parent / folder.name / A).read_bytes() == b"mine"
