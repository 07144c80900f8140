"""Sources and sinks of a world that have a part on the driver, and which of them a world has.

    enumerator   looks every now and then; finds a few splits, or none; the position is the number of the next split
    committer    makes the transactions of all subtasks at one barrier visible, at once

Both call the external system, whose faults strike them as well.
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
from penstock.sim.inputs import Position, SimReader, SimSource, decode_positions, encode_position
from penstock.sim.jobs import OnDriver, Workload
from penstock.sim.outputs import SimSink

T = TypeVar("T")

NOTHING_FOUND_EVERY = 4
"""One look in so many finds no split."""

SPOILED_LOOKS = 20
"""For how many looks in a row the position is spoiled."""


def make_source(world: int, workload: Workload, number: int) -> Source:
    """A source of a world, which may find its splits while the job runs."""
    kind = FindingSource if workload.finds_splits(number) else SimSource
    return kind(world, workload, number)


def make_driver_sink(world: int, target: str, *, cleans_by_attempt: bool) -> Sink:
    """A sink of a world that commits on the driver."""
    return DriverSink(world, target, AttemptCommitter if cleans_by_attempt else SimCommitter)


# --- splits that are found -----------------------------------------------------------------------


class FindingSource(SimSource):
    """Has an enumerator on the driver, which finds the splits that are not known from the beginning."""

    @property
    def discovers(self) -> bool:
        """True: the source finds splits while the job runs."""
        return True

    def splits(self, parallelism: int) -> list[bytes]:
        """The splits that are known from the beginning."""
        return super().splits(parallelism)[: _options(self._workload).known]

    def enumerator(self) -> SplitEnumerator:
        """The enumerator that finds the other splits."""
        return SimEnumerator(self._world, self._workload, self._number)

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        """A reader that may be given more splits."""
        return FindingReader(system_of(self._world), self._workload, decode_positions(splits))


class FindingReader(SimReader):
    """Counts the splits that it has read to their ends."""

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
        """How many splits the reader has read to their ends."""
        return self._read

    def add_splits(self, splits: Sequence[bytes]) -> None:
        """Read these splits, too."""
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

    def start(self, position: bytes | None) -> None:  # noqa: ARG002  # every look gets the position
        """The position is not spoiled any more."""
        self._spoiled_until = 0

    def discover(self, position: bytes | None) -> Found:
        """The next few splits."""
        self._looks += 1
        begin = _next_split(self._workload, self._splits, position)
        if self._is_spoiled():
            # A number; the contract asks for bytes.
            spoiled: Any = begin
            return Found(position=spoiled, wait_ms=self._options.look_ms)
        count = 0 if self._looks % NOTHING_FOUND_EVERY == 0 else self._options.at_once
        stop = min(begin + count, self._splits.stop)
        system_of(self._world).look(range(begin, stop))
        # In half of the worlds the look that finds the last split says that no split follows; otherwise the next look.
        ended = begin == stop == self._splits.stop or (stop == self._splits.stop and self._workload.salt % 2 == 0)
        return Found(
            position=str(stop).encode(),
            splits=[encode_position(Position(split, 0)) for split in range(begin, stop)],
            ended=ended,
            wait_ms=self._options.look_ms,
            catching_up=stop - self._splits.start < self._workload.behind_rows,
        )

    def consumed(self, position: bytes | None, unread: Sequence[bytes]) -> None:
        """Let go of all splits before `position` that are not `unread`."""
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
    """For each source that finds its splits while the job runs: the numbers of all its splits, and the number of the
    first split that the source had not found when the checkpoint with this metadata was taken."""
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
    """A sink whose transactions are committed, or dropped, on the driver."""

    def __init__(self, world: int, target: str, committer: Callable[[int, str], Committer]) -> None:
        super().__init__(world, target)
        self._committer = committer

    @property
    def commits_on_driver(self) -> bool:
        """True: the committer commits."""
        return True

    def committer(self) -> Committer:
        """The committer of this sink."""
        return self._committer(self.world, self.target)

    def clean(self, context: WriterContext, keep: Sequence[bytes]) -> None:
        """Must not be called: a subtask does not know which transactions the other subtasks have in their state."""
        raise NotImplementedError(
            f"subtask {context.subtask} of {self.target} was told to clean and to keep {len(keep)} committables; only "
            f"the committer cleans"
        )

    def end(self, job: str) -> None:
        """Nothing to do: the committer has dropped the transactions when it was closed."""


class SimCommitter(Committer):
    """Commits all transactions of one barrier at once."""

    def __init__(self, world: int, target: str) -> None:
        self._world = world
        self._target = target

    def commit(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        """Make the transactions visible."""
        system_of(self._world).commit_group(self._target, checkpoint, committables)

    def abandon(self, checkpoint: int, promised: Sequence[bytes]) -> None:
        """Drop the transactions of barriers up to `checkpoint` that are not `promised`."""
        system_of(self._world).abandon(
            lambda t: t.target == self._target and t.checkpoint <= checkpoint and t.token not in promised
        )

    def close(self, *, owes: bool) -> None:
        """Drop all transactions, unless another job or driver may have to commit them."""
        if not owes:
            system_of(self._world).drop_all(self._target)


class AttemptCommitter(SimCommitter):
    """Drops transactions by the attempt that prepared them, not by their barrier."""

    def clean_up(self, job: str, epoch: int, keep: Sequence[bytes]) -> None:  # noqa: ARG002  # a world runs one job
        """Drop the transactions of earlier attempts, except the transactions in `keep`."""
        system_of(self._world).abandon(lambda t: t.target == self._target and t.epoch < epoch and t.token not in keep)

    def abandon(self, checkpoint: int, promised: Sequence[bytes]) -> None:
        """Nothing to do: `clean_up` drops the transactions, or `close` when the job has ended."""


# --- what a world has -----------------------------------------------------------------------


def draw_on_driver(random: Random, workload: Workload, *, sinks: Sequence[str], duration_ms: int) -> Workload:
    """The same job with parts on the driver: some of its sources, some of its sinks, or both."""
    which = random.choice(("sources", "sinks", "both"))
    # A call that is made for every checkpoint may take longer than several checkpoint intervals.
    work_us = (50, random.choice((500, 5_000, 30_000, 200_000)))
    chosen = OnDriver(cleans_by_attempt=random.random() < 0.5, work_us=work_us)
    if which != "sources":
        chosen = replace(chosen, sinks=_some(random, sinks))
    if which != "sinks":
        # The same records in more splits, so that splits are found for some time.
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
