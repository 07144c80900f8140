"""Where drivers of a job may meet, as a program chooses it; without a Spark."""

from __future__ import annotations

import sys
import uuid

import pytest

from penstock.api.high_availability import ha_files
from penstock.core.errors import UsageError
from penstock.core.ids import JobId
from penstock.spark.standby import open_election
from penstock.storage.locations import open_store

JOB = JobId("orders")


@pytest.fixture
def root(s3):
    return s3.uri(f"meeting/{uuid.uuid4()}")


def test_drivers_that_meet_in_an_object_store_have_a_job_one_after_the_other(root):
    first, second = (open_election(ha_files(root, lease="1s"), JOB, open_store(root)) for _ in range(2))
    leader = first.campaign(lambda: None)
    assert leader is not None
    assert second.campaign(lambda: None) is None
    leader.resign()
    third = open_election(ha_files(root, lease="1s"), JOB, open_store(root)).campaign(lambda: None)
    assert third is not None
    assert (leader.tenure.term, third.tenure.term) == (0, 1)
    third.resign()


def test_drivers_cannot_meet_where_nobody_can_tell_who_was_first(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(
        UsageError, match=r"drivers cannot meet in s3://bucket/meeting/.*object-storage is not"
    ) as caught:
        open_election(ha_files(root), JOB, open_store(root))
    assert "install penstock[object-storage]" in caught.value.hint
