"""The contracts of sources and sinks. A connector depends on these contracts and on nothing else of the package."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.api.changelog import Changelog
from penstock.api.hold import Held
from penstock.api.hooks import CheckpointHook
from penstock.core.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What a source or a sink leaves outside the job's checkpoints."""

    place: str | None = None
    """Where the source or sink keeps the files that a driver must find when the driver takes the job over. The place is
    recorded when the job begins."""
    in_landing: bool = False
    """Whether snapshots of the job refer to files in the landing folder."""
    shares_landing: bool = False
    """Whether slots hand files over to the driver in the landing folder. If so, the driver and all slots must have that
    folder mounted."""
    written: str | None = None
    """The folder that slots write results into."""


class KeptFiles(ABC):
    """Files that a sink keeps in the storage of the job until their content is where it belongs. Driver and slots reach
    the files. Pickled into every slot. All calls block: use them off the loop only. They raise `StorageError`."""

    @abstractmethod
    def write(self, name: str, data: bytes) -> bytes:
        """Write a file, durably, and return its place, for a committable. Files of one name are one file. A name begins
        with a letter and has letters, digits, `.`, `_` and `-`."""

    @abstractmethod
    def read(self, place: bytes) -> bytes:
        """The content of a file, which another job may have written. Raises `MissingFile` if the file was deleted, and
        `CorruptFile` if no sink can have written a file there."""

    @abstractmethod
    def delete(self, place: bytes) -> None:
        """Delete a file. Nothing happens if the file does not exist."""

    @abstractmethod
    def places(self) -> list[tuple[str, bytes]]:
        """The names and the places of all files of this sink and this job."""

    @abstractmethod
    def end(self, job: str) -> None:
        """Delete all files that the sink has written in `job`, this job or an earlier one."""


class Site(ABC):
    """Where a job runs, as one source or sink of the job sees the place on the driver, before the first subtask
    runs."""

    job: str
    known_place: str | None
    """The recorded `Footprint.place`, if the job began with another driver."""
    begins: bool
    """Whether the source begins at its beginning. If not, its splits are in a snapshot."""
    splits: tuple[bytes, ...] | None
    """The recorded splits, if the job began with another driver."""
    has_ended: bool
    """Whether the job has ended, and only the files that the job left behind are to be deleted."""
    landing: str
    """The root of the landing folder. Driver and slots read and write the files there."""
    options: Any
    """How files are sealed and who may read them, for code that opens the storage itself."""

    @abstractmethod
    def inputs(self) -> str:
        """Make a folder below `landing` for files that slots are to read. Only the readers that `options` allow can
        enter the folder. If the job may outlive its driver, each call makes another folder."""

    @abstractmethod
    def known_inputs(self, given: Path | None) -> str | None:
        """The recorded place of the files that slots read; None if no place is recorded. `given` is a folder that the
        user named for these files. Raises `CorruptFile` if the recorded place is neither `given` nor a folder of the
        job."""

    @abstractmethod
    def results(self) -> str:
        """A folder for the files that slots hand over to the driver: the recorded place or, if no place is recorded, a
        folder below `landing`. On a file system the folder is made, for the readers that `options` allow, unless the
        job has ended. Raises `CorruptFile` if the recorded place is no folder of the job."""

    @abstractmethod
    def kept_files(self, folder: str) -> KeptFiles:
        """Files of a sink in `folder`, which `results` has returned."""

    @abstractmethod
    def fresh_token(self) -> str:
        """A random name that no other sink, and no other start of the job, is given."""

    @abstractmethod
    def handing_over(self, function: Callable[[Any, int], Any]) -> Sink:
        """A sink that calls a function with each checkpoint's records, as a DataFrame of the host."""

    @abstractmethod
    def table(self, name: str, *, path: str | None, partition_by: tuple[str, ...], schema: pa.Schema) -> Sink | None:
        """A sink into a table of the host's catalog. The table is made if the table does not exist. None if the job has
        ended and the table does not exist any more."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A reader has no records at the moment. The reader is polled again after `wait_ms`, or sooner."""

    wait_ms: int = 1


@dataclass(frozen=True, slots=True)
class End:
    """A reader has read all its splits to their ends."""


HELD_MS = 1_000
"""For how long a reader pauses whose splits are all held (`SourceReader.hold`). The task polls the reader at once when
other splits are held."""

Polled = pa.RecordBatch | Pause | End


class UserCodeRaised(Exception):
    """A connector raises this error, from the original exception, when user code that the connector runs has raised.
    The user gets a `UserCodeError` that names the step and the subtask."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        """Which user code raised: "read of data source 'orders'"."""


@dataclass(frozen=True, slots=True)
class SplitProgress:
    """How far a reader has come with its splits, by names that tell the splits of one reader apart."""

    current: Hashable
    """The split that the last batch came from; the split may have ended with that batch. None before the first
    batch."""
    open: Collection[Hashable]
    """The splits that may still give records, begun or not: the watermark does not pass any of these splits."""
    ready: Collection[Hashable] = ()
    """The open splits that have records which the reader has not read yet: such a split is never idle."""


class SourceReader(ABC):
    """Reads some splits of a source, in one subtask, on the slot's loop. A reader must never block."""

    @abstractmethod
    def poll(self, max_rows: int, now_ms: int) -> Polled:
        """The next records, at most `max_rows`, with exactly the source's schema."""

    @property
    def catching_up(self) -> bool:
        """Whether the reader is catching up: the reader reads old records, and not records as they are made.
        Checkpoints may be rarer meanwhile (`Checkpointing.interval_during_backlog`). Asked after every `poll`."""
        return False

    def metrics(self) -> dict[str, float]:
        """Running totals of the reader, by name, for people to look at. `lines_skipped` is summed up over the job."""
        return {}

    @property
    def splits_read(self) -> int:
        """How many splits the reader has read to their ends. Only asked if `SplitEnumerator.unread` sets a limit."""
        return 0

    @abstractmethod
    def snapshot(self) -> list[bytes]:
        """Every split that is not read to its end, with its position, such that `Source.open` of these splits gives
        exactly the records that `poll` has not returned yet."""

    def snapshot_for(self, checkpoint: int) -> list[bytes]:  # noqa: ARG002  # most readers need no number
        """The same as `snapshot`, which it calls, for a reader that has to know what it returned when
        `checkpoint_completed` names the checkpoint."""
        return self.snapshot()

    def add_splits(self, splits: Sequence[bytes]) -> None:
        """Read these splits too, after the splits that the reader has. Only called if the source `discovers` splits.
        The call may come after `poll` has returned `End`; `poll` then returns records again."""
        raise NotImplementedError(f"{type(self).__name__} was given {len(splits)} splits while it reads")

    def progress(self) -> SplitProgress | None:
        """Asked after every batch, so that event time can be that of the split that is furthest behind.

        None if all splits share one event time. None is right for a reader of a single split, and for a reader that
        reads its splits in the order of event time. If any other reader returned None, records of a split that is
        behind would be late.
        """
        return None

    @property
    def holds_splits(self) -> bool:
        """Whether the reader implements `hold`. A reader that does not is held as a whole, when all its splits are too
        far ahead of a watermark group."""
        return False

    def hold(self, splits: Collection[Hashable]) -> None:
        """Until the next call, give no records of these splits, which are too far ahead of a watermark group. `splits`
        has names from `progress`. If there is nothing else to read, `poll` returns `Pause`. A held split is in
        snapshots as before. Only called if the reader `holds_splits`."""
        raise NotImplementedError(f"{type(self).__name__} was told to hold {len(splits)} splits")

    def induced_checkpoint(self) -> int | None:
        """The id of a checkpoint whose mark the reader has come to: the checkpoint begins behind every record that
        `poll` has returned, and before the records that `poll` returns next. None: there is no mark here. Only called
        if the source `induces_checkpoints`: before every `poll`, until the answer is None, since several marks may
        stand at one place. Each mark is returned once."""
        return None

    def checkpoint_completed(self, checkpoint: int) -> None:  # noqa: B027  # most readers have nothing to do
        """`checkpoint` is complete and durable, and includes the positions that `snapshot` returned."""

    def close(self) -> None:  # noqa: B027  # most readers have nothing to close
        """Let go of files and connections. Called once, also after a failure."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What an enumerator found."""

    position: bytes
    """Where the next `discover` goes on: all splits up to this position have been found."""
    splits: Sequence[bytes] = ()
    ended: bool = False
    """No more splits will ever be found."""
    wait_ms: int = 100
    """`discover` is called again after this time."""
    catching_up: bool = False
    """The source is catching up: there are more splits behind `position` than one `discover` was to find. Checkpoints
    may be rarer meanwhile (`Checkpointing.interval_during_backlog`)."""


class SplitEnumerator(Held, ABC):
    """Finds the splits of a source while the job runs. An enumerator lives on the driver as long as the job does, and
    is called off the loop, one call at a time: calls may block. A restart hands back the position, and nothing else."""

    unread: int | None = None
    """`discover` is called only while, on average, a subtask has fewer splits than this left to read. None: `discover`
    is called whenever `Found.wait_ms` has passed. A source that can always find more splits needs a limit, or the
    source would plan ahead without end."""

    def start(self, position: bytes | None) -> None:  # most enumerators have nothing to do
        """An attempt of the job begins, and goes on from `position`; None: at the beginning."""

    @abstractmethod
    def discover(self, position: bytes | None) -> Found:
        """The splits behind `position`. If a call has returned splits, another call with the same position must return
        the same splits."""

    def consumed(self, position: bytes | None, unread: Sequence[bytes]) -> None:
        """A checkpoint is durable in which all splits up to `position`, except `unread`, have been read to their ends.
        A split that has been read to its end is not read again, unless a job is started from an older snapshot."""

    def close(self) -> None:  # most enumerators have nothing to close
        """The job has ended, or another driver has the job. Called once."""


class Source(ABC):
    """Where records come from. Pickled into every slot.

    >>> import penstock as ps
    >>> import pyarrow as pa
    >>> from penstock.testing import run
    >>> class Numbers(ps.Source):
    ...     schema = pa.schema({"n": pa.int64()})
    ...     def splits(self, parallelism):
    ...         return [b"0"]
    ...     def open(self, splits):
    ...         return NumbersReader(splits)
    >>> class NumbersReader(ps.SourceReader):
    ...     def __init__(self, splits):
    ...         self.numbers = range(int(splits[0]), 5) if splits else range(0)
    ...     def poll(self, max_rows, now_ms):
    ...         if not self.numbers:
    ...             return ps.End()
    ...         now, self.numbers = self.numbers[:max_rows], self.numbers[max_rows:]
    ...         return pa.record_batch({"n": pa.array(now, pa.int64())})
    ...     def snapshot(self):
    ...         return [str(self.numbers.start).encode()] if self.numbers else []
    >>> run(lambda env: env.read(Numbers()).where("n > 2").write(ps.collect()), crashes=1)
    [{'n': 3}, {'n': 4}]
    """

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
        """The splits, which can be read independently, each at its beginning. Called once, on the driver, when the job
        starts for the first time. The splits are dealt out to the subtasks in turn."""

    @property
    def saved_as(self) -> str:
        """The name of the form that splits, and the positions of the enumerator, have in snapshots. A snapshot is
        refused if its step of the same name was a source with another form. Empty: sources are not told apart."""
        return ""

    @property
    def unpickles(self) -> bool:
        """Whether the splits, or the positions of the enumerator, are pickled. If so, `restore(..., unpickle=False)`
        refuses a snapshot that has them."""
        return False

    @property
    def discovers(self) -> bool:
        """Whether the source's `enumerator` finds splits while the job runs."""
        return False

    def enumerator(self) -> SplitEnumerator:
        """The enumerator that finds splits. Called once, on the driver, if the source `discovers` splits."""
        raise NotImplementedError(f"source {self.name} has no enumerator")

    def checkpoint_hook(self) -> CheckpointHook | None:
        """The hook that is told of every checkpoint, on the driver, before any reader is told. None: no hook. Called
        once, when the program calls `read`."""
        return None

    @property
    def induces_checkpoints(self) -> bool:
        """Whether marks in the data say where a checkpoint begins in each reader. If so, the source's `checkpoint_hook`
        makes the outside system put the marks there. All readers of the job must come to the mark of every checkpoint,
        or to their end. A checkpoint whose mark does not come is aborted when its timeout is over."""
        return False

    @abstractmethod
    def open(self, splits: Sequence[bytes]) -> SourceReader:
        """A reader of these splits. There may be no splits at all."""

    def prepared(self, site: Site) -> Source:  # noqa: ARG002  # most sources need no preparation
        """The source that is read. Called on the driver, each time that the driver starts the job, before `splits`."""
        return self

    @property
    def footprint(self) -> Footprint:
        """What the source leaves outside the job's checkpoints."""
        return Footprint()

    @property
    def is_unbounded(self) -> bool:
        """Whether it is known never to come to an end by itself: `stream.collect()` refuses such a source."""
        return False

    @property
    def finds_more_later(self) -> bool:
        """Whether the source, after it has come to its end, may find more data when the program is run again."""
        return False


class UnpreparedSource(Source):
    """A description of a source that the user gives to `read`. `prepared` makes the source that is read; this needs
    Spark."""

    @abstractmethod
    def prepared(self, site: Site) -> Source:
        """The source that is read."""

    def splits(self, parallelism: int) -> list[bytes]:  # noqa: ARG002
        """Raise `UsageError`: the description has not been prepared."""
        raise _needs_spark(f"source {self.name}")

    def open(self, splits: Sequence[bytes]) -> SourceReader:  # noqa: ARG002
        """Raise `UsageError`, as `splits` does."""
        raise _needs_spark(f"source {self.name}")


@dataclass(frozen=True, kw_only=True)
class WriterContext:
    """Which subtask of which attempt writes."""

    job: str
    subtask: int
    parallelism: int
    epoch: int
    """The epoch of the attempt. A transaction of the same subtask, of the same parallelism and of an older epoch may be
    removed, unless its committable is to be kept. Other subtasks may still run in an older epoch."""


class SinkWriter(ABC):
    """Writes the records of one subtask into transactions, one per checkpoint. All methods are called on the loop, so
    that no method may block; the work that `prepare` returns runs off the loop, and may still run when `close` is
    called."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Put one batch into the open transaction. The records must not be visible yet."""

    def before_barrier(self) -> None:  # noqa: B027  # most writers hold nothing back
        """A checkpoint's barrier has come to this subtask, or all data has been seen: put the records that the writer
        holds back, in order to write many at once, into the open transaction. `prepare` follows, and closes the
        transaction."""

    @abstractmethod
    def prepare(self, checkpoint: int) -> Callable[[], list[bytes]]:
        """Close the open transaction and start the next transaction. Must be quick. The returned work runs off the
        loop, makes the closed transaction durable and returns its committables. Work that raised is tried again with
        the next checkpoint."""

    @property
    def commits(self) -> bool:
        """Whether the writer commits, by `commit`, what it has prepared. If not, `Sink.commit` does. What another
        writer prepared, before a failure, is always committed by `Sink.commit`: a pickled sink has no connection."""
        return False

    def commit(self, committables: Sequence[bytes]) -> None:
        """Make transactions visible that this writer has prepared, as `Sink.commit` does, with the connection that the
        writer has. Called off the loop, and may still run when `close` is called. Only called if the writer
        `commits`."""
        raise NotImplementedError(f"{type(self).__name__} was asked to commit {len(committables)} transactions")

    def close(self) -> None:  # noqa: B027  # most writers have nothing to close
        """Let go of files and connections; the open transaction is abandoned."""


class Committer(Held, ABC):
    """Commits what the subtasks of a sink prepared. A committer lives on the driver as long as the job does, and is
    called off the loop, one call at a time: calls may block."""

    @abstractmethod
    def commit(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        """Commit what all subtasks prepared at the barrier of `checkpoint`. Checkpoint ids ascend. May be called again
        with the same committables after a failure: the second call must do nothing, or do the same again."""

    def clean_up(self, job: str, epoch: int, keep: Sequence[bytes]) -> None:
        """Remove what attempts of the job before `epoch` prepared, except for `keep`, which will be committed. Called
        when an attempt begins, while the writers of the attempt may already write. A call that raises fails the
        attempt. `clean_up` and `abandon` are both called, and a committer implements one of them: `clean_up` if it can
        tell the attempts of transactions apart."""

    def abandon(self, checkpoint: int, promised: Sequence[bytes]) -> None:
        """Whatever was prepared at the barriers up to `checkpoint` will never be committed, except for `promised`.
        Called after a failure, before anything is committed again, and when the job ends."""

    def close(self, *, owes: bool) -> None:  # most committers have nothing to close
        """The job has ended. Called once. `owes` says that committables of a completed checkpoint or a savepoint were
        not committed: another job may start from that snapshot, so everything that a commit needs must stay. `owes` is
        always true on a driver that has lost the job: the driver that has the job commits the rest."""


class Sink(ABC):
    """Where results go. Pickled into every slot. Two sinks that are equal write to the same target, and a program may
    have only one of them."""

    @property
    def name(self) -> str:
        """What the step is called unless the user names it."""
        return type(self).__name__.lower()

    @property
    def saved_as(self) -> str:
        """The name of the form that committables have in snapshots. A snapshot is refused if its step of the same name
        was a sink with another form. Empty: sinks are not told apart."""
        return ""

    @property
    def unpickles(self) -> bool:
        """Whether the data that committables name is pickled. If so, `restore(..., unpickle=False)` refuses a snapshot
        that has committables."""
        return False

    def check(self, schema: pa.Schema) -> None:  # noqa: B027  # most sinks take any schema
        """Raise `UsageError` if records of this schema cannot be written. Called when the program is built."""

    def fitted(self, schema: pa.Schema) -> Sink:  # noqa: ARG002
        """The sink for records of this schema. Called when the program is built, after `check`."""
        return self

    def for_changes(self, changelog: Changelog) -> Sink:
        """The sink for a changelog: for records that say in their last column, `row_kind`, how a row changes. Called
        when the program is built, before `check` and `fitted`, and only for changelogs. A sink that takes changelogs
        implements it, and returns itself or a sink that knows `changelog`. Raises `UsageError` if the sink cannot take
        this changelog: because it needs the columns that identify a row, for example, and they are not known."""
        raise UsageError(
            f"{self.name} cannot change rows that it has written, and this stream is {changelog}",
            hint="write .changes(), which makes a record of each change, with its kind in the column row_kind; or "
            "collect(), print() or for_each_checkpoint(), which take changes",
        )

    def start(self, job: str) -> None:  # noqa: B027
        """On the driver, before the first subtask runs: make sure that the target can be written."""

    @abstractmethod
    def writer(self, context: WriterContext) -> SinkWriter:
        """A writer for one subtask. Called again in every attempt."""

    @property
    def commits_on_driver(self) -> bool:
        """Whether the transactions of all subtasks are committed together, on the driver, by the sink's `committer`."""
        return False

    def committer(self) -> Committer:
        """The committer of the sink. Called once, on the driver, if the sink `commits_on_driver`."""
        raise NotImplementedError(f"sink {self.name} has no committer")

    def commit(self, committables: Sequence[bytes]) -> None:
        """Make prepared transactions visible. Called off the loop, after the checkpoint of the transactions is durable.
        May be called again with the same committables after a failure, also while a slot that was given up still makes
        the first call: the second call must do nothing. A job that starts from an old savepoint commits the
        transactions that the savepoint names, however old the savepoint is. Raises `ExternalError` if the outside
        system is away: `retry` says whether a later call may succeed. Never called if the sink `commits_on_driver`."""
        raise NotImplementedError(
            f"sink {self.name} has no method commit, and has {len(committables)} transactions to commit"
        )

    def clean(self, context: WriterContext, keep: Sequence[bytes]) -> None:  # noqa: B027
        """Remove what earlier attempts of this subtask prepared with the same parallelism, except for `keep`. Called
        off the loop, before the writer is made, and not in the first attempt after a rescale. The committables in
        `keep` have just been committed, or will be committed by a job that starts from a savepoint of this job. Never
        called if the sink `commits_on_driver`: another subtask may carry the committables of this subtask, and only the
        committer knows all committables."""

    def end(self, job: str) -> None:  # noqa: B027
        """On the driver, after the job has ended and nothing is left that could go on from it: remove what only a
        running job needs. Not called if checkpoints are retained, if the job goes on when its program is run again, or
        if a savepoint names results that were not committed. Also called with the id of an earlier job, if the user
        started over with `fresh=True`: results that the earlier job prepared and did not commit are never shown."""

    def prepared(self, site: Site, schema: pa.Schema) -> Sink:  # noqa: ARG002  # most sinks need no preparation
        """The sink that is written, for records of this schema. Called on the driver, each time that the driver starts
        the job, before `start`."""
        return self

    @property
    def footprint(self) -> Footprint:
        """What the sink leaves outside the job's checkpoints."""
        return Footprint()


class UnpreparedSink(Sink):
    """A description of a sink that the user gives to `write`; not to be confused with `SinkWriter.prepare`, the first
    phase of a commit. `prepared` makes the sink that is written; this needs Spark."""

    @property
    def described(self) -> str:
        """What error texts call the sink."""
        return f"sink {self.name}"

    @abstractmethod
    def prepared(self, site: Site, schema: pa.Schema) -> Sink:
        """The sink that is written."""

    def start(self, job: str) -> None:  # noqa: ARG002
        """Raise `UsageError`: the description has not been prepared."""
        raise _needs_spark(self.described)

    def writer(self, context: WriterContext) -> SinkWriter:  # noqa: ARG002
        """Raise `UsageError`, as `start` does."""
        raise _needs_spark(self.described)


def _needs_spark(what: str) -> UsageError:
    return UsageError(
        f"{what} needs Spark, and this job runs without Spark", hint="use a source or sink that needs no Spark"
    )
