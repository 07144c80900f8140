"""Which paths in the records of a job are believed, when others can write to the checkpoint directory."""

from __future__ import annotations

from typing import Any

import pytest
from completed_records import completed

from penstock.core.errors import CorruptFile
from penstock.core.ids import CheckpointId, JobId
from penstock.core.job.events import JobState
from penstock.core.messages import StateFile
from penstock.core.recovery import layout
from penstock.core.recovery.believing import Grounds, believed, believed_record, is_straight
from penstock.core.recovery.metadata import Claim, CompletedCheckpoint, DiscardRules, SharedFile, SnapshotKind
from penstock.core.recovery.tenure import Foreign, JobOutcome, Tenure

FOLDER = layout.job_folder(JobId("job"))
GROUNDS = Grounds(job=FOLDER, directory=("/checkpoints", "s3://bucket/checkpoints"))
GOES = DiscardRules(subsumed=True, finished=True, cancelled=True, failed=True)


def claimed(folder: str, *names: str, **changes: Any) -> CompletedCheckpoint:
    """The record of a savepoint that the job was started from, and owns."""
    files = tuple(f"{folder}/{name}" for name in names)
    known = {"location": folder, "path": f"{folder}/_metadata", "claim": Claim.CLAIM, "discard": GOES}
    return completed(4, **{**known, "private_files": files, "kind": SnapshotKind.SAVEPOINT, **changes})


def shared(path: str | None, *, owned: bool = True) -> SharedFile:
    file = StateFile(path=path, size=4, checksum=1, shared_key="key", inline=b"" if path is None else None)
    return SharedFile(file=file, created_by=CheckpointId(4), owned=owned)


@pytest.mark.parametrize(
    ("path", "straight"),
    [
        ("/a/b", True),
        ("/a/b/", True),
        ("s3://bucket/a?region=eu/..", True),
        ("a/b", False),
        ("/a/../b", False),
        ("/a//b", False),
        ("/a/\0", False),
        ("s3://bucket/../a", False),
    ],
)
def test_a_path_is_straight_if_it_leads_where_its_names_say(path: str, straight: bool):
    assert is_straight(path) is straight


@pytest.mark.parametrize(
    "record",
    [
        completed(4, private_files=("job/chk-4/a",), shared_files=(shared("job/shared/S"), shared(None)), discard=GOES),
        claimed("/checkpoints/saved", "a", shared_files=(shared("/checkpoints/saved/S"),)),
        claimed("s3://bucket/checkpoints/saved", "a"),
        claimed("/checkpoints/old/chk-3", "a", shared_files=(shared("/checkpoints/old/shared/S"),)),
        completed(
            4,
            kind=SnapshotKind.SAVEPOINT,
            location="/far/savepoint-job-4",
            path="/far/savepoint-job-4/_metadata",
            private_files=("a",),
        ),
        claimed("/far/saved", "a", claim=Claim.NO_CLAIM, discard=DiscardRules()),
    ],
)
def test_a_record_as_the_job_writes_it_is_believed(record: CompletedCheckpoint):
    assert believed_record(record, GROUNDS) == record


@pytest.mark.parametrize(
    "record",
    [
        completed(4, location="/far", path="/far/_metadata"),
        completed(4, location="other/chk-4", path="other/chk-4/_metadata"),
        completed(4, path="job/chk-5/_metadata"),
        completed(4, private_files=("/far/victim",)),
        completed(4, private_files=("job/chk-4/../../other/file",)),
        completed(4, shared_files=(shared("/far/victim"),)),
        completed(4, shared_files=(shared("/far/victim", owned=False),)),
        completed(4, shared_files=(shared("other/shared/file"),)),
        completed(4, shared_files=(shared("/far/shared/../victim"),)),
        completed(4, shared_files=(shared("file:///far/victim"),)),
        claimed("/checkpoints/../far", "victim"),
        claimed("/checkpoints/x", "../../far/victim"),
        claimed("/checkpoints/x", path="/far/victim"),
        claimed("saved", "victim"),
    ],
)
def test_a_record_that_names_a_file_where_the_job_has_none_is_refused(record: CompletedCheckpoint):
    with pytest.raises(CorruptFile, match="does not lie where such a snapshot can have files"):
        believed_record(record, GROUNDS)


def test_a_snapshot_elsewhere_that_a_record_claims_is_read_and_never_deleted():
    record = claimed("/far/saved", "a", shared_files=(shared("/far/saved/S"),))
    found = believed_record(record, GROUNDS)
    assert found.claim is Claim.LEGACY
    assert found.discard == DiscardRules()
    assert [file.owned for file in found.shared_files] == [False]


def test_a_shared_file_of_another_job_is_read_and_never_deleted():
    for place in ("/far/other/shared/S", "/far/savepoint-other-1/S"):
        found = believed_record(completed(4, shared_files=(shared(place),)), GROUNDS)
        assert [file.owned for file in found.shared_files] == [False]


def test_a_shared_file_in_a_directory_that_the_user_named_is_read_and_never_deleted():
    grounds = Grounds(job=FOLDER, directory=("/checkpoints",), readable=("/far",))
    found = believed_record(completed(4, shared_files=(shared("/far/any/S"),)), grounds)
    assert [file.owned for file in found.shared_files] == [False]


def test_a_claimed_snapshot_that_the_user_named_is_the_jobs():
    record = claimed("/far/saved", "a", shared_files=(shared("/far/saved/S"),))
    assert believed_record(record, Grounds(job=FOLDER, directory=("/checkpoints",), named=("/far/saved",))) == record


def test_a_sealed_record_is_believed_wherever_its_files_lie_but_not_along_crooked_paths():
    sealed = Grounds(job=FOLDER, directory=("/checkpoints",), sealed=True)
    record = claimed("/far/saved", "a", shared_files=(shared("/far/saved/S"),))
    assert believed_record(record, sealed) == record
    with pytest.raises(CorruptFile, match="does not lie where"):
        believed_record(claimed("/far/saved", "../victim"), sealed)


def test_a_tenure_is_believed_record_by_record():
    record = claimed("/far/saved", "a")
    found = believed(Tenure(completed=(record,)), GROUNDS)
    assert found == Tenure(completed=(believed_record(record, GROUNDS),))


def test_an_outcome_has_only_files_deleted_that_may_be_the_jobs():
    foreign = (
        Foreign(folder="/checkpoints/saved", paths=("/checkpoints/saved/a", "/checkpoints/saved/../../far/victim")),
        Foreign(folder=None, paths=("/far/victim", "/checkpoints/other/a")),
        Foreign(folder="/far", paths=("/checkpoints/other/a",)),
    )
    outcome = JobOutcome(state=JobState.FAILED, foreign=foreign)
    found = believed(Tenure(outcome=outcome), GROUNDS).outcome
    assert found is not None
    assert found.foreign == (
        Foreign(folder="/checkpoints/saved", paths=("/checkpoints/saved/a",)),
        Foreign(folder=None, paths=("/checkpoints/other/a",)),
        Foreign(folder=None),
    )


def test_the_checkpoints_that_an_outcome_keeps_are_looked_at_like_all_others():
    plain = JobOutcome(state=JobState.CANCELLED)
    assert believed(Tenure(outcome=plain), GROUNDS).outcome == plain
    kept = JobOutcome(state=JobState.CANCELLED, kept=(completed(4, private_files=("/far/victim",)),))
    with pytest.raises(CorruptFile, match="does not lie where"):
        believed(Tenure(outcome=kept), GROUNDS)
