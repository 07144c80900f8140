"""Several drivers of one job, each a process with a Spark of its own: whatever happens to one, the job goes on with
another, and every record shows once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import lasting_driver
import pytest
from driver_processes import TIMEOUT_S, Driver, check_output, says

pytestmark = pytest.mark.slow


class Stage:
    """Drivers of the same job."""

    def __init__(self, folder: Path, meeting_place: str) -> None:
        self.folder = folder
        self._meeting_place = meeting_place
        self._drivers: list[Driver] = []

    def drivers(self, count: int) -> list[Driver]:
        """So many, whose Sparks come up at the same time."""
        for _ in range(count):
            self._drivers.append(Driver(lasting_driver.__file__, self.folder, self._meeting_place))
        return self._drivers

    def open_gate(self) -> None:
        (self.folder / "gate").touch()

    def close(self) -> None:
        for driver in self._drivers:
            driver.close()


@pytest.fixture(scope="module", params=["files", "zookeeper"])
def meeting_place(request: pytest.FixtureRequest) -> str:
    """Where drivers meet: the hosts of ZooKeeper, or nothing for a folder. Of wider scope than a test, as the server
    is."""
    return request.getfixturevalue("zookeeper").hosts if request.param == "zookeeper" else ""


@pytest.fixture
def stage(meeting_place: str, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path, meeting_place)
    yield made
    made.close()


def test_whatever_happens_to_a_driver_another_goes_on_and_never_do_two_commit(stage: Stage):
    """1. One driver has the job, and a second one waits. 2. The first is put to sleep: the second takes the job over.
    3. The first wakes up: it lets go of the job, and ends with an error that says so. 4. A third one waits, and the
    second is killed: the third goes on from a checkpoint of the second, of which the first has deleted nothing."""
    first, second, third = stage.drivers(3)
    first.take_part()
    first.wait("running", says("running", "completed"))
    second.take_part()
    second.wait("standby", says("standby"))
    first.next_checkpoint()

    first.signal(signal.SIGSTOP)
    second.wait("where it goes on", says("restored "))
    second.next_checkpoint()
    first.signal(signal.SIGCONT)
    told = first.wait("over", says("over "))
    assert told.startswith("over JobTakenOver: this driver has lost job 'numbers'")
    assert first.process.wait(TIMEOUT_S) == 0

    third.take_part()
    third.wait("standby", says("standby"))
    newest = second.next_checkpoint()
    second.signal(signal.SIGKILL)
    assert int(third.wait("where it goes on", says("restored ")).split()[1]) >= newest
    stage.open_gate()
    assert third.wait("over", says("over ")) == "over finished"
    check_output(stage.folder)
