"""Joins whose records lie in runs that checkpoints share: results, checkpoints and restores are right wherever merges
and checkpoints come, and a checkpoint writes little more than what has changed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from join_oracles import Script, expected_versions, joined, table_of
from join_rig import JoinRig, Output, Record, changes_of, expected, join_step, numbers, regular_step, version_step

from penstock.api.join_steps import LEFT, RIGHT, Interval, JoinKind
from penstock.core.elements import CheckpointOptions
from penstock.runtime.task.operators import version_runs
from penstock.runtime.task.operators.join_marks import Changes, MarkLog
from penstock.runtime.task.operators.join_merging import JoinMerge
from penstock.runtime.task.operators.sorted_runs import RunLimits, RunOptions
from penstock.sim.kept_runs import SHORT, BytesPlace
from penstock.state.run_places import MemoryPlace, RunPlace

REACH = Interval(lower_us=-5, upper_us=15)
VERSION_KINDS = [JoinKind.INNER, JoinKind.LEFT]


def options(place: type[RunPlace], limits: RunLimits = SHORT) -> RunOptions:
    return RunOptions(limits=limits, make_place=lambda _: place())


class Disturbed:
    """Takes checkpoints that complete or not, does pieces of merges, and begins again from the last checkpoint."""

    def __init__(self, rig: JoinRig, draw: random.Random) -> None:
        self.rig = rig
        self._draw = draw

    def now(self) -> None:
        draw, rig = self._draw, self.rig
        rig.background.pieces = draw.choice((0, 0, 1, 3))
        rig.background.collect()
        what = draw.random()
        if what < 0.5:
            rig.checkpoint(CheckpointOptions(full=draw.random() < 0.1), completes=draw.random() < 0.7)
        elif what < 0.7:
            alone = draw.random() < 0.3
            rig.restored(draw.choice((1, 1, 2, 3)), rig.checkpoint(CheckpointOptions(savepoint=alone)))

    @property
    def cut(self) -> Any:
        """Whether work is left where a snapshot may be taken."""
        return lambda: self._draw.random() < 0.1


@pytest.mark.parametrize("how", JoinKind)
@pytest.mark.parametrize("place", [MemoryPlace, BytesPlace])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_records_match_wherever_checkpoints_and_merges_come(how: JoinKind, place: type[RunPlace], seed: int):
    draw = random.Random(seed)
    step = join_step(how, REACH)
    rig = JoinRig(step, Output(), parallelism=draw.choice((1, 2)), most=draw.choice((None, 3)), runs=options(place))
    disturbed = Disturbed(rig, draw)
    kept: tuple[list[Record], list[Record]] = ([], [])
    now, number = 0, 0
    for _ in range(draw.randrange(5, 40)):
        if draw.random() < 0.2:
            now += draw.randrange(12)
            if rig.advance(now, cut=disturbed.cut):
                rig.restored(draw.choice((1, 2)))
        side, batch = draw.choice((LEFT, RIGHT)), []
        for _ in range(draw.randrange(1, 8)):
            number += 1
            batch.append(Record(draw.randrange(5), now + 1 + draw.randrange(20), number))
        kept[side].extend(batch)
        if rig.feed(side, batch, cut=disturbed.cut):
            rig.restored(draw.choice((1, 2)))
        disturbed.now()
    rig.end()
    assert numbers(step, rig.output.rows) == expected(step, *kept)


@pytest.mark.parametrize("how", JoinKind)
@pytest.mark.parametrize("place", [MemoryPlace, BytesPlace])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), retracts=st.sampled_from([(True, True), (True, False), (False, False)]))
def test_changes_come_to_the_join_wherever_checkpoints_and_merges_come(
    how: JoinKind, place: type[RunPlace], seed: int, retracts: tuple[bool, bool]
):
    draw = random.Random(seed)
    step = regular_step(how, retracts=retracts)
    rig = JoinRig(step, Output(), parallelism=draw.choice((1, 2)), most=draw.choice((None, 3)), runs=options(place))
    disturbed, script = Disturbed(rig, draw), Script(draw, [None, 0, 1, 2], step)
    for _ in range(draw.randrange(5, 40)):
        side = draw.choice((LEFT, RIGHT))
        if rig.feed_batch(side, script.batch(side), cut=disturbed.cut):
            rig.restored(draw.choice((1, 2)))
        disturbed.now()
    assert table_of(step, rig.output.rows) == joined(how, *script.tables, lambda one, other: True)


@pytest.mark.parametrize("how", VERSION_KINDS)
@pytest.mark.parametrize("place", [MemoryPlace, BytesPlace])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_versions_hold_wherever_checkpoints_and_merges_come(how: JoinKind, place: type[RunPlace], seed: int):
    least, version_runs._LEAST_ROWS = version_runs._LEAST_ROWS, 4
    try:
        draw = random.Random(seed)
        step = version_step(how)
        rig = JoinRig(step, Output("lt"), parallelism=draw.choice((1, 2)), most=3, runs=options(place))
        disturbed = Disturbed(rig, draw)
        kept: tuple[list[Record], list[Record]] = ([], [])
        now, number, used = 0, 0, dict[Any, None]()
        for _ in range(draw.randrange(5, 40)):
            if draw.random() < 0.3:
                now += draw.randrange(12)
                if rig.advance(now, cut=disturbed.cut):
                    rig.restored(draw.choice((1, 2)))
            side, batch = draw.choice((LEFT, RIGHT)), []
            for _ in range(draw.randrange(1, 8)):
                number += 1
                record = Record(draw.randrange(4), now + 1 + draw.randrange(40), number)
                if side == LEFT or (record.key, record.time) not in used:
                    batch.append(record)
                    used.update({(record.key, record.time): None} if side == RIGHT else {})
            kept[side].extend(batch)
            if batch:
                rig.feed(side, batch)
            disturbed.now()
        rig.end()
        assert numbers(step, rig.output.rows) == expected_versions(how, *kept)
    finally:
        version_runs._LEAST_ROWS = least


# --- marks that change ------------------------------------------------------------------------------------------------


def changed_table(feed: Any) -> tuple[Counter[tuple[Any, ...]], Counter[tuple[Any, ...]]]:
    """The table of a full join after its rows have changed, and what it must be. `feed` is given the join in which a
    few rows have matched, and may begin it again."""
    step = regular_step(JoinKind.FULL)
    limits = RunLimits(run_rows=8, section_rows=2, loop_rows=10)
    rig = JoinRig(step, Output(), runs=options(MemoryPlace, limits))
    left = [Record(n, None, n) for n in range(400)]
    right = [Record(n, None, n) for n in (7, 8, 9)]
    for begin in range(0, 400, 80):
        rig.feed_batch(LEFT, changes_of(step, LEFT, left[begin : begin + 80], ["insert"] * 80))
    rig.background.pieces = 0
    feed(rig, lambda: rig.feed_batch(RIGHT, changes_of(step, RIGHT, right, ["insert"] * 3)))
    rig.feed_batch(RIGHT, changes_of(step, RIGHT, right[:2], ["delete"] * 2))
    return table_of(step, rig.output.rows), joined(JoinKind.FULL, left, right[2:], lambda one, other: True)


def _in_a_checkpoint(rig: JoinRig, match: Any) -> None:
    rig.checkpoint()
    match()
    rig.restored(1, rig.checkpoint())


def _in_a_merge(rig: JoinRig, match: Any) -> None:
    """Marks change while runs are merged, and then the merged runs are used."""
    assert rig.operators[0]._sides[LEFT]._merges  # type: ignore[attr-defined]
    match()
    rig.background.pieces = 1_000
    rig.background.collect()
    runs = rig.operators[0]._sides[LEFT]  # type: ignore[attr-defined]
    assert runs._merged
    runs.tidy()
    assert not runs._merged


@pytest.mark.parametrize("feed", [_in_a_checkpoint, _in_a_merge])
def test_marks_that_change_are_not_lost(feed: Any):
    found, wanted = changed_table(feed)
    assert found == wanted


def test_changed_marks_that_a_checkpoint_leaves_out_are_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(MarkLog, "frozen", lambda log: Changes([], 0))
    with pytest.raises(AssertionError):
        test_marks_that_change_are_not_lost(_in_a_checkpoint)


def test_changed_marks_that_a_merge_forgets_are_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(JoinMerge, "catch_up", lambda merge, run: None)
    with pytest.raises(AssertionError):
        test_marks_that_change_are_not_lost(_in_a_merge)


# --- larger than memory -----------------------------------------------------------------------------------------------

LARGE = """
import os, resource, sys
import numpy as np
import pyarrow as pa
from join_rig import JoinRig, Output, TIME, join_step
from penstock.api.join_steps import Interval, JoinKind
from penstock.runtime.task.operators.sorted_runs import RunLimits, RunOptions
from penstock.settings import StateSettings

step = join_step(JoinKind.INNER, Interval(lower_us=0, upper_us=10**12), key=pa.string())
state = StateSettings(backend=sys.argv[1], local_directory=sys.argv[2])
limits = RunLimits(most_bytes=8 << 20)
rig = JoinRig(step, Output(), runs=RunOptions(limits=limits), state=state)


def feed(side, begin, count):
    keys = pa.array([f"{n:0200d}" for n in range(begin, begin + count)])
    numbers, times = pa.array(np.arange(begin, begin + count)), pa.array(np.arange(begin, begin + count)).cast(TIME)
    columns = [times, keys, numbers] if side == 0 else [keys, numbers, times]
    rig.feed_batch(side, pa.RecordBatch.from_arrays(columns, schema=step.side(side).schema))


feed(0, 0, 50_000)
rig.background.collect()
with open("/proc/self/status") as status:
    used = next(int(line.split()[1]) for line in status if line.startswith("VmData:")) * 1024
room = 96 << 20
resource.setrlimit(resource.RLIMIT_DATA, (used + room, used + room))
for begin in range(50_000, 1_700_000, 10_000):
    feed(0, begin, 10_000)
    rig.background.collect()
kept = rig.operators[0].metrics()["bytes_kept"]
assert kept > 3.5 * room, kept
feed(1, 70_000, 1_000)
print(len(rig.output.rows))
os._exit(0)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says how much memory a process has")
@pytest.mark.parametrize(("backend", "fits"), [("rocksdb", True), ("memory", False)])
def test_a_join_is_several_times_as_large_as_the_memory(backend: str, fits: bool, tmp_path: Path):
    paths = [path for path in sys.path if path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "ARROW_DEFAULT_MEMORY_POOL": "system"}
    command = [sys.executable, "-c", LARGE, backend, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is fits, done.stderr
    if fits:
        assert done.stdout.strip() == "1000"


# --- how much a checkpoint writes -------------------------------------------------------------------------------------

ROWS = 200_000
STEPS = 100
LIMITS = RunLimits(run_rows=8_192, section_rows=1_024, loop_rows=8_192, most_bytes=1 << 22)


class Metered:
    """How many bytes checkpoints write, at steps of one part in a hundred."""

    def __init__(self, step: Any, place: type[RunPlace]) -> None:
        self.rig = JoinRig(step, Output(), runs=options(place, LIMITS))
        self.written: list[int] = []

    def checkpoint(self) -> None:
        self.rig.background.collect()
        before = {path: len(data) for path, data in self.rig.store.contents.items()}
        self.rig.checkpoint()
        after = self.rig.store.contents
        self.written.append(sum(len(after[path]) for path in after.keys() - before.keys()))
        self.rig.output.rows.clear()

    def full(self) -> int:
        before = dict(self.rig.store.contents)
        self.rig.checkpoint(CheckpointOptions(savepoint=True))
        return sum(len(data) for path, data in self.rig.store.contents.items() if path not in before)

    def share(self) -> float:
        """What checkpoints have written on average, as a share of the full state."""
        return sum(self.written[-STEPS:]) / STEPS / self.full()


@pytest.mark.parametrize("place", [MemoryPlace, BytesPlace])
@pytest.mark.parametrize("how", [JoinKind.INNER, JoinKind.FULL])
def test_a_checkpoint_of_an_interval_join_writes_what_has_changed(how: JoinKind, place: type[RunPlace]):
    """In every step one part in a hundred of the records comes, and as many records are done."""
    draw = random.Random(7)
    length = ROWS // 2
    job = Metered(join_step(how, Interval(lower_us=-length, upper_us=length)), place)
    each, now = ROWS // 200, 0
    for _ in range(100 + STEPS):
        for side in (LEFT, RIGHT):
            # One record in fifty finds a match.
            records = [Record(draw.randrange(25 * ROWS), now + n, n) for n in range(each)]
            job.rig.feed(side, records)
        now += each
        job.rig.advance(now - length)
        job.checkpoint()
    assert job.rig.operators[0].metrics()["left_rows_kept"] > 0.4 * ROWS
    assert job.share() < 0.05


@pytest.mark.parametrize("place", [MemoryPlace, BytesPlace])
@pytest.mark.parametrize("how", [JoinKind.INNER, JoinKind.FULL])
def test_a_checkpoint_of_a_regular_join_writes_what_has_changed(how: JoinKind, place: type[RunPlace]):
    """In every step one part in a hundred of the rows is replaced by rows with other numbers."""
    draw = random.Random(7)
    step = regular_step(how)
    job = Metered(step, place)
    rows: tuple[list[Record], list[Record]] = ([], [])
    each, count = ROWS // 200, ROWS // 2
    for number in range(100 + STEPS):
        for side in (LEFT, RIGHT):
            if number < 100:
                new = [Record(number * each + n, None, 0) for n in range(each)]
                rows[side].extend(new)
                batch, kinds = new, ["insert"] * each
            else:
                picked = draw.sample(range(count), each)
                old = [rows[side][n] for n in picked]
                new = [record._replace(number=number) for record in old]
                for n, record in zip(picked, new, strict=True):
                    rows[side][n] = record
                batch, kinds = old + new, ["delete"] * each + ["insert"] * each
            job.rig.feed_batch(side, changes_of(step, side, batch, kinds))
        job.checkpoint()
    assert job.rig.operators[0].metrics()["left_rows_kept"] == count
    assert job.share() < 0.05
