"""Everything that can go wrong in a world. Drawn from the seed, printed in the header, struck at its time.

A world first draws which kinds of fault it has at all: many faults of one kind find other bugs than a few of each. All
faults strike, and end, within the safety phase; what comes after it is free of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import assert_never

from penstock.sim.background import Pace
from penstock.sim.disk import Disk
from penstock.sim.external import ExternalSystem
from penstock.sim.masters import MASTER, MasterHost
from penstock.sim.network import Network
from penstock.sim.slots import Notice, SlotHost
from penstock.sim.world import Actor, Fuse, World

CALLS = ("send", "send", "receive", "submit", "collect", "write", "write-done", "read", "connect", "commit", "prepare")
"""Where a process may die in the middle of a turn or of background work."""

SHARES = (0.05, 0.3, 1.0)
"""The part of all calls that may go wrong."""


@dataclass(frozen=True, kw_only=True)
class SlotCrash:
    """A process dies between two turns."""

    at_ms: int
    slot: int | None
    """None: the master."""
    notice: Notice


@dataclass(frozen=True, kw_only=True)
class CrashInCall:
    """A process dies at the n-th call of a port from here on: in the middle of a turn, or of background work."""

    at_ms: int
    slot: int | None
    """None: the master."""
    call: str
    calls: int
    notice: Notice


@dataclass(frozen=True, kw_only=True)
class CrashAfterCheckpoint:
    """A process dies soon after the next checkpoint has become durable: what that one holds is restored."""

    at_ms: int
    slot: int | None
    """None: the master."""
    delay_ms: int
    notice: Notice


@dataclass(frozen=True, kw_only=True)
class StorageErrors:
    """A share of all storage calls raises for a while, having done nothing, or having done all."""

    at_ms: int
    for_ms: int
    share: float
    after: bool


@dataclass(frozen=True, kw_only=True)
class SlowStorage:
    """Background work takes up to `by_ms` longer for a while."""

    at_ms: int
    for_ms: int
    by_ms: int


@dataclass(frozen=True, kw_only=True)
class SinkErrors:
    """A share of all calls of the external system raises for a while, having done nothing, or having done all."""

    at_ms: int
    for_ms: int
    share: float
    after: bool


@dataclass(frozen=True, kw_only=True)
class TaskError:
    """A function of the user's raises, once: at the next batch that a task of a slot reads, or is to write."""

    at_ms: int
    slot: int
    what: str


@dataclass(frozen=True, kw_only=True)
class ConnectionLoss:
    """A connection breaks; what is on its way is lost. What is sent before it works again is lost too, or held back."""

    at_ms: int
    for_ms: int
    slot: int
    peer: int | None
    """None: the master."""
    holds_back: bool


@dataclass(frozen=True, kw_only=True)
class SlotPause:
    """A process gets no processor for a while, and then goes on as if nothing had been."""

    at_ms: int
    for_ms: int
    slot: int | None
    """None: the master."""


@dataclass(frozen=True, kw_only=True)
class BusyLoop:
    """A step does not come back for a while: the loop takes no turn, and its process lives."""

    at_ms: int
    for_ms: int
    slot: int | None
    """None: the master."""


@dataclass(frozen=True, kw_only=True)
class ClockJump:
    """A slot's clock goes forwards or back. It stays wrong."""

    at_ms: int
    by_ms: int
    slot: int


@dataclass(frozen=True, kw_only=True)
class CrashAtEnd:
    """The master dies at its n-th call of a port after it has told a slot to leave for good, whenever that is."""

    at_ms: int
    calls: int


@dataclass(frozen=True, kw_only=True)
class DriverOversleeps:
    """The master gets no processor for a while; another takes the job over, and the first goes on beside it."""

    at_ms: int
    for_ms: int
    taken_over_ms: int
    """After so long."""
    after_checkpoint_us: int | None = None
    """Begins so long after the next checkpoint has become durable: what that one promises is about to be committed."""


@dataclass(frozen=True, kw_only=True)
class CrashAfterRescale:
    """A process dies soon after the user has asked for another parallelism, whenever that is."""

    at_ms: int
    slot: int | None
    """None: the master."""
    delay_ms: int
    notice: Notice


Fault = (
    SlotCrash
    | CrashInCall
    | CrashAfterCheckpoint
    | StorageErrors
    | SlowStorage
    | SinkErrors
    | TaskError
    | ConnectionLoss
    | SlotPause
    | BusyLoop
    | ClockJump
    | CrashAtEnd
    | DriverOversleeps
    | CrashAfterRescale
)


def breaks_links(fault: Fault) -> bool:
    """Whether a link between two slots that live may break of it, or one of them seem silent to the other."""
    return isinstance(fault, ConnectionLoss | SlotPause | ClockJump)


def end_ms(fault: Fault) -> int:
    """When a fault is over. Those that wait for something to happen are called off when the safety phase is over."""
    match fault:
        case SlotCrash() | CrashInCall() | CrashAfterCheckpoint() | TaskError() | ClockJump():
            return fault.at_ms
        case CrashAtEnd() | CrashAfterRescale():
            return fault.at_ms
        case _:
            return fault.at_ms + fault.for_ms


def draw_faults(random: Random, *, parallelism: int, safety_ms: int, lasting: bool) -> tuple[Fault, ...]:
    """The faults of a world, by time; the master dies only if the job is `lasting`."""
    if random.random() < 0.05:
        return ()
    kinds = [draw for draw in _DRAWS if random.random() < 0.4]
    count = random.choice((1, 2, 3, 4, 6, 8)) if kinds else 0
    faults = [random.choice(kinds)(random, parallelism, safety_ms) for _ in range(count)]
    # Whatever else goes wrong, most worlds restore something: that is what checkpoints are for.
    restores = random.choice((0, 1, 1, 2, 3))
    faults += [_draw_crash_after_checkpoint(random, parallelism, safety_ms) for _ in range(restores)]
    if lasting:
        deadly = (_draw_crash, _draw_crash_in_call, _draw_crash_in_call, _draw_crash_after_checkpoint)
        for _ in range(random.choice((1, 1, 2, 3))):
            faults.append(replace(random.choice(deadly)(random, parallelism, safety_ms), slot=None))
        if random.random() < 0.5:
            faults.append(CrashAtEnd(at_ms=0, calls=random.randint(1, 25)))
        if random.random() < 0.4:
            faults.append(_draw_oversleep(random, safety_ms))
    return tuple(sorted(faults, key=lambda fault: fault.at_ms))


def draw_driver_faults(random: Random, *, safety_ms: int) -> tuple[Fault, ...]:
    """Faults of a world in which the driver commits: it dies or falls asleep when it has something to commit."""
    crashes = [
        replace(_draw_crash_after_checkpoint(random, 1, safety_ms), slot=None)
        for _ in range(random.choice((0, 1, 1, 2)))
    ]
    sleeps = [
        replace(
            _draw_oversleep(random, safety_ms // 2),
            after_checkpoint_us=random.choice((random.randint(0, 3_000), random.randint(0, 60_000))),
        )
        for _ in range(random.choice((0, 1, 1)))
    ]
    return (*crashes, *sleeps)


def draw_rescale_faults(random: Random, *, safety_ms: int, lasting: bool) -> tuple[Fault, ...]:
    """Faults of a world in which the user changes the parallelism: also slots that come up for that die."""
    return tuple(
        CrashAfterRescale(
            at_ms=random.randint(0, safety_ms // 2),
            slot=None if lasting and random.random() < 0.3 else random.randrange(9),
            delay_ms=random.choice((random.randint(0, 20), random.randint(0, 100), random.randint(0, 600))),
            notice=_draw_notice(random),
        )
        for _ in range(random.choice((0, 0, 1, 2, 4)))
    )


def _draw_crash(random: Random, parallelism: int, safety_ms: int) -> SlotCrash:
    return SlotCrash(
        at_ms=random.randint(0, safety_ms), slot=random.randrange(parallelism), notice=_draw_notice(random)
    )


def _draw_oversleep(random: Random, safety_ms: int) -> DriverOversleeps:
    slept_ms = _draw_length_ms(random)
    return DriverOversleeps(
        at_ms=random.randint(0, safety_ms), for_ms=slept_ms, taken_over_ms=random.randint(1, slept_ms)
    )


def _draw_crash_in_call(random: Random, parallelism: int, safety_ms: int) -> CrashInCall:
    return CrashInCall(
        at_ms=random.randint(0, safety_ms),
        slot=random.randrange(parallelism),
        call=random.choice(CALLS),
        calls=random.choice((1, random.randint(1, 6), random.randint(1, 40))),
        notice=_draw_notice(random),
    )


def _draw_crash_after_checkpoint(random: Random, parallelism: int, safety_ms: int) -> CrashAfterCheckpoint:
    return CrashAfterCheckpoint(
        at_ms=random.randint(0, safety_ms // 2),
        slot=random.randrange(parallelism),
        delay_ms=random.choice((0, random.randint(0, 20), random.randint(0, 100))),
        notice=_draw_notice(random),
    )


def _draw_storage_errors(random: Random, _parallelism: int, safety_ms: int) -> Fault:
    return StorageErrors(
        at_ms=random.randint(0, safety_ms),
        for_ms=_draw_length_ms(random),
        share=random.choice(SHARES),
        after=random.random() < 0.5,
    )


def _draw_slow_storage(random: Random, _parallelism: int, safety_ms: int) -> Fault:
    return SlowStorage(
        at_ms=random.randint(0, safety_ms), for_ms=_draw_length_ms(random), by_ms=random.choice((20, 300, 3_000))
    )


def _draw_sink_errors(random: Random, _parallelism: int, safety_ms: int) -> Fault:
    return SinkErrors(
        at_ms=random.randint(0, safety_ms),
        for_ms=_draw_length_ms(random),
        share=random.choice(SHARES),
        after=random.random() < 0.5,
    )


def draw_task_errors(random: Random, *, parallelism: int, safety_ms: int) -> tuple[TaskError, ...]:
    """Failures of single tasks."""
    return tuple(
        TaskError(
            at_ms=random.randint(0, safety_ms),
            slot=random.randrange(parallelism),
            what=random.choice(("read", "write")),
        )
        for _ in range(random.choice((1, 1, 2, 3, 5)))
    )


def draw_busy_loops(random: Random, *, parallelism: int, safety_ms: int) -> tuple[BusyLoop, ...]:
    """Loops that take no turn, most of them for longer than anybody may be silent."""
    return tuple(
        BusyLoop(
            at_ms=random.randint(0, safety_ms),
            for_ms=random.choice((random.randint(100, 6_000), random.randint(6_000, 20_000))),
            slot=_draw_process(random, parallelism),
        )
        for _ in range(random.choice((1, 1, 2, 3)))
    )


def draw_slot_crashes(random: Random, *, parallelism: int, safety_ms: int) -> tuple[SlotCrash, ...]:
    """Processes of slots that die."""
    return tuple(
        SlotCrash(
            at_ms=random.randint(0, safety_ms),
            slot=random.randrange(parallelism),
            notice=random.choice(tuple(Notice)),
        )
        for _ in range(random.choice((1, 1, 2, 3)))
    )


def _draw_connection_loss(random: Random, parallelism: int, safety_ms: int) -> Fault:
    slot = random.randrange(parallelism)
    return ConnectionLoss(
        at_ms=random.randint(0, safety_ms),
        for_ms=_draw_length_ms(random),
        slot=slot,
        peer=random.choice((None, *(other for other in range(parallelism) if other != slot))),
        holds_back=random.random() < 0.5,
    )


def _draw_pause(random: Random, parallelism: int, safety_ms: int) -> Fault:
    return SlotPause(
        at_ms=random.randint(0, safety_ms), for_ms=_draw_length_ms(random), slot=_draw_process(random, parallelism)
    )


def _draw_clock_jump(random: Random, parallelism: int, safety_ms: int) -> Fault:
    by_ms = random.choice((random.randint(1, 200), random.randint(200, 6_000), 3_600_000))
    return ClockJump(
        at_ms=random.randint(0, safety_ms),
        by_ms=by_ms if random.random() < 0.5 else -min(by_ms, 6_000),
        slot=random.randrange(parallelism),
    )


def _draw_process(random: Random, parallelism: int) -> int | None:
    process = random.randint(0, parallelism)
    return None if process == parallelism else process


_DRAWS: tuple[Callable[[Random, int, int], Fault], ...] = (
    _draw_crash,
    _draw_crash_in_call,
    _draw_storage_errors,
    _draw_slow_storage,
    _draw_sink_errors,
    _draw_connection_loss,
    _draw_pause,
    _draw_clock_jump,
)


def _draw_length_ms(random: Random) -> int:
    return random.choice((random.randint(1, 300), random.randint(100, 6_000)))


def _draw_notice(random: Random) -> Notice:
    return random.choice((Notice.TOLD, Notice.TOLD, Notice.SILENT, Notice.AGAIN))


class Injector:
    """Makes the faults happen."""

    def __init__(
        self,
        world: World,
        *,
        host: SlotHost,
        masters: MasterHost,
        network: Network,
        disk: Disk,
        external: ExternalSystem,
        pace: Pace,
    ) -> None:
        self._world = world
        self._host = host
        self._masters = masters
        self._network = network
        self._disk = disk
        self._external = external
        self._pace = pace
        self._calm_from_us = 0
        self._after_checkpoint: list[CrashAfterCheckpoint] = []
        self._after_rescale: list[CrashAfterRescale] = []
        self._oversleeps: list[DriverOversleeps] = []
        self._at_end: list[CrashAtEnd] = []

    def schedule(self, faults: tuple[Fault, ...], *, calm_from_us: int) -> None:
        """Put all faults on the heap. From `calm_from_us` on nothing goes wrong, the end of the job aside."""
        self._calm_from_us = calm_from_us
        for fault in faults:
            self._world.at(fault.at_ms * 1_000, lambda fault=fault: self._strike(fault))  # type: ignore[misc]
        self._world.at(calm_from_us, self._disarm)

    def checkpoint_durable(self) -> None:
        """Something for which a crash may have waited."""
        for fault in self._after_checkpoint:
            self._strike_after(fault.delay_ms * 1_000, lambda fault=fault: self._crash(fault))  # type: ignore[misc]
        self._after_checkpoint.clear()
        for sleep in self._oversleeps:
            self._strike_after(sleep.after_checkpoint_us or 0, lambda sleep=sleep: self._oversleep(sleep))  # type: ignore[misc]
        self._oversleeps.clear()

    def rescale_asked(self) -> None:
        """Something else for which a crash may have waited."""
        for fault in self._after_rescale:
            self._strike_after(fault.delay_ms * 1_000, lambda fault=fault: self._crash(fault))  # type: ignore[misc]
        self._after_rescale.clear()

    def _strike_after(self, delay_us: int, strike: Callable[[], None]) -> None:
        """What the fault waited for has happened. The delay may be longer than the rest of the safety phase."""

        def strike_before_calm() -> None:
            if self._world.now_us < self._calm_from_us:
                strike()

        self._world.after(delay_us, strike_before_calm)

    def job_ending(self) -> None:
        """Something else for which a crash may have waited."""
        if self._at_end and self._masters.actor is not None and self._masters.actor.fuse is None:
            self._masters.actor.fuse = Fuse(None, self._at_end.pop().calls)

    def _disarm(self) -> None:
        """No process dies from here on, not even one whose death waits for something, the end aside."""
        self._after_checkpoint.clear()
        self._after_rescale.clear()
        self._oversleeps.clear()
        self._external.mend()
        for actor in self._host.living.values():
            actor.fuse = None
        if self._masters.actor is not None:
            self._masters.actor.fuse = None

    def _strike(self, fault: Fault) -> None:
        self._world.note("fault", repr(fault))
        match fault:
            case SlotCrash():
                self._crash(fault)
            case CrashAfterCheckpoint():
                self._after_checkpoint.append(fault)
            case CrashAfterRescale():
                self._after_rescale.append(fault)
            case CrashAtEnd():
                self._at_end.append(fault)
            case CrashInCall():
                actor = self._process(fault.slot)
                if actor is not None:
                    self._host.notice = fault.notice
                    actor.fuse = Fuse(fault.call, fault.calls)
            case StorageErrors():
                self._disk.fail(for_us=fault.for_ms * 1_000, share=fault.share, after=fault.after)
            case SlowStorage():
                self._pace.slow_down(for_us=fault.for_ms * 1_000, by_us=fault.by_ms * 1_000)
            case SinkErrors():
                self._external.fail(for_us=fault.for_ms * 1_000, share=fault.share, after=fault.after)
            case TaskError():
                actor = self._process(fault.slot)
                if actor is not None:
                    self._external.break_next(actor.name, fault.what)
            case ConnectionLoss():
                self._cut(fault)
            case SlotPause() | BusyLoop():
                self._hold_up(fault)
            case DriverOversleeps():
                if fault.after_checkpoint_us is None:
                    self._oversleep(fault)
                else:
                    self._oversleeps.append(fault)
            case ClockJump():
                actor = self._process(fault.slot)
                if actor is not None:
                    actor.jump(fault.by_ms * 1_000)
            case _:
                assert_never(fault)

    def _hold_up(self, fault: SlotPause | BusyLoop) -> None:
        actor = self._process(fault.slot)
        if actor is None:
            return
        if isinstance(fault, SlotPause):
            actor.pause(fault.for_ms * 1_000)
        else:
            actor.keep_busy(fault.for_ms * 1_000)

    def _oversleep(self, fault: DriverOversleeps) -> None:
        # A sleep that waited for a checkpoint begins later than was drawn, and must end with the safety phase too.
        for_us = min(fault.for_ms * 1_000, self._calm_from_us - self._world.now_us)
        self._masters.oversleep(for_us, min(fault.taken_over_ms * 1_000, for_us))

    def _process(self, slot: int | None) -> Actor | None:
        if slot is None:
            return self._masters.actor
        current = self._host.current(slot)
        return None if current is None else self._host.living[current]

    def _crash(self, fault: SlotCrash | CrashAfterCheckpoint | CrashAfterRescale) -> None:
        if fault.slot is None:
            self._masters.crash()
            return
        slot = self._host.current(fault.slot)
        if slot is not None:
            self._host.crash(slot, fault.notice)

    def _cut(self, fault: ConnectionLoss) -> None:
        slot = self._host.current(fault.slot)
        peer = MASTER if fault.peer is None else self._host.current(fault.peer)
        if slot is not None and peer is not None:
            self._network.cut(str(slot), str(peer), for_us=fault.for_ms * 1_000, holds_back=fault.holds_back)
