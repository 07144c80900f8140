"""Whole jobs of several regions, of which a slot dies: its regions restart in the next one, and the others go on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from json_splits import SplitReader, SplitSource
from threaded_jobs import CHECKPOINTS, settings, with_splits

from penstock.api.connector import End, Pause
from penstock.api.program import Program
from penstock.connectors.parquet import parquet
from penstock.core.job.events import JobState
from penstock.settings import CheckpointSettings, SlotSettings

SLOTS = 3
SCHEMA = pa.schema([("split", pa.int64()), ("n", pa.int64())])
OPENED: Counter[tuple[str, int]] = Counter()
"""How often each split of each source was opened. Slots are threads of this process."""
ENDS: dict[tuple[str, int], int] = {}
"""How many records each of them had."""


class Reader(SplitReader):
    """Counts on, in its only split, until the gate opens."""

    def __init__(self, splits: list[Any], gate: Path) -> None:
        super().__init__(splits, gate)
        OPENED.update((name, number) for name, number, _ in splits)

    def poll(self, max_rows: int, now_ms: int):
        if not self._splits:
            return End()
        name, number, at = self._splits[0]
        if self._gate.exists():
            ENDS[name, number] = at
            self._splits.clear()
            return End()
        if now_ms % 3:
            return Pause(1)
        self._splits[0] = [name, number, at + 5]
        return pa.record_batch({"split": [number] * 5, "n": list(range(at, at + 5))}, schema=SCHEMA)


def plan(folder: Path, chosen):
    """alone → sink, in slices that nothing joins;  joined ═in turn═► sink."""
    program = Program(chosen)
    for name in ("alone", "joined"):
        splits = [[name, number, 0] for number in range(SLOTS)]
        stream = program.read(SplitSource(SCHEMA, splits, Reader, folder / "gate"), name=name)
        (stream if name == "alone" else stream.rebalance()).write(parquet(str(folder / name)))
    return with_splits(program.plan())


class Kill:
    """Kills a slot after two checkpoints, and lets the next one come up only when the others were seen to go on."""

    def __init__(self, job, gate: Path) -> None:
        self._slots, self._gate = job.slots, gate
        self._start, self._waiting = job.slots.start, []
        self._seen: dict[str, float] = {}
        self.is_done = False
        job.slots.start = self._asked_for

    def _asked_for(self, slot) -> None:
        if slot.incarnation == 1:
            self._start(slot)
        else:
            self._waiting.append(slot)

    def __call__(self, job) -> None:
        view = job.driver.view()
        if not self.is_done and view.state is JobState.RUNNING and view.checkpoints.counts.completed >= 2:
            self.is_done = True
            self._slots.kill(1)
        elif self._waiting:
            assert view.state is JobState.REPAIRING
            rows = {name: values["rows_in"] for name, values in view.tasks.items() if name.startswith("alone[")}
            self._seen = self._seen or rows
            assert rows["alone[1]"] == self._seen["alone[1]"]
            if all(rows[name] > self._seen[name] for name in ("alone[0]", "alone[2]")):
                self._start(self._waiting.pop())
        elif self.is_done and view.state is JobState.RUNNING and view.epoch == 2:
            self._gate.touch()


def shown(folder: Path) -> Counter[tuple[int, int]]:
    rows: Counter[tuple[int, int]] = Counter()
    for file in folder.glob("*.parquet"):
        rows.update((row["split"], row["n"]) for row in pq.read_table(file).to_pylist())
    return rows


@pytest.fixture(autouse=True)
def _fresh():
    OPENED.clear()
    ENDS.clear()


@CHECKPOINTS
def test_all_but_the_regions_of_a_dead_slot_go_on_and_every_record_shows_once(
    threaded_job, tmp_path: Path, checkpoint: CheckpointSettings
):
    chosen = settings(parallelism=SLOTS, checkpoint=checkpoint, slot=SlotSettings(heartbeat_interval_ms=20))
    job = threaded_job(plan(tmp_path, chosen), chosen)
    kill = Kill(job, tmp_path / "gate")
    assert job.run(kill) is JobState.FINISHED
    view = job.driver.view()
    assert (kill.is_done, view.restarts, [slot.incarnation for slot in view.slots]) == (True, 1, [1, 2, 1])
    # What ran in the slot, and what an exchange joins to that, was opened once more; the rest was not.
    assert {split: OPENED["alone", split] for split in range(SLOTS)} == {0: 1, 1: 2, 2: 1}
    assert {split: OPENED["joined", split] for split in range(SLOTS)} == {0: 2, 1: 2, 2: 2}
    for name in ("alone", "joined"):
        assert shown(tmp_path / name) == Counter({(s, n): 1 for s in range(SLOTS) for n in range(ENDS[name, s])})
