"""A job with a part on the driver wherever there can be one, and drivers that are put to sleep and killed: it goes on
with another driver, and function, data sink and table get every record once."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import handing_driver
import pyarrow.parquet as pq
import pytest
from documented_sources import noted
from driver_processes import TIMEOUT_S, Driver, says
from handing_driver import is_everything

pytestmark = pytest.mark.slow


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Callable[[], Driver]]:
    made: list[Driver] = []

    def make() -> Driver:
        made.append(Driver(handing_driver.__file__, tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.close()


def by_id(calls: list) -> dict[int, list]:
    """What has come by id; the same id must always have come with the same rows."""
    seen: dict[int, list] = {}
    for _, number, rows in calls:
        assert seen.setdefault(number, rows) == rows
    return seen


def check_order(calls: list, drivers: list[Driver]) -> None:
    """Each driver has its turn: none acts when the next one has begun."""
    turns = [pid for (pid, *_), before in zip(calls, [[0], *calls], strict=False) if pid != before[0]]
    assert turns == [each.process.pid for each in drivers]


def test_whatever_happens_to_a_driver_its_parts_go_on_with_another_and_never_do_two_commit(driver, tmp_path):
    """1. The first driver has the job, and the second waits. 2. The first is put to sleep while the function runs: the
    second takes the job over, and calls the function with the same again. 3. The first wakes up, with the function
    and a commit or two before it: it commits nothing, and waits in line. 4. The second is killed, and the first goes
    on, on the same Spark, to the end."""
    handing_driver.write_incoming(tmp_path)
    first, second = driver(), driver()
    first.take_part()
    first.wait("running", says("running", "completed"))
    second.take_part()
    second.wait("standby", says("standby"))
    (tmp_path / "hold").touch()
    while not (tmp_path / "held").exists():
        first.next_checkpoint()
    first.signal(signal.SIGSTOP)
    (tmp_path / "hold").unlink()
    second.wait("where it goes on", says("restored "))
    second.next_checkpoint()
    (tmp_path / f"go-on-{first.process.pid}").touch()
    calls = len(noted(tmp_path, "calls"))
    first.signal(signal.SIGCONT)
    first.wait("that it has lost the job", says("over JobTakenOver"))
    first.wait("standby", says("standby"))
    while len(noted(tmp_path, "calls")) == calls:
        second.next_checkpoint()
    newest = second.next_checkpoint()
    second.signal(signal.SIGKILL)
    assert int(first.wait("where it goes on", says("restored ")).split()[1]) >= newest
    (tmp_path / "gate").touch()
    first.wait("the end", says("over finished"))
    assert first.process.wait(TIMEOUT_S) == 0

    for what in ("calls", "commits"):
        handed = noted(tmp_path, what)
        check_order(handed, [first, second, first])
        assert is_everything([row for rows in by_id(handed).values() for row in rows])
    assert was_held_and_made_again(noted(tmp_path, "calls"))
    archived = [json.loads(file.read_text()) for file in (tmp_path / "archive").glob("*.json")]
    assert is_everything([row for rows in archived for row in rows])
    shown = [[r["split"], r["number"]] for f in (tmp_path / "table").glob("*.parquet") for r in rows_of(f)]
    assert is_everything(shown)
    left = [path.relative_to(tmp_path) for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()]
    assert left == []
    assert not (tmp_path / "checkpoints" / "results").exists()
    assert not (tmp_path / "table" / "_penstock").exists()


def was_held_and_made_again(calls: list) -> bool:
    """Whether the call that the first driver did not return from was the first of the second."""
    taken = next(number for number, call in enumerate(calls) if call[0] != calls[0][0])
    return calls[taken][1:] == calls[taken - 1][1:]


def rows_of(file: Path) -> list[dict]:
    return pq.read_table(file).to_pylist()
