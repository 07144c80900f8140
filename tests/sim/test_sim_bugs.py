"""Every checker finds the kind of bug it is there for: each test puts one in and sees it found, by that checker.

A bug shows only in worlds that exercise it, so a test runs a few worlds. What it asserts: some world shows it, and no
world blames anything else. (A bug that breaks a second rule as a consequence says so in its test.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from planted_bugs import found, worlds

from penstock.api.connector import SinkWriter, WriterContext
from penstock.core.coordinator.effects import StorePointer
from penstock.core.coordinator.events import PointerStored
from penstock.core.ids import Instant, TaskId
from penstock.core.messages import NotifyAborted, NotifyComplete, ToSlot, TriggerCheckpoint
from penstock.runtime.channels import InputGate
from penstock.runtime.checkpointing import CheckpointEffects
from penstock.runtime.inflight import InFlight
from penstock.runtime.links import Links
from penstock.runtime.master import MasterDriver
from penstock.runtime.slot import SlotDriver
from penstock.settings import FixedDelay, Mode, Retention
from penstock.sim.disk import Disk
from penstock.sim.external import system_of
from penstock.sim.faults import ConnectionLoss, CrashAfterCheckpoint, SlotCrash
from penstock.sim.jobs import Shape, SimReader, SimSink, SimWriter
from penstock.sim.rules import Rule
from penstock.sim.run import Parts
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice, SlotHost

CRASH_AFTER_CHECKPOINT = CrashAfterCheckpoint(at_ms=100, slot=1, delay_ms=5, notice=Notice.TOLD)
CRASH = SlotCrash(at_ms=400, slot=1, notice=Notice.TOLD)


UNALIGNED = {"unaligned": True, "max_concurrent": 1}


MODES: dict[str, dict[str, Any]] = {
    "aligned": {},
    "unaligned": UNALIGNED,
    "timed": {**UNALIGNED, "aligned_timeout_ms": 5},
    "tracked": {"mode": Mode.AT_LEAST_ONCE, "max_concurrent": 2},
}


@pytest.mark.parametrize("shape", Shape)
@pytest.mark.parametrize("mode", MODES)
def test_without_a_bug_nothing_is_found(make: Any, shape: Shape, mode: str):
    plain = worlds(make, 2, make.steady, lambda s: make.shape(s, shape), faults=(CRASH,))
    assert found([make.checkpoints(s, **MODES[mode]) for s in plain]) == []


# --- exactly once -----------------------------------------------------------------------


def test_a_barrier_that_does_not_wait_for_the_other_channels_repeats_records(
    make: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(InputGate, "block", lambda self, index: None)
    assert found(worlds(make, 3, make.steady, faults=(CRASH_AFTER_CHECKPOINT,))) == [Rule.EXACTLY_ONCE]


@pytest.mark.parametrize("part", ["add_input", "add_outputs"])
def test_in_flight_data_that_is_not_saved_is_lost(make: Any, monkeypatch: pytest.MonkeyPatch, part: str):
    monkeypatch.setattr(InFlight, part, lambda self, *args: None)
    unaligned = [
        make.checkpoints(s, **UNALIGNED) for s in worlds(make, 3, make.steady, faults=(CRASH_AFTER_CHECKPOINT,))
    ]
    assert found(unaligned) == [Rule.EXACTLY_ONCE]


def test_a_source_position_ahead_of_what_was_read_loses_records(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = SimReader.snapshot

    def ahead(reader: SimReader) -> list[bytes]:
        rows, reader._rows = reader._rows, {split: row + 1 for split, row in reader._rows.items()}
        try:
            return honest(reader)
        finally:
            reader._rows = rows

    monkeypatch.setattr(SimReader, "snapshot", ahead)
    assert found(worlds(make, 3, faults=(CRASH,))) == [Rule.EXACTLY_ONCE]


def test_lost_messages_that_no_link_notices_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    """What was lost decides how it shows: a batch is missing, or credit or an end is and the job waits for ever."""
    cut = ConnectionLoss(at_ms=150, for_ms=20, slot=0, peer=1, holds_back=False)
    lossy = worlds(make, 2, lambda s: make.checkpoints(make.steady(s), interval_ms=None), faults=(cut,))
    assert found(lossy) == []

    def trusting(links: Links, peer: str, packet: object) -> None:
        links._on_packet(peer, packet)

    monkeypatch.setattr(Links, "_take", trusting)
    assert set(found(lossy)) <= {Rule.EXACTLY_ONCE, Rule.LIVENESS}
    assert found(lossy)


# --- order -----------------------------------------------------------------------


class ReversingSink(SimSink):
    """Writes the right rows in the wrong order."""

    def writer(self, context: WriterContext) -> SinkWriter:
        return ReversingWriter(system_of(self.world), context, self.target)


class ReversingWriter(SimWriter):
    def write(self, batch: pa.RecordBatch) -> None:
        super().write(batch.take(pa.array(range(batch.num_rows - 1, -1, -1))))


def test_records_of_a_key_in_another_order_are_found(make: Any):
    assert found(worlds(make, 1), Parts(sink=ReversingSink)) == [Rule.KEY_ORDER]


# --- checkpoint ids -----------------------------------------------------------------------


def test_a_checkpoint_that_is_triggered_again_after_a_newer_one_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = MasterDriver._send_to_task
    first: list[TriggerCheckpoint] = []

    def repeating(master: MasterDriver, task: TaskId, message: ToSlot) -> None:
        honest(master, task, message)
        if isinstance(message, TriggerCheckpoint):
            first.append(message)
            if message.checkpoint > first[0].checkpoint:
                honest(master, first[0].task, first[0])

    monkeypatch.setattr(MasterDriver, "_send_to_task", repeating)
    assert found(worlds(make, 1)) == [Rule.CHECKPOINT_IDS]


def test_a_pointer_to_an_older_checkpoint_after_a_newer_one_is_found(make: Any):
    class Reordering(Disk):
        """Keeps every second pointer back until the next one is written."""

        kept: tuple[str, bytes] | None = None

        def put(self, path: str, data: bytes) -> None:
            if "/completed/" in path and self.kept is None:
                self.kept = (path, data)
                return
            super().put(path, data)
            if "/completed/" in path and self.kept is not None:
                super().put(*self.kept)
                self.kept = None

    rules = found(worlds(make, 1), Parts(disk=Reordering))
    # What is announced meanwhile is not durable, which is another rule.
    assert set(rules) == {Rule.CHECKPOINT_IDS, Rule.EARLY_COMMIT}


# --- commits -----------------------------------------------------------------------


class EagerSink(SimSink):
    """Shows a transaction as soon as it is prepared."""

    def writer(self, context: WriterContext) -> SinkWriter:
        return EagerWriter(system_of(self.world), context, self.target)


class EagerWriter(SimWriter):
    def prepare(self, checkpoint: int) -> Callable[[], list[bytes]]:
        honest = super().prepare(checkpoint)

        def work() -> list[bytes]:
            tokens = honest()
            self.system.commit(tokens)
            return tokens

        return work


def test_a_sink_that_commits_when_it_prepares_is_found(make: Any):
    assert found(worlds(make, 1), Parts(sink=EagerSink)) == [Rule.EARLY_COMMIT]


def test_a_completion_that_is_announced_before_its_pointer_is_durable_is_found(
    make: Any, monkeypatch: pytest.MonkeyPatch
):
    honest = CheckpointEffects._store_pointer

    def hasty(effects: CheckpointEffects, effect: StorePointer) -> None:
        feed = effects._feed
        effects._feed = lambda event: None
        try:
            honest(effects, effect)
        finally:
            effects._feed = feed
        feed(PointerStored(checkpoint=effect.completed.checkpoint))

    monkeypatch.setattr(CheckpointEffects, "_store_pointer", hasty)
    assert Rule.EARLY_COMMIT in found(worlds(make, 2))


class RevivingSink(SimSink):
    """Takes over what an earlier attempt left behind, instead of dropping it."""

    def clean(self, context: WriterContext, keep: object) -> None:
        system = system_of(self.world)
        left = [
            token
            for token, transaction in system.prepared.items()
            if transaction.subtask == context.subtask and transaction.epoch < context.epoch
        ]
        system.commit(left)


def test_a_sink_that_commits_what_a_failed_attempt_left_is_found(make: Any):
    """The revived rows are replayed by the new attempt, so that they also show twice."""
    slow = {"work_us": (5_000, 30_000), "faults": (CRASH,)}
    assert found(worlds(make, 6, **slow), Parts(sink=RevivingSink)) == [Rule.FENCING, Rule.EXACTLY_ONCE]


class ForgetfulSink(SimSink):
    """Drops what a completed checkpoint promised, before it is committed."""

    def commit(self, committables: object) -> None:
        system_of(self.world).drop_all(self.target)
        super().commit(committables)


def test_committing_what_was_dropped_is_found(make: Any):
    """The sink can never commit, so that the job gives up in the end."""
    stubborn = worlds(make, 1, lambda s: make.settings(s, restart=FixedDelay(attempts=2, delay_ms=50)))
    assert found(stubborn, Parts(sink=ForgetfulSink)) == [Rule.FENCING, Rule.LIVENESS]


# --- files -----------------------------------------------------------------------


def test_a_store_that_forgets_files_is_found(make: Any):
    class Forgetful(Disk):
        def put(self, path: str, data: bytes) -> None:
            if "/window-" not in path:
                super().put(path, data)

    assert found(worlds(make, 1, make.windows), Parts(disk=Forgetful)) == [Rule.RESTORABLE]


@pytest.mark.parametrize("cancel_at_ms", [None, 400])
def test_a_store_that_does_not_delete_is_found(make: Any, cancel_at_ms: int | None):
    class Hoarding(Disk):
        def remove(self, path: str) -> None:
            if "/chk-1/" not in path:
                super().remove(path)

    def keeping(plain: Scenario) -> Scenario:
        return make.checkpoints(make.windows(plain), retention=Retention.KEEP)

    assert found(worlds(make, 1, keeping, cancel_at_ms=cancel_at_ms)) == []
    assert found(worlds(make, 1, keeping, cancel_at_ms=cancel_at_ms), Parts(disk=Hoarding)) == [Rule.NO_ORPHANS]


def test_a_retained_checkpoint_that_was_deleted_is_found(make: Any):
    class Shredding(Disk):
        """Deletes a checkpoint with the pointer to it, although the job was to keep it."""

        def remove(self, path: str) -> None:
            super().remove(path)
            folder, _, name = path.partition("/completed/")
            if name:
                for file in [f for f in self.files if f.startswith(f"{folder}/chk-{int(name)}/")]:
                    super().remove(file)

    kept = worlds(make, 1, lambda s: make.checkpoints(make.windows(s), retention=Retention.KEEP), cancel_at_ms=400)
    assert found(kept, Parts(disk=Shredding)) == [Rule.RESTORABLE]


# --- progress -----------------------------------------------------------------------


def test_a_completion_that_nobody_is_told_of_leaves_the_job_hanging(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = MasterDriver._send_to_task

    def silent(master: MasterDriver, task: TaskId, message: ToSlot) -> None:
        if not isinstance(message, NotifyComplete | NotifyAborted):
            honest(master, task, message)

    monkeypatch.setattr(MasterDriver, "_send_to_task", silent)
    once = worlds(make, 1, lambda s: make.checkpoints(s, interval_ms=None))
    assert found(once) == [Rule.LIVENESS]


def test_a_slot_that_neither_leaves_nor_can_be_stopped_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SlotDriver, "_leave", lambda self, error: None)
    assert found(worlds(make, 1)) == []
    monkeypatch.setattr(SlotHost, "stop", lambda self, slot: None)
    assert found(worlds(make, 1)) == [Rule.LIVENESS]


def test_a_loop_that_never_rests_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = SlotDriver.turn

    def restless(slot: SlotDriver, now: Instant) -> Instant | None:
        honest(slot, now)
        return now

    monkeypatch.setattr(SlotDriver, "turn", restless)
    quiet = worlds(make, 1, lambda s: make.checkpoints(make.workload(s, pause_ms=2_000), interval_ms=None))
    assert found(quiet) == [Rule.NO_LIVELOCK]


# --- our own bugs -----------------------------------------------------------------------


def test_a_driver_that_raises_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    def broken(effects: CheckpointEffects, effect: StorePointer) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(CheckpointEffects, "_store_pointer", broken)
    assert found(worlds(make, 1)) == [Rule.NO_BUG]


def test_a_driver_that_logs_an_error_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = MasterDriver.start

    def start(master: MasterDriver, now: Instant) -> None:
        logging.getLogger("penstock.runtime.master").error("data was lost")
        honest(master, now)

    monkeypatch.setattr(MasterDriver, "start", start)
    assert found(worlds(make, 1)) == [Rule.NO_BUG]
