"""Drivers of one job, each a process with a Spark of its own, that say on standard output how it goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import lasting_driver
import pyarrow.parquet as pq
import pytest

TIMEOUT_S = 240


class Driver:
    """A driver in a process of its own, and what it says."""

    def __init__(self, program: str, folder: Path, meeting_place: str = "", *, inside: Sequence[str] = ()) -> None:
        """`program` is the file of one like `lasting_driver`, `inside` what has it run on a host of its own."""
        command = [*inside, sys.executable, program, str(folder), meeting_place]
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


def says(*words: str) -> Callable[[str], bool]:
    return lambda line: line.startswith(words)


def completed(least: int) -> Callable[[str], bool]:
    return lambda line: line.startswith("completed ") and int(line.split()[1]) >= least


def check_output(folder: Path) -> None:
    """Every record that `lasting_driver` writes is there once, and the source was asked for its splits once."""
    rows = [row for file in (folder / "out").glob("*.parquet") for row in pq.read_table(file).to_pylist()]
    shown = Counter((row["split"], row["number"]) for row in rows)
    expected = {(f"split-{s}", n) for s in range(lasting_driver.SPLITS) for n in range(lasting_driver.ROWS)}
    assert (set(shown), set(shown.values())) == (expected, {1})
    assert len((folder / "asked").read_text().splitlines()) == 1
