"""A streaming DataFrame as a source: a query lands micro-batches as Parquet files, and an enumerator follows the query.

    <folder>/query/                     the query's own checkpoint
    <folder>/data/<batch>/<landing>/    the files of a micro-batch, written by Spark
    <folder>/batches/<batch>            the record of a micro-batch: its splits
    <folder>/followed                   a sign that changes as long as an enumerator follows the query

The record of a micro-batch is written when all files of the micro-batch are there, and is never changed. After an
interruption Spark gives a micro-batch the same number and the same rows again. A micro-batch that has its record is not
landed again. So the record decides: a micro-batch with a record is there once, and a micro-batch without a record is
not there at all. A position names a micro-batch. Files that the newest completed checkpoint does not need are deleted.

Two queries may land the same micro-batch: a query that was stopped and its successor, or the queries of two drivers, of
which one has lost the job and does not know yet. Each query writes its files into a folder of its own, and only one of
the two records is created. Both have the same rows, so it does not matter which record it is.

Over Spark Connect the query runs in the server, and outlives a client that dies. So the query looks at the sign, and
ends itself when the sign has not changed for `UNFOLLOWED_S`.
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
from penstock.api.saved_pieces import decoded_piece
from penstock.connectors.parquet_files import FollowedFiles, file_of_split, whole_file_splits
from penstock.connectors.split_places import BelowFolder
from penstock.core.errors import CorruptFile, HostError, StorageError, UsageError
from penstock.descents import opened_folder, remove_tree, unlink
from penstock.private_folders import check_private
from penstock.spark import connect
from penstock.spark.arguments import check_appends, check_frame
from penstock.spark.clock import WallClock, fresh_token
from penstock.spark.dataframes import TIMESTAMP_CONF, UnlandedFrame
from penstock.spark.slots import short_reason
from penstock.storage.files import FileStore
from penstock.storage.seals import PLAIN, StoreOptions

LOOK_MS = 50
"""How often the enumerator looks for landed micro-batches. The latency of a micro-batch grows by at most this time."""

BATCHES_AT_ONCE = 64
"""The most micro-batches that one `discover` gives out."""

SIGN_MS = 1_000
"""How often an enumerator changes the sign."""

UNFOLLOWED_S = 60.0
"""When the sign has not changed for this long, a query in a Connect server ends itself with its next micro-batch."""


class _Position(msgspec.Struct, frozen=True, array_like=True):
    folder: str
    """The folder of the query. The numbers of micro-batches are those of this query."""
    following: int
    """The number of the first micro-batch that was not given out."""


class StreamSource(UnlandedFrame):
    """A streaming DataFrame, before the job starts. When the job starts, a `LandedStream` takes its place."""

    def __init__(self, frame: Any, *, trigger_ms: int | None, available_now: bool, directory: Path | None) -> None:
        check_frame(frame, method="from_stream")
        if not frame.isStreaming:
            raise UsageError(
                "from_stream takes a streaming DataFrame, and got a batch DataFrame",
                hint="use from_dataframe for a batch DataFrame",
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
        """The name of the step, unless the user names the step."""
        return "stream"

    @property
    def saved_as(self) -> str:
        """The form of the splits."""
        return "a landed stream"

    @property
    def discovers(self) -> bool:
        """Always."""
        return True

    @property
    def footprint(self) -> Footprint:
        """The micro-batches that a query lands, in the directory that the user gave or in the landing folder."""
        return Footprint(in_landing=self._directory is None)

    @property
    def is_unbounded(self) -> bool:
        """Whether the query goes on with data that comes later."""
        return not self._available_now

    @property
    def finds_more_later(self) -> bool:
        """Whether the stream ends with the data that is there when the job starts: later there may be more data."""
        return self._available_now

    def prepared(self, site: Site) -> Source:
        """The source over the micro-batches that a query lands. Raises `UsageError` if the job cannot go on with the
        micro-batches in the folder."""
        known = site.known_inputs(self._directory)
        if known is not None:
            return self._followed(Path(known), site)
        if site.has_ended:
            return self._followed(Path(site.landing, site.inputs()), site)
        resumes = not site.begins
        if resumes and self._directory is None:
            raise UsageError(
                f"stream {self.name!r} cannot go on from a snapshot: the micro-batches that the stream landed belong "
                "to the job that took the snapshot",
                hint="give from_stream a directory= that outlives the job",
            )
        place = self._directory or Path(site.landing, site.inputs())
        if any(_recorded(place)) and not resumes:
            raise UsageError(
                f"directory {place} of from_stream has micro-batches of an earlier job",
                hint="start from a snapshot of that job, or give from_stream an empty directory",
            )
        return self._followed(place, site)

    def _followed(self, place: Path, site: Site) -> Source:
        options = site.options
        return LandedStream(self._schema, place, lambda: StreamEnumerator(place, self._start, options))

    def _start(self, folder: Path, hold: Hold) -> Any:
        # Over Spark Connect the landing runs in the server, where this driver's hold is not known.
        landing = Landing(folder, Hold(), UNFOLLOWED_S) if self._outlives else Landing(folder, hold)
        writer = self._frame.writeStream.foreachBatch(landing)
        writer = writer.option("checkpointLocation", (folder / "query").as_uri())
        if self._available_now:
            writer = writer.trigger(availableNow=True)
        elif self._trigger_ms is not None:
            writer = writer.trigger(processingTime=f"{self._trigger_ms} milliseconds")
        return writer.start()


class LandedStream(Source):
    """The source over the files of a query, on the driver. Slots get only the part that reads files."""

    def __init__(self, schema: pa.Schema, place: Path, enumerator: Callable[[], SplitEnumerator]) -> None:
        self._place = place
        self._schema = schema
        self._enumerator = enumerator

    def __reduce__(self) -> tuple[Callable[..., Source], tuple[Any, ...]]:
        return _followed, (self._schema, self._place)

    @property
    def saved_as(self) -> str:
        """The form of the splits."""
        return "a landed stream"

    @property
    def schema(self) -> pa.Schema:
        """The DataFrame's columns."""
        return self._schema

    @property
    def name(self) -> str:
        """The name of the step, unless the user names the step."""
        return "stream"

    @property
    def footprint(self) -> Footprint:
        """The folder in which the query lands micro-batches."""
        return Footprint(place=str(self._place))

    @property
    def discovers(self) -> bool:
        """Always."""
        return True

    def splits(self, parallelism: int) -> list[bytes]:  # noqa: ARG002  # the enumerator finds all splits
        """No splits: the enumerator finds splits while the job runs."""
        return []

    def enumerator(self) -> SplitEnumerator:
        """The enumerator, which runs the query and follows it."""
        return self._enumerator()

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        """A reader over files."""
        return _followed(self._schema, self._place).open(splits)


def _followed(schema: pa.Schema, place: Path) -> Source:
    return FollowedFiles(columns=schema, places=BelowFolder(folder=str(place / "data")))


class StreamEnumerator(SplitEnumerator):
    """Keeps the query running, and gives out the splits of the micro-batches that the query lands."""

    def __init__(self, folder: Path, start: Callable[[Path, Hold], Any], options: StoreOptions = PLAIN) -> None:
        """`options` say which users may read the micro-batches."""
        self._store = FileStore(folder, options=options)
        self._folder = folder
        self._start = start
        self._query: Any = None
        self._clock = WallClock()
        self._name = fresh_token()
        self._signs = 0
        self._sign_due_ms = 0.0

    def start(self, position: bytes | None) -> None:
        """Start the query, unless the query still runs: a failed attempt of the job does not stop the query."""
        self._following(position)
        # All folders are made here, before Spark would make the folders with a mode that lets other users in.
        for name in ("batches", "data", "query"):
            self._store.make_folder(name)
            check_private(
                self._folder / name,
                what="the folder for micro-batches",
                setting="from_stream(directory=...)",
                mode=self._store.options.folder_mode,
            )
        self._show()
        if self._query is None or not self._query.isActive:
            self._query = self._start(self._folder, self.hold)

    def discover(self, position: bytes | None) -> Found:
        """The splits of the next micro-batches that have been landed."""
        following = self._following(position)
        self._show()
        # The query is looked at before the folder: if the query has ended, all its micro-batches are in the folder.
        is_over = self._query is not None and not self._query.isActive
        if is_over and (error := self._query.exception()) is not None:
            raise HostError(f"the streaming query failed: {short_reason(str(error))}")
        new = [batch for batch in _recorded(self._folder) if batch >= following]
        splits: list[bytes] = []
        for batch in new[:BATCHES_AT_ONCE]:
            if batch != following:
                raise StorageError(
                    f"micro-batch {following} is missing in {self._folder}, and micro-batch {batch} is there",
                    hint="a job that had gone further has read and deleted the missing micro-batch; restore from a "
                    "newer snapshot",
                )
            splits += _read_record(self._folder, batch)
            following += 1
        ended = is_over and len(new) <= BATCHES_AT_ONCE
        there = msgspec.msgpack.encode(_Position(str(self._folder), following))
        # The query has landed more micro-batches than are given out at once: the job is behind the query.
        behind = len(new) > BATCHES_AT_ONCE
        return Found(position=there, splits=splits, ended=ended, wait_ms=LOOK_MS, catching_up=behind)

    def consumed(self, position: bytes | None, unread: Sequence[bytes]) -> None:
        """Delete the micro-batches that will not be read again."""
        following = self._following(position)
        needed = set(map(self._batch_of, unread))
        for batch in _recorded(self._folder):
            if batch < following and batch not in needed:
                # By descriptors, which follow no links: a link in the folder could lead to files of other folders.
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
                f"the snapshot names {file!r}, which is no file of a micro-batch in {data}",
                hint="the snapshot was changed, or is of another stream: do not use this snapshot",
            ) from error

    def close(self) -> None:
        """Stop the query."""
        if self._query is not None:
            self._query.stop()

    def _show(self) -> None:
        """Change the sign, so that the query sees that it is followed."""
        now_ms = self._clock.precise_ms()
        if now_ms >= self._sign_due_ms:
            self._sign_due_ms = now_ms + SIGN_MS
            self._signs += 1
            hidden = self._folder / f".followed-{self._name}"
            hidden.write_text(f"{self._name} {self._signs}", encoding="ascii")
            # Renamed when it is written: the query never finds an empty sign.
            hidden.rename(_followed_file(self._folder))

    def _following(self, position: bytes | None) -> int:
        if position is None:
            return 0
        found = decoded_piece(position, _Position, what="the position of a landed stream")
        if found.folder != str(self._folder):
            raise UsageError(
                f"the snapshot is of a stream that was landed in {found.folder}, and this stream is landed in "
                f"{self._folder}",
                hint="give from_stream the same directory= as before the snapshot",
            )
        return found.following


class Landing:
    """The function that the query calls with every micro-batch, in the process that runs the query's Python. If the
    driver has lost the job, the call raises. If the hold is not known, the call goes on: a micro-batch that is landed
    twice is recorded once."""

    def __init__(self, folder: Path, hold: Hold, unfollowed_s: float | None = None) -> None:
        """When the sign has not changed for `unfollowed_s`, the query ends. None for a query that cannot outlive its
        enumerator."""
        self._folder = folder
        self._hold = hold
        self._unfollowed_s = unfollowed_s
        self._sign = ""
        self._seen_ms = 0.0

    def __call__(self, frame: Any, batch: int) -> None:
        """Land a micro-batch, unless it has been landed."""
        self._hold.check_unless_unknown()
        self._check_follower()
        record = _record(self._folder, batch)
        if record.exists():
            return
        data = self._folder / "data" / str(batch) / fresh_token()
        # A query has a session of its own, so this setting changes nothing for the user's session.
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
            # The folder was deleted with the job.
            sign = ""
        if sign and sign != self._sign:
            self._sign, self._seen_ms = sign, now_ms
        elif not sign or now_ms - self._seen_ms >= 1_000 * self._unfollowed_s:
            raise HostError(
                f"no program follows the streaming query that lands in {self._folder} any more: the program of the job "
                "is gone"
            )


def _record(folder: Path, batch: int) -> Path:
    return folder / "batches" / f"{batch:020d}"


def _recorded(folder: Path) -> list[int]:
    """The numbers of the micro-batches that have a record, in order."""
    return sorted(int(file.name) for file in (folder / "batches").glob("[0-9]*") if file.name.isdigit())


def _followed_file(folder: Path) -> Path:
    return folder / "followed"


def _read_record(folder: Path, batch: int) -> list[bytes]:
    try:
        return msgspec.msgpack.decode(_record(folder, batch).read_bytes(), type=list[bytes])
    except (OSError, msgspec.DecodeError) as error:
        raise StorageError(f"{_record(folder, batch)} cannot be read: {error}") from error


def _create_durably(path: Path, token: str, content: bytes) -> bool:
    """Create a file, durably, all or nothing. Returns False, and changes nothing, if the file exists. No other caller
    may have the same `token`. On a file system without hard links, a file that exists is replaced."""
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
        # A file system without hard links: the later of two records counts, and has the same rows.
        hidden.rename(path)
    else:
        hidden.unlink()
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return True
