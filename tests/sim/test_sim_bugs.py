"""Every checker finds the kind of bug it is there for: each test puts one in and sees it found, by that checker.

A bug shows only in worlds that exercise it, so a test runs a few worlds. What it asserts: some world shows it, and no
world blames anything else. (A bug that breaks a second rule as a consequence says so in its test.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from planted_bugs import found, shows, worlds

from penstock.api.connector import SinkWriter, WriterContext
from penstock.core.coordinator.effects import StorePointer
from penstock.core.coordinator.events import PointerStored
from penstock.core.ids import Instant, TaskId
from penstock.core.messages import NotifyAborted, NotifyComplete, SubtaskState, ToSlot, TriggerCheckpoint
from penstock.runtime.links import Links
from penstock.runtime.master.driver import MasterDriver
from penstock.runtime.master.effects import CheckpointEffects
from penstock.runtime.master.ending import Ending
from penstock.runtime.master.slot_links import SlotLinks
from penstock.runtime.slot.driver import SlotDriver
from penstock.runtime.slot.leftovers import SnapshotPlace
from penstock.runtime.slot.task_host import SlotTaskHost
from penstock.runtime.task.chain import OperatorChain
from penstock.runtime.task.channels import InputGate
from penstock.runtime.task.inflight import InFlight
from penstock.runtime.task.operators.windows import CombineOperator
from penstock.settings import FixedDelay, Mode, Retention
from penstock.sim.disk import Disk
from penstock.sim.external import system_of
from penstock.sim.faults import ConnectionLoss, CrashAfterCheckpoint, SlotCrash
from penstock.sim.inputs import SimReader
from penstock.sim.jobs import Shape
from penstock.sim.outputs import SimSink, SimWriter
from penstock.sim.rules import Rule
from penstock.sim.scenario import Scenario
from penstock.sim.simulation import Parts
from penstock.sim.slots import Notice, SlotHost
from penstock.state.raw_keyed import RawKeyedStates

CRASH_AFTER_CHECKPOINT = CrashAfterCheckpoint(at_ms=100, slot=1, delay_ms=5, notice=Notice.TOLD)
CRASH = SlotCrash(at_ms=400, slot=1, notice=Notice.TOLD)


UNALIGNED = {"unaligned": True, "max_concurrent": 1}


MODES: dict[str, dict[str, Any]] = {
    "aligned": {},
    "unaligned": UNALIGNED,
    "timed": {**UNALIGNED, "aligned_timeout_ms": 5},
    "tracked": {"mode": Mode.AT_LEAST_ONCE, "max_concurrent": 2},
}


# With at-least-once, records that are counted twice take the place of other first records, raise totals beyond the
# number of records, take rows back that are not there, and come out of a sort behind later records.
_ONCE = (Shape.LIMIT, Shape.LIMIT_BESIDE, Shape.RUNNING, Shape.CHANGES, Shape.CHOOSES, Shape.MATCHES, Shape.SORTED)
SHAPES_AND_MODES = [(s, m) for s in Shape for m in MODES if m != "tracked" or s not in _ONCE]


@pytest.mark.parametrize(("shape", "mode"), SHAPES_AND_MODES)
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


def test_what_is_not_handed_over_before_the_barrier_is_lost(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(OperatorChain, "before_barrier", lambda self: None)
    assert found(worlds(make, 3, make.steady, faults=(CRASH_AFTER_CHECKPOINT,))) == [Rule.EXACTLY_ONCE]


def test_partial_aggregates_that_are_held_back_at_a_barrier_are_lost(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = CombineOperator.before_barrier

    def watermark(self: Any, time_us: int, *, idle: bool = False) -> None:
        honest(self)
        self.output.watermark(time_us, idle=idle)

    monkeypatch.setattr(CombineOperator, "before_barrier", lambda self: None)
    monkeypatch.setattr(CombineOperator, "watermark", watermark)
    monkeypatch.setattr(CombineOperator, "finish", honest)
    united = worlds(make, 6, make.steady, lambda s: make.shape(s, Shape.UNION_WINDOW), faults=(CRASH_AFTER_CHECKPOINT,))
    assert found(united) == [Rule.EXACTLY_ONCE]


@pytest.mark.parametrize("part", ["restore", "snapshot"])
def test_raw_state_that_is_not_saved_or_not_restored_is_lost(make: Any, monkeypatch: pytest.MonkeyPatch, part: str):
    nothing: dict[str, Any] = {"restore": lambda self, *args: None, "snapshot": lambda self: lambda writer: ()}
    monkeypatch.setattr(RawKeyedStates, part, nothing[part])
    timed = worlds(make, 3, make.steady, lambda s: make.shape(s, Shape.TIMERS), faults=(CRASH_AFTER_CHECKPOINT,))
    assert found(timed) == [Rule.EXACTLY_ONCE]


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
    honest = SlotLinks.send_to_task
    first: list[TriggerCheckpoint] = []

    def repeating(links: SlotLinks, task: TaskId, message: ToSlot) -> None:
        honest(links, task, message)
        if isinstance(message, TriggerCheckpoint):
            first.append(message)
            if message.checkpoint > first[0].checkpoint:
                honest(links, first[0].task, first[0])

    monkeypatch.setattr(SlotLinks, "send_to_task", repeating)
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
    assert shows(Rule.EARLY_COMMIT, worlds(make, 2))


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


def expiring(make: Any) -> list[Scenario]:
    """Checkpoints expire while slots write their parts: the master deletes what is there, and the slots what they come
    to write afterwards."""

    def often(plain: Scenario) -> Scenario:
        windows = make.workload(make.windows(plain), pause_ms=60)
        return make.checkpoints(windows, interval_ms=20, timeout_ms=180, tolerable_failures=None)

    return worlds(make, 1, often, work_us=(2_000, 40_000), latency_us=(20_000, 60_000), liveness_ms=120_000)


def expiring_with_shared_files(make: Any) -> list[Scenario]:
    """Likewise, with state in files that checkpoints share; many of them complete."""

    def often(plain: Scenario) -> Scenario:
        timers = make.workload(plain, shape=Shape.TIMERS, shares_files=True, pause_ms=200)
        return make.checkpoints(timers, interval_ms=20, timeout_ms=80, tolerable_failures=None)

    return worlds(make, 6, often, work_us=(1_000, 25_000), liveness_ms=120_000)


@pytest.mark.parametrize("made", [expiring, expiring_with_shared_files])
@pytest.mark.slow
def test_a_slot_that_deletes_nothing_of_what_it_wrote_for_an_aborted_checkpoint_is_found(
    make: Any, monkeypatch: pytest.MonkeyPatch, made: Callable[[Any], list[Scenario]]
):
    assert found(made(make)) == []
    monkeypatch.setattr(SlotTaskHost, "discard", lambda self, state, target=None: None)
    monkeypatch.setattr(SnapshotPlace, "discard", lambda self: None)
    assert found(made(make)) == [Rule.NO_ORPHANS]


@pytest.mark.slow
def test_a_slot_that_takes_every_shared_file_for_the_masters_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    """The master has never heard of what was not acknowledged, and no later checkpoint refers to it."""
    honest = SlotTaskHost.discard

    def discard(slot: SlotTaskHost, state: SubtaskState | None, target: str | None = None) -> None:
        if state is None or not any(file.shared_key for file in state.files):
            honest(slot, state, target)

    monkeypatch.setattr(SlotTaskHost, "discard", discard)
    monkeypatch.setattr(SnapshotPlace, "discard", lambda self: None)
    assert found(expiring_with_shared_files(make)) == [Rule.NO_ORPHANS]


@pytest.mark.slow
def test_a_slot_that_deletes_files_of_earlier_checkpoints_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = SlotTaskHost.discard

    def discard(slot: SlotTaskHost, state: SubtaskState | None, target: str | None = None) -> None:
        honest(slot, state, target)
        paths = [file.path for file in state.files if file.path is not None] if state is not None else []
        slot.leftovers.delete(slot._ports.store, paths)

    assert found(expiring_with_shared_files(make)) == []
    monkeypatch.setattr(SlotTaskHost, "discard", discard)
    monkeypatch.setattr(SnapshotPlace, "discard", lambda self: None)
    assert found(expiring_with_shared_files(make)) == [Rule.RESTORABLE]


@pytest.mark.slow
def test_shared_files_of_slots_that_leave_while_they_write_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    """Nobody hears of these files, and the folder of the job stays."""
    written = [make.checkpoints(world, retention=Retention.KEEP) for world in expiring_with_shared_files(make)]
    cancelled = [replace(world, cancel_at_ms=at) for world in written for at in (300, 400, 500)]
    assert found(cancelled) == []
    monkeypatch.setattr(Ending, "_sweep_shared", lambda self, retained, kept: None)
    assert found(cancelled) == [Rule.NO_ORPHANS]


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
    honest = SlotLinks.send_to_task

    def silent(links: SlotLinks, task: TaskId, message: ToSlot) -> None:
        if not isinstance(message, NotifyComplete | NotifyAborted):
            honest(links, task, message)

    monkeypatch.setattr(SlotLinks, "send_to_task", silent)
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
        logging.getLogger("penstock.runtime.master.driver").error("data was lost")
        honest(master, now)

    monkeypatch.setattr(MasterDriver, "start", start)
    assert found(worlds(make, 1)) == [Rule.NO_BUG]
