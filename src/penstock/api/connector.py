"""The contracts of sources and sinks. A connector depends on these and on nothing else of ours."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.api.hold import Held
from penstock.api.hooks import CheckpointHook
from penstock.core.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What a source or a sink leaves outside the job's checkpoints."""

    place: str | None = None
    """Where it keeps what a driver that takes the job over must find. It is on record with how the job began."""
    in_landing: bool = False
    """Whether snapshots of the job refer to files in the landing folder."""
    shares_landing: bool = False
    """Whether slots hand files over to the driver in the landing folder, which all of them must have mounted then."""
    written: str | None = None
    """The folder that slots write results into."""


class Site(ABC):
    """Where a job runs, as one source or sink of it sees that place on the driver, before the first subtask runs."""

    job: str
    known_place: str | None
    """The `place` that is on record, if the job began with another driver."""
    begins: bool
    """Whether there is no snapshot to go on from."""
    splits: tuple[bytes, ...] | None
    """The splits that are on record, if the job began with another driver."""
    has_ended: bool
    """Whether the job has ended, and only what is left of it is to be cleaned up."""
    landing: str
    """The root of the landing folder: what lies there is read and written by driver and slots."""
    options: Any
    """How files are sealed, for what opens the storage itself."""

    @abstractmethod
    def inputs(self) -> str:
        """A folder below `landing` for files that slots are to read. Where drivers may follow each other, each call has
        another."""

    @abstractmethod
    def known_inputs(self, given: Path | None) -> str | None:
        """The place on record for files that slots read; None if there is none. `given` is a folder that the user named
        for these files: any other place on record must be a folder of the job. Raises `CorruptFile`."""

    @abstractmethod
    def results(self) -> str:
        """A folder for what slots hand over to the driver: the place on record, or a new folder below `landing`. Raises
        `CorruptFile` if the place on record is no folder of the job."""

    @abstractmethod
    def handing_over(self, function: Callable[[Any, int], Any]) -> Sink:
        """A sink that calls a function with each checkpoint's records, as a DataFrame of the host."""

    @abstractmethod
    def table(self, name: str, *, path: str | None, partition_by: tuple[str, ...], schema: pa.Schema) -> Sink | None:
        """A sink into a table of the host's catalog, which is made if it does not exist; None if the job has ended, and
        so has the table."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A reader has nothing now. Ask again after `wait_ms`, or sooner."""

    wait_ms: int = 1


@dataclass(frozen=True, slots=True)
class End:
    """A reader has read all its splits to their ends."""


Polled = pa.RecordBatch | Pause | End


class UserCodeRaised(Exception):
    """What a connector raises, from the exception itself, when code of the user's that it runs has raised. It reaches
    the user as a `UserCodeError` that names the step and the subtask."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        """Which code it was: "read of data source 'orders'"."""


@dataclass(frozen=True, slots=True)
class SplitProgress:
    """How far a reader has come with its splits, by names that tell the splits of one reader apart."""

    current: Hashable
    """The split that the last batch came from; it may have ended with it. None if there was no batch yet."""
    open: Collection[Hashable]
    """Splits of which records may still come, begun or not: none of them may fall behind the watermark."""
    ready: Collection[Hashable] = ()
    """Those of them that have records, which the reader has only not come to: they are never idle."""


class SourceReader(ABC):
    """Reads some splits of a source, in one subtask, on the slot's loop: it must never block."""

    @abstractmethod
    def poll(self, max_rows: int, now_ms: int) -> Polled:
        """The next records, at most `max_rows`, with exactly the source's schema."""

    @property
    def catching_up(self) -> bool:
        """Whether it works through what has piled up, as opposed to records that come as they are made: then
        checkpoints may be taken more rarely (`Checkpointing.interval_during_backlog`). Asked after every `poll`."""
        return False

    @property
    def splits_read(self) -> int:
        """How many splits it has read to their ends. Only asked if the enumerator limits what is `unread`."""
        return 0

    @abstractmethod
    def snapshot(self) -> list[bytes]:
        """Every split that is not read to its end, with its position, such that `Source.open` of them gives exactly
        the records that `poll` has not returned yet."""

    def add_splits(self, splits: Sequence[bytes]) -> None:
        """Read these splits too, after those it has. Only a source that `discovers` splits has to be able to; it may
        come after `End`, and `poll` then goes on."""
        raise NotImplementedError(f"{type(self).__name__} was given {len(splits)} splits while it reads")

    def progress(self) -> SplitProgress | None:
        """Asked after every batch, so that event time can be that of the split that is furthest behind.

        None if all splits share one event time: that is exact for a reader of a single split, and for one that reads
        its splits in the order of event time. With any other, records of a split that is behind would be late.
        """
        return None

    def induced_checkpoint(self) -> int | None:
        """The id of a checkpoint whose mark the data has come to: it begins behind everything that `poll` has returned,
        and before whatever it returns next. None: there is no mark here. Asked before every `poll` until there is
        none, since several may stand at one place, and only if the source `induces_checkpoints`; a mark that was told
        once is not asked for again."""
        return None

    def checkpoint_completed(self, checkpoint: int) -> None:  # noqa: B027  # most readers have nothing to do
        """A checkpoint that includes the positions of its `snapshot` is durable."""

    def close(self) -> None:  # noqa: B027  # most readers have nothing to close
        """Let go of files and connections. Called once, also after a failure."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What an enumerator found."""

    position: bytes
    """Where to go on: all splits up to here have been given out."""
    splits: Sequence[bytes] = ()
    ended: bool = False
    """Nothing will ever follow."""
    wait_ms: int = 100
    """Look again after this time."""
    catching_up: bool = False
    """There is more behind `position` than the source was to find: it works through what has piled up. Checkpoints may
    be taken more rarely meanwhile (`Checkpointing.interval_during_backlog`)."""


class SplitEnumerator(Held, ABC):
    """Finds the splits of a source while the job runs. It lives on the driver, as long as the job does, and is called
    off the loop, one call at a time: it may block. What a restart must know is the position, and nothing else."""

    unread: int | None = None
    """It is asked for more only while, on average, a subtask has fewer splits than this left to read; None: whenever it
    is time to. A source that can always find more needs a limit, or it would plan ahead without end."""

    def start(self, position: bytes | None) -> None:  # most have nothing to do
        """An attempt of the job begins, and goes on from `position`; None: at the beginning."""

    @abstractmethod
    def discover(self, position: bytes | None) -> Found:
        """What there is behind `position`. The same position must give the same splits, as far as there were any."""

    def consumed(self, position: bytes | None, unread: Sequence[bytes]) -> None:
        """A checkpoint is durable in which all splits up to `position` have been read to their ends, but for `unread`:
        nobody will ask for the others again, unless a job is started from an older snapshot."""

    def close(self) -> None:  # most have nothing to close
        """The job has ended, or another driver has it. Called once."""


class Source(ABC):
    """Where records come from. Pickled into every slot."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The fixed schema of every batch."""

    @property
    def name(self) -> str:
        """What the step is called unless the user names it."""
        return type(self).__name__.lower()

    @abstractmethod
    def splits(self, parallelism: int) -> list[bytes]:
        """The parts that can be read independently, each at its beginning. Called once, on the driver, when the job
        starts for the first time; dealt out to subtasks in turn."""

    @property
    def unpickles(self) -> bool:
        """Whether splits, or the state of the enumerator, are pickled: `restore(..., unpickle=False)` refuses those of
        a snapshot."""
        return False

    @property
    def discovers(self) -> bool:
        """Whether splits are found while the job runs, by its `enumerator`."""
        return False

    def enumerator(self) -> SplitEnumerator:
        """Who finds more splits. Called once, on the driver, if the source `discovers` any."""
        raise NotImplementedError(f"source {self.name} has no enumerator")

    def checkpoint_hook(self) -> CheckpointHook | None:
        """Who is told of every checkpoint on the driver, before any reader is. Called once, when the program is
        written."""
        return None

    @property
    def induces_checkpoints(self) -> bool:
        """Whether marks in the data say where a checkpoint begins in each reader. Its `checkpoint_hook` then has the
        outside system put them there, all readers of the job must come to the mark of every checkpoint or to their
        end, and a checkpoint whose mark does not come is given up when its time is over."""
        return False

    @abstractmethod
    def open(self, splits: Sequence[bytes]) -> SourceReader:
        """A reader over these splits (none at all is possible)."""

    def prepared(self, site: Site) -> Source:  # noqa: ARG002  # most are what they are
        """The source as it is read. Called on the driver, each time that it starts the job, before `splits`."""
        return self

    @property
    def footprint(self) -> Footprint:
        """What it leaves outside the job's checkpoints."""
        return Footprint()

    @property
    def is_unbounded(self) -> bool:
        """Whether it is known never to come to an end by itself: `stream.collect()` refuses such a source."""
        return False

    @property
    def finds_more_later(self) -> bool:
        """Whether, when it has come to its end, there may be more when the program is run again."""
        return False


class UnpreparedSource(Source):
    """What a user gives to be read that is no source yet: `prepared` makes the source, where there is a Spark."""

    @abstractmethod
    def prepared(self, site: Site) -> Source:
        """The source as it is read."""

    def splits(self, parallelism: int) -> list[bytes]:  # noqa: ARG002
        """Raise `UsageError`: nobody has prepared it."""
        raise _needs_spark(f"source {self.name}")

    def open(self, splits: Sequence[bytes]) -> SourceReader:  # noqa: ARG002
        """Raise `UsageError`, as `splits` does."""
        raise _needs_spark(f"source {self.name}")


@dataclass(frozen=True, kw_only=True)
class WriterContext:
    """Who writes."""

    job: str
    subtask: int
    parallelism: int
    epoch: int
    """The attempt of the job; what an older attempt left uncommitted may be removed."""


class SinkWriter(ABC):
    """Writes the records of one subtask into transactions, one per checkpoint."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Take one batch into the open transaction; nobody may see it yet."""

    def before_barrier(self) -> None:  # noqa: B027  # most writers hold nothing back
        """A checkpoint's barrier has come to this subtask, or all data has been seen: put what is held back, in order
        to write it in one go, into the open transaction. `prepare` follows, and closes it."""

    @abstractmethod
    def prepare(self, checkpoint: int) -> Callable[[], list[bytes]]:
        """Close the open transaction and start the next one. Must be quick. The returned work runs off the loop; it
        makes the closed transaction durable and returns what a committer needs to commit it. It is tried again with
        the next checkpoint if it raised."""

    def close(self) -> None:  # noqa: B027  # most writers have nothing to close
        """Let go of files and connections; the open transaction is abandoned."""


class Committer(Held, ABC):
    """Commits what the subtasks of a sink prepared. It lives on the driver, as long as the job does, and is called off
    the loop, one call at a time: it may block."""

    @abstractmethod
    def commit(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        """Commit what all subtasks prepared at the barrier of `checkpoint`. Ids come in order. May be called again with
        the same ones after a failure: the second time must do nothing, or do the same again."""

    def clean_up(self, job: str, epoch: int, keep: Sequence[bytes]) -> None:
        """Remove what attempts of the job before `epoch` prepared, except for `keep`, which will be committed. Called
        when an attempt begins, for a committer that tells attempts apart; another one is told what to `abandon`."""

    def abandon(self, checkpoint: int, promised: Sequence[bytes]) -> None:
        """Whatever was prepared at the barriers up to `checkpoint` will never be committed, except for `promised`.
        Called after a failure, before anything is committed again, and when the job ends."""

    def close(self, *, owes: bool) -> None:  # most have nothing to close
        """The job has ended. Called once. `owes` says that something of a completed checkpoint was not committed:
        another job may start from there, so what is needed to commit it must stay. It is always said by a driver that
        has lost the job: another one does the rest."""


class Sink(ABC):
    """Where results go. Pickled into every slot."""

    @property
    def name(self) -> str:
        """What the step is called unless the user names it."""
        return type(self).__name__.lower()

    @property
    def unpickles(self) -> bool:
        """Whether what is named by committables is pickled: `restore(..., unpickle=False)` refuses those of a
        snapshot."""
        return False

    def check(self, schema: pa.Schema) -> None:  # noqa: B027  # most sinks take any schema
        """Raise `UsageError` if records of this schema cannot be written. Called when the program is built."""

    def fitted(self, schema: pa.Schema) -> Sink:  # noqa: ARG002
        """The sink for records of this schema. Called when the program is built, after `check`."""
        return self

    def start(self, job: str) -> None:  # noqa: B027
        """On the driver, before the first subtask runs: make sure that the target can be written."""

    @abstractmethod
    def writer(self, context: WriterContext) -> SinkWriter:
        """A writer for one subtask. Called again in every attempt."""

    @property
    def commits_on_driver(self) -> bool:
        """Whether the transactions of all subtasks are committed together, on the driver, by its `committer`."""
        return False

    def committer(self) -> Committer:
        """Who commits. Called once, on the driver, if the sink `commits_on_driver`."""
        raise NotImplementedError(f"sink {self.name} has no committer")

    def commit(self, committables: Sequence[bytes]) -> None:
        """Make prepared transactions visible. Runs off the loop, after their checkpoint is durable. May be called
        again with the same ones after a failure: the second time must do nothing. A sink that `commits_on_driver` is
        never asked."""
        raise NotImplementedError(f"sink {self.name} was asked to commit {len(committables)} transactions")

    def clean(self, context: WriterContext, keep: Sequence[bytes]) -> None:  # noqa: B027
        """Remove what earlier attempts of this subtask prepared and nobody will commit. Runs before the writer is
        made; `keep` has just been committed, or will be by a job that starts from a savepoint of this one. A sink that
        `commits_on_driver` is never asked: what a subtask prepared may be carried by another one, and only the
        committer knows of all."""

    def end(self, job: str) -> None:  # noqa: B027
        """On the driver, after the job has ended for good: remove what only a running job needs."""

    def prepared(self, site: Site, schema: pa.Schema) -> Sink:  # noqa: ARG002  # most are what they are
        """The sink for records of this schema as it is written. Called on the driver, each time that it starts the job,
        before `start`."""
        return self

    @property
    def footprint(self) -> Footprint:
        """What it leaves outside the job's checkpoints."""
        return Footprint()


class UnpreparedSink(Sink):
    """What a user gives to be written that is no sink yet: `prepared` makes the sink, where there is a Spark."""

    @property
    def described(self) -> str:
        """What a message calls it."""
        return f"sink {self.name}"

    @abstractmethod
    def prepared(self, site: Site, schema: pa.Schema) -> Sink:
        """The sink as it is written."""

    def start(self, job: str) -> None:  # noqa: ARG002
        """Raise `UsageError`: nobody has prepared it."""
        raise _needs_spark(self.described)

    def writer(self, context: WriterContext) -> SinkWriter:  # noqa: ARG002
        """Raise `UsageError`, as `start` does."""
        raise _needs_spark(self.described)


def _needs_spark(what: str) -> UsageError:
    return UsageError(f"{what} needs Spark, and this job has none", hint="use another one here")
