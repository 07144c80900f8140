"""Sources and sinks of a world that have a part on the driver, and which of them a world has.

    enumerator   looks every now and then; finds a few splits, or none; the position is the number of the next split
    committer    makes what all subtasks prepared at one barrier visible, at once

Both talk to the external system, which is out of order for them as for everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from penstock.api.connector import Committer, Found, Polled, Sink, Source, SourceReader, SplitEnumerator, WriterContext
from penstock.core.ids import OperatorId
from penstock.core.recovery.metadata import CheckpointMetadata
from penstock.runtime.master.operator_coordinators.enumeration import position_in
from penstock.sim.external import ExternalSystem, system_of
from penstock.sim.jobs import (
    OnDriver,
    Position,
    SimReader,
    SimSink,
    SimSource,
    Workload,
    decode_positions,
    encode_position,
)

T = TypeVar("T")

NOTHING_FOUND_EVERY = 4
"""One of so many looks finds nothing."""

SPOILED_LOOKS = 20
"""For so many looks in a row a position is spoiled."""


def make_source(world: int, workload: Workload, number: int) -> Source:
    """A source of a world, which may find its splits while the job runs."""
    kind = FindingSource if workload.finds_splits(number) else SimSource
    return kind(world, workload, number)


def make_driver_sink(world: int, target: str, *, cleans_by_attempt: bool) -> Sink:
    """A sink of a world that commits on the driver."""
    return DriverSink(world, target, AttemptCommitter if cleans_by_attempt else SimCommitter)


# --- splits that are found -----------------------------------------------------------------------


class FindingSource(SimSource):
    """Has an enumerator on the driver, which finds those splits that were not there at the beginning."""

    @property
    def discovers(self) -> bool:
        """Always."""
        return True

    def splits(self, parallelism: int) -> list[bytes]:
        """Those that are known from the beginning."""
        return super().splits(parallelism)[: _options(self._workload).known]

    def enumerator(self) -> SplitEnumerator:
        """Who finds the others."""
        return SimEnumerator(self._world, self._workload, self._number)

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        """A reader that may be given more."""
        return FindingReader(system_of(self._world), self._workload, decode_positions(splits))


class FindingReader(SimReader):
    """Counts what it has read to its end."""

    def __init__(self, system: ExternalSystem, workload: Workload, positions: list[Position]) -> None:
        super().__init__(system, workload, positions)
        self._read = 0

    def poll(self, max_rows: int, now_ms: int) -> Polled:
        """The next records of one split."""
        before = list(self._rows)
        polled = super().poll(max_rows, now_ms)
        for split in before:
            if split not in self._rows:
                self._read += 1
                self._system.read_to_end[split] = None
        return polled

    @property
    def splits_read(self) -> int:
        """How many are read to their ends."""
        return self._read

    def add_splits(self, splits: Sequence[bytes]) -> None:
        """Read these, too."""
        self._rows |= {position.split: position.row for position in decode_positions(splits)}


class SimEnumerator(SplitEnumerator):
    """Finds the splits of one source in their order."""

    def __init__(self, world: int, workload: Workload, number: int) -> None:
        self._world = world
        self._workload = workload
        self._splits = workload.splits_of(number)
        self._options = _options(workload)
        self._looks = 0
        self._told = 0
        self._spoiled_until = 0
        self.unread = self._options.unread

    def start(self, position: bytes | None) -> None:  # noqa: ARG002  # it is told with every look
        """What was spoiled is well again."""
        self._spoiled_until = 0

    def discover(self, position: bytes | None) -> Found:
        """The next few."""
        self._looks += 1
        begin = _next_split(self._workload, self._splits, position)
        if self._is_spoiled():
            # No bytes, as the contract has it, but what else says the same.
            spoiled: Any = begin
            return Found(position=spoiled, wait_ms=self._options.look_ms)
        count = 0 if self._looks % NOTHING_FOUND_EVERY == 0 else self._options.at_once
        stop = min(begin + count, self._splits.stop)
        system_of(self._world).look(range(begin, stop))
        # That nothing will follow is known at once, or found out by another look.
        ended = begin == stop == self._splits.stop or (stop == self._splits.stop and self._workload.salt % 2 == 0)
        return Found(
            position=str(stop).encode(),
            splits=[encode_position(Position(split, 0)) for split in range(begin, stop)],
            ended=ended,
            wait_ms=self._options.look_ms,
            catching_up=stop - self._splits.start < self._workload.behind_rows,
        )

    def consumed(self, position: bytes | None, unread: Sequence[bytes]) -> None:
        """Let go of all others."""
        self._told += 1
        kept = [each.split for each in decode_positions(unread)]
        stop = _next_split(self._workload, self._splits, position)
        gone = [split for split in range(self._splits.start, stop) if split not in kept]
        system_of(self._world).let_go |= dict.fromkeys(gone)

    def _is_spoiled(self) -> bool:
        after = self._options.spoils_after
        if after is not None and self._told >= after and system_of(self._world).spoil_once():
            self._spoiled_until = self._looks + SPOILED_LOOKS
        return self._looks < self._spoiled_until


def _options(workload: Workload) -> OnDriver:
    return workload.on_driver or OnDriver()


def _next_split(workload: Workload, splits: range, position: bytes | None) -> int:
    return splits.start + _options(workload).known if position is None else int(position)


def next_splits(workload: Workload, metadata: CheckpointMetadata) -> dict[OperatorId, tuple[range, int]]:
    """The splits of each source that finds them, and the first that was not found, by what a checkpoint says."""
    found: dict[OperatorId, tuple[range, int]] = {}
    for number in range(workload.sources):
        if workload.finds_splits(number):
            operator, splits = OperatorId(f"source-{number + 1}" if number else "source"), workload.splits_of(number)
            state = metadata.coordinators.get(operator)
            found[operator] = (splits, _next_split(workload, splits, None if state is None else position_in(state)))
    return found


def unfound_splits(workload: Workload, metadata: CheckpointMetadata) -> list[int]:
    """The splits that had not been found when a checkpoint was taken."""
    return [split for splits, begin in next_splits(workload, metadata).values() for split in range(begin, splits.stop)]


# --- commits on the driver -----------------------------------------------------------------------


class DriverSink(SimSink):
    """Its transactions are committed on the driver, and those that nobody will commit are dropped there."""

    def __init__(self, world: int, target: str, committer: Callable[[int, str], Committer]) -> None:
        super().__init__(world, target)
        self._committer = committer

    @property
    def commits_on_driver(self) -> bool:
        """Always."""
        return True

    def committer(self) -> Committer:
        """Who commits."""
        return self._committer(self.world, self.target)

    def clean(self, context: WriterContext, keep: Sequence[bytes]) -> None:
        """Subtasks do not know of what others carry, and are not asked."""
        raise NotImplementedError(f"subtask {context.subtask} of {self.target} was told to keep {len(keep)}")

    def end(self, job: str) -> None:
        """The committer has done it when it was closed."""


class SimCommitter(Committer):
    """Commits what belongs to one barrier at once."""

    def __init__(self, world: int, target: str) -> None:
        self._world = world
        self._target = target

    def commit(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        """Make it visible."""
        system_of(self._world).commit_group(self._target, checkpoint, committables)

    def abandon(self, checkpoint: int, promised: Sequence[bytes]) -> None:
        """Drop what nobody will commit."""
        system_of(self._world).abandon(
            lambda t: t.target == self._target and t.checkpoint <= checkpoint and t.token not in promised
        )

    def close(self, *, owes: bool) -> None:
        """Drop everything, unless somebody may have to commit it."""
        if not owes:
            system_of(self._world).drop_all(self._target)


class AttemptCommitter(SimCommitter):
    """Tells what nobody will commit by the attempt that prepared it."""

    def clean_up(self, job: str, epoch: int, keep: Sequence[bytes]) -> None:  # noqa: ARG002  # a world has one at a time
        """Drop what earlier attempts left."""
        system_of(self._world).abandon(lambda t: t.target == self._target and t.epoch < epoch and t.token not in keep)

    def abandon(self, checkpoint: int, promised: Sequence[bytes]) -> None:
        """It has been cleaned up, or will be when the job has ended."""


# --- what a world has -----------------------------------------------------------------------


def draw_on_driver(random: Random, workload: Workload, *, sinks: Sequence[str], duration_ms: int) -> Workload:
    """The same job with parts on the driver: some of its sources, some of its sinks, or both."""
    which = random.choice(("sources", "sinks", "both"))
    # A function that is called for every checkpoint may take longer than it takes to come to the next few.
    work_us = (50, random.choice((500, 5_000, 30_000, 200_000)))
    chosen = OnDriver(cleans_by_attempt=random.random() < 0.5, work_us=work_us)
    if which != "sources":
        chosen = replace(chosen, sinks=_some(random, sinks))
    if which != "sinks":
        # The same records in more splits, so that there is something to find for some time.
        splits = random.choice((workload.splits, 5, 8, 12))
        workload = replace(
            workload,
            splits=splits,
            rows=_divided(workload.rows * workload.splits, splits),
            other_rows=tuple(_divided(rows * workload.splits, splits) for rows in workload.other_rows),
        )
        at_once = random.choice((1, 1, 2, 5))
        chosen = replace(
            chosen,
            sources=_some(random, range(workload.sources)),
            known=random.choice((0, 0, 1, splits // 2, splits)),
            at_once=at_once,
            look_ms=random.choice((1, 10, max(1, duration_ms * at_once // splits))),
            unread=random.choice((None, None, 1, 2)),
        )
    return replace(workload, on_driver=chosen)


def _some(random: Random, among: Sequence[T]) -> tuple[T, ...]:
    return tuple(random.sample(among, random.randint(1, len(among))))


def _divided(rows: int, parts: int) -> int:
    return max(1, rows // parts)
