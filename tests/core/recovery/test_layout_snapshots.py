"""Where in-flight data and savepoints lie."""

from __future__ import annotations

import pytest

from penstock.core.ids import CheckpointId, JobId, OperatorId
from penstock.core.recovery import layout


def test_in_flight_data_lies_in_the_folder_of_its_checkpoint_one_file_per_slot():
    job = layout.job_folder(JobId("hot auctions"))
    paths = [layout.channel_state_file(job, CheckpointId(7), slot) for slot in (0, 1)]
    assert paths == ["hot%20auctions/chk-7/channels-0", "hot%20auctions/chk-7/channels-1"]


@pytest.mark.parametrize("target", ["save", "save/"])
def test_a_savepoint_has_a_folder_of_its_own_below_the_one_that_was_named(target):
    folder = layout.savepoint_root(target, JobId("hot/auctions"), CheckpointId(12))
    assert folder == "save/savepoint-hot%2Fauctions-12"


def test_a_savepoint_whose_folder_is_not_free_has_another_that_is_known_as_one_too():
    folder = layout.savepoint_root("save", JobId("job"), CheckpointId(12), choice=3)
    assert folder == "save/savepoint-job-12-3"
    assert layout.is_savepoint_folder("savepoint-job-12-3")


def test_files_of_a_checkpoint_are_told_from_pointers_and_from_those_of_other_jobs():
    job = layout.job_folder(JobId("job"))
    own = layout.metadata_file(job, CheckpointId(3))
    assert layout.checkpoint_folder_of(job, own) == layout.checkpoint_folder(job, CheckpointId(3))
    other = layout.metadata_file(layout.job_folder(JobId("job2")), CheckpointId(3))
    for path in (
        layout.completed_file(job, CheckpointId(3)),
        other,
        f"{job}/chk-3",
        f"{job}/chk-3x/a",
        f"{job}/chk-²/a",
    ):
        assert layout.checkpoint_folder_of(job, path) is None


def test_folders_are_known_by_their_names():
    job = layout.job_folder(JobId("job"))
    assert layout.checkpoint_number(layout.checkpoint_folder(job, CheckpointId(12)).rpartition("/")[2]) == 12
    for name in ("chk-", "chk-x", "chk-1x", "chk-²", "12", "shared"):
        assert layout.checkpoint_number(name) is None
    root = layout.savepoint_root("/save", JobId("my-job"), CheckpointId(7))
    assert layout.is_savepoint_folder(root.rpartition("/")[2])
    for name in ("savepoint-7", "savepoint-job-x", "checkpoint-job-7", "savepoints"):
        assert not layout.is_savepoint_folder(name)
    for path in (layout.shared_folder(job), layout.completed_folder(job), layout.metadata_file(job, CheckpointId(1))):
        assert layout.is_job_folder_with(path.split("/")[1])
    for name in ("savepoints", "_metadata", "savepoint-job-7"):
        assert not layout.is_job_folder_with(name)


def test_the_folder_of_a_name_is_never_taken_for_that_of_a_job():
    for name in ("shared", "chk-1", "completed"):
        top, folder = layout.name_folder(name).split("/")
        assert top == "names"
        assert not layout.is_job_folder_with(folder)


def test_all_results_of_a_job_lie_in_one_folder():
    job = layout.job_folder(JobId("my job"))
    assert layout.results_folder(job, OperatorId("write")).startswith(f"{layout.results_of_job(job)}/")
