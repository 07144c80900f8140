"""What a job starts from, as users say it."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.api.restoring import restore
from penstock.core.errors import UsageError
from penstock.core.recovery.metadata import Claim, MatchingRules, Unmatched


def test_a_path_alone_claims_nothing_and_wants_all_state_to_find_its_step():
    given = restore("/saved/x")
    assert (given.path, given.claim, given.rules) == ("/saved/x", Claim.NO_CLAIM, MatchingRules())


def test_every_argument_arrives():
    given = restore("s3://bucket/x", claim="claim", unmatched="ignore", drop=["a", "b"])
    assert given.path == "s3://bucket/x"
    assert given.claim is Claim.CLAIM
    assert given.rules == MatchingRules(unmatched=Unmatched.IGNORE, drop=("a", "b"))


def test_a_relative_path_starts_where_the_driver_is(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert restore(Path("saved")).path == str(tmp_path / "saved")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"path": " "}, "path is ' '"),
        ({"path": "/x", "claim": "mine"}, "claim is 'mine'; choose one of 'claim', 'no-claim', 'legacy'"),
        ({"path": "/x", "unmatched": "drop"}, "unmatched is 'drop'; choose one of 'refuse', 'ignore'"),
        ({"path": "/x", "drop": "a"}, "drop is 'a'; give a list of names"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, text):
    path = arguments.pop("path")
    with pytest.raises(UsageError, match=text):
        restore(path, **arguments)


def test_pickles_and_further_directories_are_what_the_user_says(tmp_path):
    assert restore(tmp_path).unpickle
    assert restore(tmp_path).also_in == ()
    chosen = restore(tmp_path, unpickle=False, also_in=[tmp_path / "old", "s3://bucket/x"])
    assert not chosen.unpickle
    assert chosen.also_in == (str(tmp_path / "old"), "s3://bucket/x")
    with pytest.raises(UsageError, match="give a list of directories"):
        restore(tmp_path, also_in=str(tmp_path))
