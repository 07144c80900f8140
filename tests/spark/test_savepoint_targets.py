"""Where a savepoint goes, and when there is no place that would outlive the job."""

from __future__ import annotations

import pytest

from penstock.core.errors import UsageError
from penstock.spark.savepoint_targets import SavepointTargets


def test_a_job_with_a_checkpoint_directory_has_a_folder_for_savepoints_in_it():
    assert SavepointTargets(directory="/checkpoints").choose(None) == "/checkpoints/savepoints"
    assert SavepointTargets(directory="s3://bucket/it").choose(None) == "s3://bucket/it/savepoints"


def test_a_folder_that_was_named_is_taken_with_its_full_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for directory in ("/checkpoints", None):
        assert SavepointTargets(directory=directory).choose("saved") == f"{tmp_path}/saved"


def test_without_a_checkpoint_directory_a_folder_must_be_named():
    with pytest.raises(UsageError, match="has no checkpoint directory") as raised:
        SavepointTargets(directory=None).choose(None)
    assert "penstock stop JOB --savepoint FOLDER" in str(raised.value)


def test_a_savepoint_whose_inputs_would_go_with_the_job_is_refused_wherever_it_goes():
    with pytest.raises(UsageError, match="would need the files of 'bids', which are in a temporary folder"):
        SavepointTargets(directory=None, fleeting=("bids",)).choose("/saved")
