"""`penstock verify`: what it says, how it ends, and what it deletes."""

from __future__ import annotations

import json
import uuid

import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.cli.verify import SHOWN
from penstock.core.ids import CheckpointId, Instant, JobId
from penstock.core.recovery import layout, roots
from penstock.core.recovery.metadata import CheckpointMetadata, SnapshotKind
from penstock.storage.completed import checkpoint_ids
from penstock.storage.locations import open_store
from penstock.storage.metadata import encode_metadata

JOB = JobId("job-1f2e")
FOLDER = layout.job_folder(JOB)


def run(*arguments: str, **more):
    return CliRunner().invoke(main, ["verify", *arguments], **more)


def metadata(number: int, kind: SnapshotKind = SnapshotKind.CHECKPOINT) -> bytes:
    found = CheckpointMetadata(
        job=JOB, checkpoint=CheckpointId(number), timestamp=Instant(1_700_000_000_000), kind=kind
    )
    return encode_metadata(found)


def keep(store, number: int = 7) -> None:
    """A job that is over and kept a checkpoint."""
    store.write(layout.metadata_file(FOLDER, CheckpointId(number)), metadata(number))
    checkpoint_ids(store, FOLDER).advance(CheckpointId(number + 1))


@pytest.fixture(params=["path", "s3"])
def location(request, tmp_path) -> str:
    if request.param == "path":
        return str(tmp_path / "checkpoints")
    return request.getfixturevalue("s3").uri(f"verify/{uuid.uuid4()}")


@pytest.fixture
def store(location):
    return open_store(location)


def test_a_sound_directory_is_fine(location, store):
    keep(store)
    store.write("savepoints/savepoint-job-8/_metadata", metadata(8, SnapshotKind.SAVEPOINT))
    result = run(location)
    assert result.exit_code == 0
    for part in (
        "job-1f2e/chk-7",
        "kept",
        "Checkpoint",
        "2023-11-14 22:13:20 UTC",
        "savepoint-job-8",
        "Savepoint",
        "ok",
    ):
        assert part in result.stdout
    assert result.stdout.splitlines()[-1] == "fine: 2 of 2 snapshots could be restored"


def test_what_is_wrong_is_told_and_shows_in_the_exit_code(location, store):
    keep(store)
    store.write("job-1f2e/chk-7/_metadata", metadata(7)[:-1])
    result = run(location)
    assert result.exit_code == 1
    assert "WRONG" in result.stdout
    assert "problem: job-1f2e/chk-7: job-1f2e/chk-7/_metadata has" in result.stdout
    assert result.stdout.splitlines()[-1] == "WRONG: 1 problems, in 1 of 1 snapshots"


def test_a_job_a_checkpoint_and_a_savepoint_can_be_looked_at_by_themselves(location, store):
    keep(store)
    keep(store, 8)
    store.write("other/chk-1/_metadata", b"broken")
    store.write("save/savepoint-job-9/_metadata", metadata(9, SnapshotKind.SAVEPOINT))
    store.write("moved/_metadata", metadata(9, SnapshotKind.SAVEPOINT))
    assert run(location).exit_code == 1
    for below, snapshots in (("job-1f2e", 2), ("job-1f2e/chk-8", 1), ("save/savepoint-job-9", 1), ("moved", 1)):
        result = run(roots.below(location, below), "--json")
        assert result.exit_code == 0, below
        assert len(json.loads(result.stdout)["snapshots"]) == snapshots
    assert run(roots.below(location, "other/chk-1")).exit_code == 1


def test_json_has_a_stable_shape(location, store):
    keep(store)
    store.write("job-1f2e/chk-6/x", b"")
    result = run(location, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "location": roots.shown(location),
        "fine": True,
        "snapshots": [
            {
                "location": "job-1f2e/chk-7",
                "standing": "kept",
                "job": "job-1f2e",
                "checkpoint": 7,
                "kind": "checkpoint",
                "triggered_ms": 1_700_000_000_000,
                "size_bytes": 0,
                "files": 0,
                "operators": 0,
                "parallelism": 0,
                "problems": [],
            }
        ],
        "problems": [],
        "leftovers": [{"path": "job-1f2e/chk-6/x", "kind": "orphan", "temporary": False}],
        "deleted": [],
    }


def test_a_snapshot_that_cannot_be_read_has_nothing_to_tell(location, store):
    keep(store)
    store.write("job-1f2e/chk-7/_metadata", b"")
    (snapshot,) = json.loads(run(location, "--json").stdout)["snapshots"]
    unknown = {name for name, value in snapshot.items() if value is None}
    assert unknown == {"job", "checkpoint", "kind", "triggered_ms", "size_bytes", "files", "operators", "parallelism"}
    assert "is cut" in snapshot["problems"][0]


@pytest.mark.parametrize(("answer", "gone"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_orphans_are_deleted_after_asking(location, store, answer, gone):
    keep(store)
    for path in ("job-1f2e/chk-6/x", "job-1f2e/chk-7/late", "job-1f2e/notes/mine"):
        store.write(path, b"")
    before = store.list_files("")
    result = run(location, "--delete-orphans", input=answer)
    assert result.exit_code == 0
    assert "delete 2 orphans?" in result.stdout
    kept = [path for path in before if path not in ("job-1f2e/chk-6/x", "job-1f2e/chk-7/late")]
    assert store.list_files("") == (kept if gone else before)
    assert result.stdout.splitlines()[-1].endswith("; 2 deleted") == gone


def test_what_a_running_job_may_need_is_deleted_only_if_it_is_said_that_none_runs(location, store):
    keep(store)
    store.write("job-1f2e/chk-8/x", b"")
    result = run(location, "--delete-orphans", "--yes")
    assert "1 unfinished files" in result.stdout
    assert "--job-ended" in result.stdout
    assert "job-1f2e/chk-8/x" in store.list_files("")
    result = run(location, "--delete-orphans", "--yes", "--job-ended", "--json")
    assert json.loads(result.stdout)["deleted"] == ["job-1f2e/chk-8/x"]
    assert "job-1f2e/chk-8/x" not in store.list_files("")
    assert run(location).stdout.splitlines()[-1] == "fine: 1 of 1 snapshots could be restored"


def test_what_there_is_of_a_savepoint_whose_driver_died_is_named_and_goes_when_no_job_runs(tmp_path):
    store = open_store(tmp_path)
    store.write("saved/savepoint-job-9/_metadata", metadata(9, SnapshotKind.SAVEPOINT))
    store.write("saved/savepoint-job-12/counts-0-0", b"state")
    (tmp_path / "saved/savepoint-job-12/.writing-1").write_bytes(b"half")
    for location, start in ((tmp_path, "saved/"), (tmp_path / "saved", "")):
        result = run(str(location), "--delete-orphans", "--yes")
        assert result.exit_code == 0
        assert f"  {start}savepoint-job-12/counts-0-0\n" in result.stdout
        assert f"  {start}savepoint-job-12 is a savepoint without metadata" in result.stdout
        assert result.stdout.splitlines()[-1] == "fine: 1 of 1 snapshots could be restored; 2 unfinished files"
    alone = run(str(tmp_path / "saved/savepoint-job-12"))
    assert "  counts-0-0\n" in alone.stdout
    run(str(tmp_path / "saved"), "--delete-orphans", "--yes", "--job-ended")
    assert [path.name for path in (tmp_path / "saved").iterdir()] == ["savepoint-job-9"]
    assert run(str(tmp_path)).stdout.splitlines()[-1] == "fine: 1 of 1 snapshots could be restored"


def test_half_written_files_are_deleted_too(tmp_path):
    store = open_store(tmp_path)
    keep(store)
    for folder in ("chk-6", "chk-7", "counter"):
        (tmp_path / FOLDER / folder).mkdir(exist_ok=True)
        (tmp_path / FOLDER / folder / ".writing-1").write_bytes(b"half")
    result = run(str(tmp_path / FOLDER), "--delete-orphans", "--yes")
    assert result.exit_code == 0
    assert "3 orphans" in result.stdout
    assert "(temporary)" in result.stdout
    assert store.list_temporary("") == []
    assert not (tmp_path / FOLDER / "chk-6").exists()
    assert run(str(tmp_path)).exit_code == 0


def test_long_lists_are_cut(tmp_path):
    store = open_store(tmp_path)
    keep(store)
    for i in range(SHOWN + 3):
        store.write(f"{FOLDER}/chk-6/{i}", b"")
    result = run(str(tmp_path))
    assert "  and 3 more" in result.stdout
    assert result.stdout.count("chk-6/") == SHOWN


@pytest.mark.parametrize("content", [None, "notes.txt", "folder/notes.txt"])
def test_a_directory_of_something_else_is_not_looked_at(tmp_path, content):
    if content:
        (tmp_path / content).parent.mkdir(exist_ok=True)
        (tmp_path / content).write_text("mine")
    result = run(str(tmp_path))
    assert result.exit_code == 2
    assert "no file of a job is in" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_job_that_has_only_begun_is_something(tmp_path):
    checkpoint_ids(open_store(tmp_path), FOLDER).advance(CheckpointId(2))
    result = run(str(tmp_path))
    assert result.exit_code == 0
    assert result.stdout == "fine: 0 of 0 snapshots could be restored\n"


def test_a_store_that_cannot_be_reached_ends_with_one_line(s3):
    result = run(s3.uri("x").replace("//bucket/", "//no-such-bucket/"))
    assert result.exit_code == 2
    assert "make the bucket" in result.stderr
    assert len(result.stderr.splitlines()) == 1
