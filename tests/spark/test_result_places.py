"""Which places are believed that a record says parts on the driver keep files in."""

from __future__ import annotations

import pytest

from penstock.core.errors import CorruptFile
from penstock.spark.result_places import check_known

WANTED = "results/job/sink"


@pytest.mark.parametrize("place", ["/l/results/job/sink", "/l/results/job/sink/token", WANTED, f"{WANTED}/token"])
def test_places_of_the_operator_are_believed_whatever_the_landing_folder_was(place):
    assert check_known(place, WANTED) == place


@pytest.mark.parametrize(
    "place",
    [
        "/var/other",
        "/l/results/job/other",
        "/l/results/other/sink",
        "/l/results/job/sink/a/b",
        "/l/results/job/sink/..",
        "/l/../results/job/sink",
        "/l//results/job/sink",
        "../results/job/sink",
        "/l/results/job/sink/\0",
        "",
        "/",
    ],
)
def test_any_other_place_is_refused(place):
    with pytest.raises(CorruptFile, match="where no operator can keep"):
        check_known(place, WANTED)
