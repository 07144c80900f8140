"""What a driver on standby makes of what goes wrong while it waits. Needs no Spark."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, cast

import pytest

from penstock.core.errors import CorruptFile, JobTakenOver, StorageError
from penstock.ports import Leader
from penstock.spark import standby
from penstock.spark.job import MasterParts
from penstock.spark.standby import Standby

PARTS = cast("MasterParts", object())


class Hold:
    """A leader that notes whether it let go."""

    has_resigned = False

    def resign(self) -> None:
        self.has_resigned = True


class Script:
    """An election, and a master in the making, that do what they are told, one after the other."""

    def __init__(self, *campaigns: Any) -> None:
        self._campaigns = deque(campaigns)
        self.holds: list[Hold] = []
        self.is_closed = False
        self._build: Any = None

    def campaign(self, _lost: Any) -> Leader | None:
        told = self._campaigns.popleft()
        if told is None or (isinstance(told, tuple) and told[0] == "campaign"):
            if told is not None:
                raise told[1]
            return None
        self._build = told
        self.holds.append(Hold())
        return cast("Leader", self.holds[-1])

    def build(self, _leader: Leader) -> MasterParts:
        if isinstance(self._build, BaseException):
            raise self._build
        return PARTS

    def close(self) -> None:
        self.is_closed = True

    def seek(self, left: threading.Event | None = None) -> MasterParts | None:
        return Standby(election=self, build=self.build).seek(left or threading.Event(), lambda: None)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "POLL_S", 0)
    monkeypatch.setattr(standby, "AGAIN_S", 0)


def test_a_driver_waits_until_it_has_the_job():
    script = Script(None, None, "now")
    assert script.seek() is PARTS
    assert not script.holds[0].has_resigned


def test_storage_that_is_out_of_order_is_waited_for_and_told_once(caplog: pytest.LogCaptureFixture):
    away = StorageError("ZooKeeper at zk:2181 could not be reached")
    script = Script(("campaign", away), StorageError("no such disk"), ("campaign", away), "now")
    assert script.seek() is PARTS
    assert [hold.has_resigned for hold in script.holds] == [True, False]
    assert caplog.messages == [f"this driver cannot take the job over now, and tries again: {away}"]


def test_a_driver_that_is_taken_over_from_before_it_has_begun_waits_again():
    script = Script(JobTakenOver("too slow"), None, "now")
    assert script.seek() is PARTS
    assert [hold.has_resigned for hold in script.holds] == [True, False]


@pytest.mark.parametrize("error", [CorruptFile("chk-1/_metadata is cut"), ValueError("a bug")])
def test_what_will_not_mend_is_raised_and_the_job_let_go(error: Exception):
    script = Script(error)
    with pytest.raises(type(error)):
        script.seek()
    assert script.holds[0].has_resigned


def test_a_driver_that_leaves_is_not_waited_for():
    left = threading.Event()
    left.set()
    script = Script()
    assert script.seek(left) is None
    assert script.is_closed
