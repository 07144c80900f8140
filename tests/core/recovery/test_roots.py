"""Roots of stores: which are paths and which are URIs, and what lies below them."""

from __future__ import annotations

import pytest

from penstock.core.ids import CheckpointId, JobId
from penstock.core.recovery import roots
from penstock.core.recovery.layout import savepoint_root

ENDPOINT = "endpoint_override=127.0.0.1:9000&scheme=http"


@pytest.mark.parametrize(
    ("root", "scheme"),
    [
        ("/var/checkpoints", None),
        ("checkpoints", None),
        ("C:/checkpoints", None),
        ("odd:name", None),
        ("file:/var/checkpoints", "file"),
        ("FILE:///var/checkpoints", "file"),
        ("s3://bucket/folder", "s3"),
        ("GS://bucket", "gs"),
        ("hdfs:/folder", "hdfs"),
    ],
)
def test_a_root_is_a_uri_if_it_begins_with_a_scheme(root, scheme):
    assert roots.scheme_of(root) == scheme
    assert roots.is_local(root) == (scheme in (None, "file"))


@pytest.mark.parametrize(
    "root",
    [
        "/var/x",
        "x",
        "file:///var/x",
        f"s3://bucket/x?{ENDPOINT}",
        "s3://bucket",
        "hdfs:/x",
        "hdfs://ada@name-node:8020/x",
    ],
)
def test_nothing_speaks_against_a_root_of_a_known_kind(root):
    assert roots.problem_with(root) is None


@pytest.mark.parametrize(
    ("root", "said"),
    [
        ("", "is not a directory"),
        (" ", "is not a directory"),
        ("a\0b", "is not a directory"),
        ("http://host/x", "no file system is known by 'http'"),
        ("s3:/bucket/x", "names no bucket"),
        ("s3:///x", "names no bucket"),
        ("gs://?scheme=http", "names no bucket"),
        (f"s3://key:secret@bucket/x?{ENDPOINT}", "a password in it"),
    ],
)
def test_a_root_that_cannot_be_used_is_told_with_the_reason(root, said):
    problem = roots.problem_with(root)
    assert problem is not None
    assert said in problem
    assert "secret" not in problem


@pytest.mark.parametrize(
    ("root", "text"),
    [
        ("/var/50%?", "/var/50%?"),
        (f"s3://bucket/x?{ENDPOINT}", "s3://bucket/x"),
        ("s3://key:se@cret@bucket/x", "s3://bucket/x"),
        ("hdfs://ada@name-node/x", "hdfs://ada@name-node/x"),
    ],
)
def test_people_see_a_root_without_options_and_passwords(root, text):
    assert roots.shown(root) == text


@pytest.mark.parametrize(
    ("root", "name", "location"),
    [
        ("/var/x", "a/b", "/var/x/a/b"),
        ("/var/x/", "50%", "/var/x/50%"),
        ("/", "a", "/a"),
        ("x?y", "a", "x?y/a"),
        (f"s3://bucket/x?{ENDPOINT}", "a", f"s3://bucket/x/a?{ENDPOINT}"),
        ("s3://bucket/x/", "%2Ea", "s3://bucket/x/%252Ea"),
        ("file:///var/x", "50%", "file:///var/x/50%25"),
    ],
)
def test_a_name_goes_below_the_path_of_a_root_and_can_be_taken_off_again(root, name, location):
    assert roots.below(root, name) == location
    parent, last = roots.split(location)
    assert roots.below(parent, last) == location
    assert last == name.rpartition("/")[2]


def test_a_savepoint_lies_below_its_target_whatever_options_that_has():
    location = savepoint_root(f"s3://bucket/save/?{ENDPOINT}", JobId("50%"), CheckpointId(7))
    assert location == f"s3://bucket/save/savepoint-50%2525-7?{ENDPOINT}"
    assert roots.split(location) == (f"s3://bucket/save?{ENDPOINT}", "savepoint-50%25-7")
