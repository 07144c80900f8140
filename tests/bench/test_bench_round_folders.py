"""Rounds of a benchmark do not get into each other's way."""

from __future__ import annotations

from penstock.bench.round_folders import round_folder


def test_a_round_begins_although_something_still_writes_for_the_round_before(tmp_path):
    with round_folder(tmp_path, "spark-stream") as before:
        (before / "offsets").mkdir()
    assert not before.exists()
    # As a query does that is not quite over.
    (before / "offsets").mkdir(parents=True)
    with round_folder(tmp_path, "spark-stream") as place:
        assert list(place.iterdir()) == []
    assert not place.exists()
