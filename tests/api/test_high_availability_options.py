"""Where drivers meet: what can be chosen, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.api.high_availability import InFiles, InZooKeeper, ha_files, zookeeper
from penstock.core.errors import SettingsError


def test_a_folder_is_taken_by_its_absolute_path(tmp_path: Path):
    expected = InFiles(location=str(tmp_path), lease_ms=2_000, restart_finished=True)
    assert ha_files(tmp_path, lease="2s", restart_finished=True) == expected


def test_zookeeper_has_hosts_and_a_root():
    found = zookeeper("one:2181,two:2181", root="/a/b", session_timeout="4s")
    assert found == InZooKeeper(
        hosts="one:2181,two:2181", root="/a/b", session_timeout_ms=4_000, restart_finished=False
    )


def test_an_object_store_is_taken_by_its_uri():
    assert ha_files("s3://bucket/x?region=eu") == InFiles(
        location="s3://bucket/x?region=eu", lease_ms=10_000, restart_finished=False
    )


@pytest.mark.parametrize("directory", ["", "hdfs://name-node/folder", "abfs://bucket/folder", 7])
def test_a_place_that_cannot_tell_who_was_first_is_refused(directory):
    with pytest.raises(SettingsError, match="directory"):
        ha_files(directory)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"hosts": ""}, "hosts"),
        ({"hosts": "a b"}, "hosts"),
        ({"hosts": "one:2181", "root": "penstock"}, "root"),
        ({"hosts": "one:2181", "root": "/a/../b"}, "root"),
        ({"hosts": "one:2181", "session_timeout": "10ms"}, "session_timeout"),
    ],
)
def test_what_zookeeper_could_not_take_is_refused(arguments, text):
    with pytest.raises(SettingsError, match=text):
        zookeeper(**arguments)
