"""The contracts of sources and sinks. A connector depends on these and on nothing else of ours."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.api.hold import Hold
from penstock.api.hooks import CheckpointHook


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
        and before whatever it returns next. None: there is no mark here. Asked before every `poll`, only if the source
        `induces_checkpoints`; a mark that was told once is not asked for again."""
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


class SplitEnumerator(ABC):
    """Finds the splits of a source while the job runs. It lives on the driver, as long as the job does, and is called
    off the loop, one call at a time: it may block. What a restart must know is the position, and nothing else."""

    hold: Hold = Hold()
    """Whether this driver still has the job. It is looked at before every call; whoever does something that takes time
    first, and then what only one driver may do, says `self.hold.check()` right before that, and lets through what it
    raises."""
    unread: int | None = None
    """It is asked for more only while, on average, a subtask has fewer splits than this left to read; None: whenever it
    is time to. A source that can always find more needs a limit, or it would plan ahead without end."""

    def start(self, position: bytes | None) -> None:  # noqa: B027  # most have nothing to do
        """An attempt of the job begins, and goes on from `position`; None: at the beginning."""

    @abstractmethod
    def discover(self, position: bytes | None) -> Found:
        """What there is behind `position`. The same position must give the same splits, as far as there were any."""

    def consumed(self, position: bytes | None, unread: Sequence[bytes]) -> None:  # noqa: B027
        """A checkpoint is durable in which all splits up to `position` have been read to their ends, but for `unread`:
        nobody will ask for the others again, unless a job is started from an older snapshot."""

    def close(self) -> None:  # noqa: B027  # most have nothing to close
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

    @abstractmethod
    def prepare(self, checkpoint: int) -> Callable[[], list[bytes]]:
        """Close the open transaction and start the next one. Must be quick. The returned work runs off the loop; it
        makes the closed transaction durable and returns what a committer needs to commit it. It is tried again with
        the next checkpoint if it raised."""

    def close(self) -> None:  # noqa: B027  # most writers have nothing to close
        """Let go of files and connections; the open transaction is abandoned."""


class Committer(ABC):
    """Commits what the subtasks of a sink prepared. It lives on the driver, as long as the job does, and is called off
    the loop, one call at a time: it may block."""

    hold: Hold = Hold()
    """Whether this driver still has the job. It is looked at before every call; whoever does something that takes time
    first, and then what only one driver may do, says `self.hold.check()` right before that, and lets through what it
    raises."""

    @abstractmethod
    def commit(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        """Commit what all subtasks prepared at the barrier of `checkpoint`. Ids come in order. May be called again with
        the same ones after a failure: the second time must do nothing, or do the same again."""

    def clean_up(self, job: str, epoch: int, keep: Sequence[bytes]) -> None:  # noqa: B027
        """Remove what attempts of the job before `epoch` prepared, except for `keep`, which will be committed. Called
        when an attempt begins, for a committer that tells attempts apart; another one is told what to `abandon`."""

    def abandon(self, checkpoint: int, promised: Sequence[bytes]) -> None:  # noqa: B027
        """Whatever was prepared at the barriers up to `checkpoint` will never be committed, except for `promised`.
        Called after a failure, before anything is committed again, and when the job ends."""

    def close(self, *, owes: bool) -> None:  # noqa: B027  # most have nothing to close
        """The job has ended. Called once. `owes` says that something of a completed checkpoint was not committed:
        another job may start from there, so what is needed to commit it must stay. It is always said by a driver that
        has lost the job: another one does the rest."""


class Sink(ABC):
    """Where results go. Pickled into every slot."""

    @property
    def name(self) -> str:
        """What the step is called unless the user names it."""
        return type(self).__name__.lower()

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
