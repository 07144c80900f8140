"""The faults of a world: drawn from the seed, printed in the header, and struck at their times.

The kinds of faults in a world are drawn first: many faults of one kind find other bugs than a few faults of each kind.
All faults, except crashes at the end of the job, strike and end before the liveness phase begins.
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
"""The calls of ports at which a process may die, in the middle of a turn or of background work."""

SHARES = (0.05, 0.3, 1.0)
"""The shares of calls that raise while an outside system is faulty."""


@dataclass(frozen=True, kw_only=True)
class SlotCrash:
    """A process dies between two turns."""

    at_ms: int
    slot: int | None
    """None: the master."""
    notice: Notice


@dataclass(frozen=True, kw_only=True)
class CrashInCall:
    """A process dies at the `calls`-th `call` of a port from here on: in the middle of a turn, or of background
    work."""

    at_ms: int
    slot: int | None
    """None: the master."""
    call: str
    calls: int
    notice: Notice


@dataclass(frozen=True, kw_only=True)
class CrashAfterCheckpoint:
    """A process dies soon after the next checkpoint has become durable: the job restores that checkpoint."""

    at_ms: int
    slot: int | None
    """None: the master."""
    delay_ms: int
    notice: Notice


@dataclass(frozen=True, kw_only=True)
class StorageErrors:
    """For a while, a share of all storage calls raises: before their work, or, with `after`, after their work."""

    at_ms: int
    for_ms: int
    share: float
    after: bool


@dataclass(frozen=True, kw_only=True)
class SlowStorage:
    """For a while, each half of a piece of background work takes up to `by_ms` longer."""

    at_ms: int
    for_ms: int
    by_ms: int


@dataclass(frozen=True, kw_only=True)
class SinkErrors:
    """For a while, a share of all calls of the external system raises: before their work, or, with `after`, after their
    work."""

    at_ms: int
    for_ms: int
    share: float
    after: bool


@dataclass(frozen=True, kw_only=True)
class TaskError:
    """A function of the user's raises, once: when a task of a slot next reads or writes (`what`) a batch."""

    at_ms: int
    slot: int
    what: str


@dataclass(frozen=True, kw_only=True)
class ConnectionLoss:
    """A connection breaks. Messages on their way are lost. Messages that are sent before the connection works again are
    lost too, or, with `holds_back`, arrive when it works again."""

    at_ms: int
    for_ms: int
    slot: int
    peer: int | None
    """None: the master."""
    holds_back: bool


@dataclass(frozen=True, kw_only=True)
class SlotPause:
    """A process gets no processor for a while, and then goes on."""

    at_ms: int
    for_ms: int
    slot: int | None
    """None: the master."""


@dataclass(frozen=True, kw_only=True)
class BusyLoop:
    """A step does not return for a while: the loop of a process takes no turn, and the process lives."""

    at_ms: int
    for_ms: int
    slot: int | None
    """None: the master."""


@dataclass(frozen=True, kw_only=True)
class ClockJump:
    """A slot's clock is set forwards or back, and stays wrong."""

    at_ms: int
    by_ms: int
    slot: int


@dataclass(frozen=True, kw_only=True)
class CrashAtEnd:
    """The master dies at its `calls`-th call of a port after the master has told a slot to leave for good, even after
    the safety phase."""

    at_ms: int
    calls: int


@dataclass(frozen=True, kw_only=True)
class DriverOversleeps:
    """The driver gets no processor for a while. Another driver takes the job over, and the first driver goes on beside
    the other driver."""

    at_ms: int
    for_ms: int
    taken_over_ms: int
    """The other driver takes the job over this long after the first driver has fallen asleep."""
    after_checkpoint_us: int | None = None
    """The driver falls asleep this long after the next checkpoint has become durable, when the driver is about to
    commit the results of the checkpoint; None: the driver falls asleep at `at_ms`."""


@dataclass(frozen=True, kw_only=True)
class CrashAfterRescale:
    """A process dies soon after the user has next asked for another parallelism."""

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
    """Whether a slot may take a link for broken because of a fault. The fault breaks a link between two living slots,
    makes a living slot seem silent, or keeps the driver from telling a slot that another slot has died."""
    is_driver_busy = isinstance(fault, BusyLoop) and fault.slot is None
    return is_driver_busy or isinstance(fault, ConnectionLoss | SlotPause | ClockJump)


def end_ms(fault: Fault) -> int:
    """When a fault is over. Faults that wait for an event are called off when the safety phase is over."""
    match fault:
        case SlotCrash() | CrashInCall() | CrashAfterCheckpoint() | TaskError() | ClockJump():
            return fault.at_ms
        case CrashAtEnd() | CrashAfterRescale():
            return fault.at_ms
        case _:
            return fault.at_ms + fault.for_ms


def draw_faults(random: Random, *, parallelism: int, safety_ms: int, lasting: bool) -> tuple[Fault, ...]:
    """The faults of a world, by time. The master dies only if the job is `lasting`."""
    if random.random() < 0.05:
        return ()
    kinds = [draw for draw in _DRAWS if random.random() < 0.4]
    count = random.choice((1, 2, 3, 4, 6, 8)) if kinds else 0
    faults = [random.choice(kinds)(random, parallelism, safety_ms) for _ in range(count)]
    # In most worlds a process also dies after a checkpoint, so that the job restores a checkpoint.
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
    """Faults of a world in which the driver commits: the driver dies or falls asleep when it has results to commit."""
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
    """Faults of a world in which the user changes the parallelism: slots die, also slots that come up for the
    change."""
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
    """Errors of single tasks."""
    return tuple(
        TaskError(
            at_ms=random.randint(0, safety_ms),
            slot=random.randrange(parallelism),
            what=random.choice(("read", "write")),
        )
        for _ in range(random.choice((1, 1, 2, 3, 5)))
    )


def draw_busy_loops(random: Random, *, parallelism: int, safety_ms: int) -> tuple[BusyLoop, ...]:
    """Loops that take no turn, most of them for longer than a process may be silent."""
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
    """Makes the faults strike."""

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
        """A checkpoint has become durable: the faults that waited for a checkpoint strike."""
        for fault in self._after_checkpoint:
            self._strike_after(fault.delay_ms * 1_000, lambda fault=fault: self._crash(fault))  # type: ignore[misc]
        self._after_checkpoint.clear()
        for sleep in self._oversleeps:
            self._strike_after(sleep.after_checkpoint_us or 0, lambda sleep=sleep: self._oversleep(sleep))  # type: ignore[misc]
        self._oversleeps.clear()

    def rescale_asked(self) -> None:
        """The user has asked for another parallelism: the crashes that waited for that strike."""
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
        """The master has told a slot to leave for good: a crash that waits for the end of the job is armed."""
        if self._at_end and self._masters.actor is not None and self._masters.actor.fuse is None:
            self._masters.actor.fuse = Fuse(None, self._at_end.pop().calls)

    def _disarm(self) -> None:
        """No process dies from here on. Faults that wait for an event are called off, except the crashes at the end of
        the job."""
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
