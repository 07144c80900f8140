"""A streaming DataFrame as a source: a query lands its micro-batches as Parquet, an enumerator follows them.

    <folder>/query/                     the query's own checkpoint
    <folder>/data/<batch>/<landing>/    the files of a batch, written by Spark
    <folder>/batches/<batch>            its splits; written when all its files are there, and never changed
    <folder>/followed                   changes as long as somebody follows

Spark gives a batch that was interrupted the same number and the same rows again; a batch that has its record is not
written again. So a record is the fact that both sides agree on: behind it the batch is there once, before it not at
all. What a position names is a batch; files go when a completed checkpoint no longer needs them.

Two queries may land the same batch: one that was stopped and its successor, or those of two drivers, of which one was
taken over from and does not know it yet. Each has a folder of its own for the files, and of the two records one is
made. So it does not matter whose it is.

Over Spark Connect the query runs in the server, and outlives a client that dies. It looks whether it is followed, and
ends itself when it has not been for `UNFOLLOWED_S`.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from penstock.api.connector import Footprint, Found, Site, Source, SourceReader, SplitEnumerator
from penstock.api.hold import Hold
from penstock.connectors.parquet_files import FollowedFiles, file_of_split, whole_file_splits
from penstock.core.errors import CorruptFile, HostError, StorageError, UsageError
from penstock.descents import opened_folder, remove_tree, unlink
from penstock.spark import connect
from penstock.spark.arguments import check_appends, check_frame
from penstock.spark.clock import WallClock, fresh_token
from penstock.spark.dataframes import TIMESTAMP_CONF, UnlandedFrame
from penstock.spark.slots import short_reason

LOOK_MS = 50
"""How often the folder is looked at: the most that it adds to the latency of a batch."""

BATCHES_AT_ONCE = 64
"""So many batches, at most, are given out at a time."""

SIGN_MS = 1_000
"""How often a follower shows that it is there."""

UNFOLLOWED_S = 60.0
"""A query in a server ends itself with the first batch that comes when its follower has not shown itself so long."""


class _Position(msgspec.Struct, frozen=True, array_like=True):
    folder: str
    """Batches are numbered by the query whose checkpoint lies there."""
    following: int
    """The first batch that was not given out."""


class StreamSource(UnlandedFrame):
    """A streaming DataFrame, of which a query lands files that are followed."""

    def __init__(self, frame: Any, *, trigger_ms: int | None, available_now: bool, directory: Path | None) -> None:
        check_frame(frame, method="from_stream")
        if not frame.isStreaming:
            raise UsageError(
                "from_stream takes a streaming DataFrame, this one is not", hint="use from_dataframe for it"
            )
        self._outlives = connect.is_connect(frame.sparkSession)
        if self._outlives:
            connect.check_queries(frame.sparkSession)
        else:
            check_appends(frame)
        super().__init__(frame)
        self._directory = directory
        self._trigger_ms = trigger_ms
        self._available_now = available_now

    @property
    def name(self) -> str:
        """What the step is called unless the user names it."""
        return "stream"

    @property
    def discovers(self) -> bool:
        """Always."""
        return True

    @property
    def footprint(self) -> Footprint:
        """The batches that a query landed, in a directory of the user's or of the job's."""
        return Footprint(in_landing=self._directory is None)

    @property
    def finds_more_later(self) -> bool:
        """If it ends with what is there."""
        return self._available_now

    def prepared(self, site: Site) -> Source:
        """The source over what a query lands. Raises `UsageError` if the job cannot go on with what lies there."""
        known = site.known_inputs(self._directory)
        if known is not None:
            return self._followed(Path(known))
        folder = Path(site.landing) / site.inputs()
        return self._followed(folder) if site.has_ended else self._land(folder, resumes=not site.begins)

    def _followed(self, place: Path) -> Source:
        return LandedStream(self._schema, place, lambda: StreamEnumerator(place, self._start))

    def _land(self, folder: Path, *, resumes: bool) -> Source:
        place = self._directory or folder
        has_batches = any(_recorded(place))
        if resumes and self._directory is None:
            raise UsageError(
                f"stream {self.name!r} cannot go on from a snapshot: what it landed belonged to the job of then",
                hint="give from_stream a directory= that outlives the job",
            )
        if has_batches and not resumes:
            raise UsageError(
                f"{place} has batches of an earlier job",
                hint="start from a snapshot of that job, or give from_stream an empty directory",
            )
        return self._followed(place)

    def _start(self, folder: Path, hold: Hold) -> Any:
        # Over Spark Connect it is called in the server, where nothing is known of this driver's hold.
        landing = Landing(folder, Hold(), UNFOLLOWED_S) if self._outlives else Landing(folder, hold)
        writer = self._frame.writeStream.foreachBatch(landing)
        writer = writer.option("checkpointLocation", (folder / "query").as_uri())
        if self._available_now:
            writer = writer.trigger(availableNow=True)
        elif self._trigger_ms is not None:
            writer = writer.trigger(processingTime=f"{self._trigger_ms} milliseconds")
        return writer.start()


class LandedStream(Source):
    """A streaming DataFrame that is landed while the job runs. In slots there is only the part that reads files."""

    def __init__(self, schema: pa.Schema, place: Path, enumerator: Callable[[], SplitEnumerator]) -> None:
        self._place = place
        self._schema = schema
        self._enumerator = enumerator

    def __reduce__(self) -> tuple[Callable[..., Source], tuple[Any, ...]]:
        return _followed, (self._schema,)

    @property
    def schema(self) -> pa.Schema:
        """The DataFrame's columns."""
        return self._schema

    @property
    def name(self) -> str:
        """What the step is called."""
        return "stream"

    @property
    def footprint(self) -> Footprint:
        """The folder that the query lands batches in."""
        return Footprint(place=str(self._place))

    @property
    def discovers(self) -> bool:
        """Always."""
        return True

    def splits(self, parallelism: int) -> list[bytes]:  # noqa: ARG002  # all of them are found later
        """None to begin with."""
        return []

    def enumerator(self) -> SplitEnumerator:
        """Follows the query."""
        return self._enumerator()

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        """A reader over files."""
        return _followed(self._schema).open(splits)


def _followed(schema: pa.Schema) -> Source:
    return FollowedFiles(columns=schema)


class StreamEnumerator(SplitEnumerator):
    """Keeps the query running and gives out the batches it lands."""

    def __init__(self, folder: Path, start: Callable[[Path, Hold], Any]) -> None:
        self._folder = folder
        self._start = start
        self._query: Any = None
        self._clock = WallClock()
        self._name = fresh_token()
        self._signs = 0
        self._sign_due_ms = 0.0

    def start(self, position: bytes | None) -> None:
        """Start the query, unless it still runs: an attempt that failed is no reason to stop it."""
        self._following(position)
        (self._folder / "batches").mkdir(parents=True, exist_ok=True)
        self._show()
        if self._query is None or not self._query.isActive:
            self._query = self._start(self._folder, self.hold)

    def discover(self, position: bytes | None) -> Found:
        """The next batches that have been landed."""
        following = self._following(position)
        self._show()
        # Looked at before the folder: what a query that has ended landed is there by then.
        is_over = self._query is not None and not self._query.isActive
        if is_over and (error := self._query.exception()) is not None:
            raise HostError(f"the streaming query failed: {short_reason(str(error))}")
        new = [batch for batch in _recorded(self._folder) if batch >= following]
        splits: list[bytes] = []
        for batch in new[:BATCHES_AT_ONCE]:
            if batch != following:
                raise StorageError(
                    f"batch {following} is missing in {self._folder}, and batch {batch} is there",
                    hint="it was read, and deleted, by a job that had gone further; restore from a newer snapshot",
                )
            splits += _read_record(self._folder, batch)
            following += 1
        ended = is_over and len(new) <= BATCHES_AT_ONCE
        there = msgspec.msgpack.encode(_Position(str(self._folder), following))
        # More was landed than is given out at once: the query is ahead of the job.
        behind = len(new) > BATCHES_AT_ONCE
        return Found(position=there, splits=splits, ended=ended, wait_ms=LOOK_MS, catching_up=behind)

    def consumed(self, position: bytes | None, unread: Sequence[bytes]) -> None:
        """Delete batches that nobody will read again."""
        following = self._following(position)
        needed = set(map(self._batch_of, unread))
        for batch in _recorded(self._folder):
            if batch < following and batch not in needed:
                # By descriptor: whoever can write there could have a link lead to other folders.
                with suppress(OSError), opened_folder(self._folder, ("data",)) as data:
                    remove_tree(data, str(batch))
                with suppress(FileNotFoundError), opened_folder(self._folder, ("batches",)) as batches:
                    unlink(batches, _record(self._folder, batch).name)

    def _batch_of(self, split: bytes) -> int:
        file, data = file_of_split(split), self._folder / "data"
        try:
            return int(Path(file).relative_to(data).parts[0])
        except (ValueError, IndexError) as error:
            raise CorruptFile(
                f"the snapshot names {file!r}, which is no file of a batch in {data}",
                hint="the snapshot was changed, or is of another stream: do not use it",
            ) from error

    def close(self) -> None:
        """Stop the query."""
        if self._query is not None:
            self._query.stop()

    def _show(self) -> None:
        """Let the query see that it is followed."""
        now_ms = self._clock.precise_ms()
        if now_ms >= self._sign_due_ms:
            self._sign_due_ms = now_ms + SIGN_MS
            self._signs += 1
            hidden = self._folder / f".followed-{self._name}"
            hidden.write_text(f"{self._name} {self._signs}", encoding="ascii")
            # Nobody finds it empty.
            hidden.rename(_followed_file(self._folder))

    def _following(self, position: bytes | None) -> int:
        if position is None:
            return 0
        found = msgspec.msgpack.decode(position, type=_Position)
        if found.folder != str(self._folder):
            raise UsageError(
                f"the snapshot is of a stream that was landed in {found.folder}, this one is landed in {self._folder}",
                hint="give from_stream the directory= that it had",
            )
        return found.following


class Landing:
    """What the query calls with every batch, in the process that runs the query's Python. It does nothing for a driver
    that has lost the job; where that cannot be found out it goes on, since a batch that is landed twice is recorded
    once."""

    def __init__(self, folder: Path, hold: Hold, unfollowed_s: float | None = None) -> None:
        """If nobody has followed for `unfollowed_s` the query ends; None if it ends with its follower anyway."""
        self._folder = folder
        self._hold = hold
        self._unfollowed_s = unfollowed_s
        self._sign = ""
        self._seen_ms = 0.0

    def __call__(self, frame: Any, batch: int) -> None:
        """Write a batch, once."""
        self._hold.check_unless_unknown()
        self._check_follower()
        record = _record(self._folder, batch)
        if record.exists():
            return
        data = self._folder / "data" / str(batch) / fresh_token()
        # The session of the query is its own.
        frame.sparkSession.conf.set(TIMESTAMP_CONF, "TIMESTAMP_MICROS")
        frame.write.parquet(data.as_uri())
        splits = [split for file in sorted(data.glob("part-*.parquet")) for split in whole_file_splits(file)]
        self._hold.check_unless_unknown()
        if not _create_durably(record, data.name, msgspec.msgpack.encode(splits)):
            shutil.rmtree(data, ignore_errors=True)

    def _check_follower(self) -> None:
        if self._unfollowed_s is None:
            return
        now_ms = WallClock().precise_ms()
        try:
            sign = _followed_file(self._folder).read_text(encoding="ascii")
        except OSError:
            # The folder went with the job.
            sign = ""
        if sign and sign != self._sign:
            self._sign, self._seen_ms = sign, now_ms
        elif not sign or now_ms - self._seen_ms >= 1_000 * self._unfollowed_s:
            raise HostError(f"nobody follows {self._folder} any more: the program whose job read it is gone")


def _record(folder: Path, batch: int) -> Path:
    return folder / "batches" / f"{batch:020d}"


def _recorded(folder: Path) -> list[int]:
    """The batches that are there, in order."""
    return sorted(int(file.name) for file in (folder / "batches").glob("[0-9]*") if file.name.isdigit())


def _followed_file(folder: Path) -> Path:
    return folder / "followed"


def _read_record(folder: Path, batch: int) -> list[bytes]:
    try:
        return msgspec.msgpack.decode(_record(folder, batch).read_bytes(), type=list[bytes])
    except (OSError, msgspec.DecodeError) as error:
        raise StorageError(f"{_record(folder, batch)} cannot be read: {error}") from error


def _create_durably(path: Path, token: str, content: bytes) -> bool:
    """All of it is there under its name, or nothing; whether it was not there before. Nobody else has that token."""
    hidden = path.with_name(f".{path.name}-{token}")
    with hidden.open("wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    try:
        os.link(hidden, path)
    except FileExistsError:
        hidden.unlink()
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        # No links there: the later of two records counts, which has the same rows.
        hidden.rename(path)
    else:
        hidden.unlink()
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return True
