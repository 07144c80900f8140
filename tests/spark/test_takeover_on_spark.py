"""Several drivers of one job, each a process with a Spark of its own: whatever happens to one, the job goes on with
another, and every record shows once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import lasting_driver
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.slow

TIMEOUT_S = 240


class Driver:
    """A driver in a process of its own, and what it says."""

    def __init__(self, folder: Path, meeting_place: str) -> None:
        command = [sys.executable, lasting_driver.__file__, str(folder), meeting_place]
        self._errors = (folder / f"errors-{len(list(folder.glob('errors-*')))}").open("w+")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            start_new_session=True,
        )
        self._said: list[str] = []
        self._news = threading.Condition()
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def wait(self, what: str, holds: Callable[[str], bool]) -> str:
        """What it says, when it says something that `holds`."""
        with self._news:
            heard = self._news.wait_for(
                lambda: any(map(holds, self._said)) or self._said[-1:] == ["gone"], timeout=TIMEOUT_S
            )
            found = next(filter(holds, self._said), None)
        if not heard or found is None:
            self._errors.seek(0)
            pytest.fail(f"the driver never said {what}; it said {self._said}\n{self._errors.read()}")
        return found

    def take_part(self) -> None:
        """Have the job, or wait for it: not before it has a Spark."""
        self.wait("ready", says("ready"))
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def next_checkpoint(self) -> int:
        """Of those that it completes from now on, one."""
        newest = max((int(line.split()[1]) for line in list(self._said) if line.startswith("completed ")), default=0)
        return int(self.wait("another checkpoint", completed(newest + 1)).split()[1])

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        # With all that it started: a Spark whose driver was killed needs a moment to notice.
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._listener.join()
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            assert stream is not None
            stream.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._hear(line.strip())
        self._hear("gone")

    def _hear(self, line: str) -> None:
        with self._news:
            self._said.append(line)
            self._news.notify_all()


class Stage:
    """Drivers of the same job."""

    def __init__(self, folder: Path, meeting_place: str) -> None:
        self.folder = folder
        self._meeting_place = meeting_place
        self._drivers: list[Driver] = []

    def drivers(self, count: int) -> list[Driver]:
        """So many, whose Sparks come up at the same time."""
        for _ in range(count):
            self._drivers.append(Driver(self.folder, self._meeting_place))
        return self._drivers

    def open_gate(self) -> None:
        (self.folder / "gate").touch()

    def check_output(self) -> None:
        """Every record is there once, and the source was asked for its splits once."""
        rows = [row for file in (self.folder / "out").glob("*.parquet") for row in pq.read_table(file).to_pylist()]
        shown = Counter((row["split"], row["number"]) for row in rows)
        expected = {(f"split-{s}", n) for s in range(lasting_driver.SPLITS) for n in range(lasting_driver.ROWS)}
        assert (set(shown), set(shown.values())) == (expected, {1})
        assert len((self.folder / "asked").read_text().splitlines()) == 1

    def close(self) -> None:
        for driver in self._drivers:
            driver.close()


def says(*words: str) -> Callable[[str], bool]:
    return lambda line: line.startswith(words)


def completed(least: int) -> Callable[[str], bool]:
    return lambda line: line.startswith("completed ") and int(line.split()[1]) >= least


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
    assert told.startswith("over JobTakenOver: another driver has job 'numbers'")
    assert first.process.wait(TIMEOUT_S) == 0

    third.take_part()
    third.wait("standby", says("standby"))
    newest = second.next_checkpoint()
    second.signal(signal.SIGKILL)
    assert int(third.wait("where it goes on", says("restored ")).split()[1]) >= newest
    stage.open_gate()
    assert third.wait("over", says("over ")) == "over finished"
    stage.check_output()
