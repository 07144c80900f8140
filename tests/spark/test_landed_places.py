"""Files of DataFrames that a snapshot names are read only where a job lands DataFrames."""

from __future__ import annotations

import pytest

from penstock.core.errors import CorruptFile
from penstock.core.ids import JobId, OperatorId
from penstock.core.recovery import layout
from penstock.spark.landed_places import LandedPlaces

PART = "part-00000-6d9b-c000.snappy.parquet"


@pytest.fixture
def inputs(tmp_path):
    folder = tmp_path / "ckpt" / layout.inputs_folder(layout.job_folder(JobId("job")), OperatorId("rows of x"))
    (folder / "1-token").mkdir(parents=True)
    for file in (folder / PART, folder / "1-token" / PART, tmp_path / PART):
        file.touch()
    return folder


@pytest.mark.parametrize("below", ["", "1-token/"])
def test_landed_files_of_any_job_are_believed(inputs, below):
    LandedPlaces().check(f"{inputs}/{below}{PART}")


def test_the_landing_folder_may_be_named_in_any_way(inputs, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "ckpt")
    tail = inputs.relative_to(tmp_path / "ckpt")
    LandedPlaces().check(f"{tmp_path}/link/{tail}/{PART}")
    LandedPlaces().check(f"{tmp_path}/ckpt/../ckpt/{tail}/{PART}")


@pytest.mark.parametrize(
    "file",
    [
        "/etc/passwd",
        "{above}/" + PART,
        "{inputs}/../../../../" + PART,
        "{inputs}/1-token/../" + PART,
        "{inputs}/1-token/deep/" + PART,
        "{inputs}/_SUCCESS",
        "{inputs}/part-0.txt",
        "{inputs}/link/" + PART,
        "{inputs}/part-link.parquet",
        "{inputs}/part-\0.parquet",
        "job/inputs/op/" + PART,
        "inputs/op/" + PART,
        "",
    ],
)
def test_a_file_elsewhere_is_refused(inputs, tmp_path, file):
    (inputs / "link").symlink_to(tmp_path)
    (inputs / "part-link.parquet").symlink_to(tmp_path / PART)
    with pytest.raises(CorruptFile, match="no job lands DataFrames there") as caught:
        LandedPlaces().check(file.format(inputs=inputs, above=tmp_path))
    assert "do not use the snapshot" in caught.value.hint
