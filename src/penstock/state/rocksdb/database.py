"""One RocksDB database: its options, the memory that the databases of a process share, and the calls of the library.

Only this module calls the library. The options, and the reason for each option:

* No write-ahead log: after a failure the state comes from a checkpoint.
* Universal compaction: a file is seldom written again, so that few bytes are new from one checkpoint to the next. With
  leveled compaction, changes of one row in a hundred, spread over all rows, would cause most of the state to be written
  again every few checkpoints.
* A write does not wait for compaction until there are very many files. If writes waited, checkpoints would wait too.
* A file with many removed entries is compacted. Expired entries are removed one by one, and only compaction frees their
  space: the library offers no filters that drop expired entries during compaction.
* All databases of the process share one cache for blocks, indexes and filters, and one limit for write buffers.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import rocksdict

from penstock.core.errors import HostError, Retry
from penstock.settings import StateSettings

Change = tuple[bytes, bytes | None]
"""A key and its new value; None removes the key."""

_BACKGROUND_JOBS = 2
_BLOCK_BYTES = 16 * 1024
_FILTER_BITS = 10
_FILE_BYTES = 32 * 1024 * 1024
_RUNS_BEFORE_COMPACTION = 8
_RUNS_BEFORE_SLOWER_WRITES = 48
_RUNS_BEFORE_NO_WRITES = 64
_SIZE_AMPLIFICATION_PERCENT = 100
_SIZE_RATIO_PERCENT = 10
_DELETION_WINDOW, _DELETION_TRIGGER = 8_192, 4_096
_LOG_BYTES = 1024 * 1024


class _Shared:
    """The caches that the databases of this process share, while at least one database is open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[tuple[int, int], tuple[Any, Any]] = {}
        self._open = 0

    def join(self, settings: StateSettings) -> tuple[Any, Any]:
        """A database is opened. Returns the cache of blocks and the manager of write buffers for these settings."""
        with self._lock:
            self._open += 1
            sizes = (settings.block_cache_bytes, settings.write_buffer_bytes)
            if sizes not in self._made:
                cache = rocksdict.Cache(settings.block_cache_bytes)
                buffers = rocksdict.WriteBufferManager(settings.write_buffer_bytes, False)  # noqa: FBT003
                self._made[sizes] = (cache, buffers)
            return self._made[sizes]

    def leave(self) -> None:
        """A database was closed."""
        with self._lock:
            self._open -= 1
            if not self._open:
                self._made.clear()


_shared = _Shared()


class Database:
    """An open database. Several threads may call the methods; all threads see a change as soon as it is written.

    Opening, `write`, `ingest` and `link_files` raise `HostError` if the disk fails, or if the database is closed.
    """

    def __init__(self, path: Path, settings: StateSettings, *, read_only: bool = False) -> None:
        self.path = path
        cache, buffers = _shared.join(settings)
        access = rocksdict.AccessType.read_only(False) if read_only else rocksdict.AccessType.read_write()  # noqa: FBT003
        try:
            self._options = _options(settings, cache, buffers)
            self._db = rocksdict.Rdict(os.fspath(path), self._options, access_type=access)
        except Exception as error:
            _shared.leave()
            raise _failed("open", path, error) from error
        self._closed = False
        self._writing = rocksdict.WriteOptions()
        self._writing.disable_wal = True  # type: ignore[method-assign,assignment]
        self.get = self._db.get
        """The value of a key; None if the database does not have the key."""

    def items(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values from `start` on, in order, as the database has them at this moment: the iterator does not
        show later writes. The iterator may be read by another thread, and may outlive the database."""
        # Not by a snapshot of the library: an iterator over such a snapshot shows later writes.
        return self._db.items(from_key=start)  # type: ignore[return-value]

    def items_backwards(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values from `start` down, in descending order, as the database has them at this moment."""
        return self._db.items(backwards=True, from_key=start)  # type: ignore[return-value]

    def write(self, changes: Iterable[Change]) -> None:
        """Write the changes, all or none."""
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in changes:
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        try:
            self._db.write(batch, self._writing)
        except Exception as error:
            raise _failed("write to", self.path, error) from error

    def remove_range(self, first: bytes, end: bytes) -> None:
        """Remove all keys from `first`, inclusive, to `end`, exclusive."""
        self._db.delete_range(first, end, self._writing)

    def ingest(self, path: Path, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Add rows, which must be in ascending order of their keys. The rows are written to a table file at `path`, and
        the file becomes a file of the database."""
        try:
            writer = rocksdict.SstFileWriter(self._options)
            writer.open(os.fspath(path))
            for key, value in rows:
                writer[key] = value
            writer.finish()
            moving = rocksdict.IngestExternalFileOptions()
            moving.set_move_files(True)
            self._db.ingest_external_file([os.fspath(path)], moving)
        except Exception as error:
            raise _failed("write to", self.path, error) from error

    def link_files(self, folder: Path) -> None:
        """Make a copy of the database, as it is at this moment, in a new folder on the same disk. The table files of
        the copy are hard links."""
        try:
            # `create_checkpoint` would flush too, but while it does, no other thread could use the interpreter.
            self._db.flush()
            rocksdict.Checkpoint(self._db).create_checkpoint(os.fspath(folder))
        except Exception as error:
            raise _failed("make a checkpoint of", self.path, error) from error

    def is_compacting(self) -> bool:
        """Whether the database is rewriting files, or is about to."""
        names = ("num-running-compactions", "compaction-pending", "num-running-flushes", "mem-table-flush-pending")
        return any(self._db.property_int_value(f"rocksdb.{name}") for name in names)

    def close(self) -> None:
        """Close the database. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._db.close()
            _shared.leave()


def _options(settings: StateSettings, cache: Any, buffers: Any) -> Any:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)  # noqa: FBT003
    options.set_max_background_jobs(_BACKGROUND_JOBS)
    options.set_write_buffer_size(settings.write_buffer_bytes)
    options.set_write_buffer_manager(buffers)
    options.set_target_file_size_base(_FILE_BYTES)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    options.set_compaction_style(rocksdict.DBCompactionStyle.universal())
    universal = rocksdict.UniversalCompactOptions()
    universal.max_size_amplification_percent = _SIZE_AMPLIFICATION_PERCENT
    universal.size_ratio = _SIZE_RATIO_PERCENT
    options.set_universal_compaction_options(universal)
    options.set_level_zero_file_num_compaction_trigger(_RUNS_BEFORE_COMPACTION)
    options.set_level_zero_slowdown_writes_trigger(_RUNS_BEFORE_SLOWER_WRITES)
    options.set_level_zero_stop_writes_trigger(_RUNS_BEFORE_NO_WRITES)
    options.add_compact_on_deletion_collector_factory(_DELETION_WINDOW, _DELETION_TRIGGER, 0.0)
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(_LOG_BYTES)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    tables = rocksdict.BlockBasedOptions()
    tables.set_block_cache(cache)
    tables.set_block_size(_BLOCK_BYTES)
    tables.set_bloom_filter(_FILTER_BITS, False)  # noqa: FBT003
    tables.set_cache_index_and_filter_blocks(True)
    tables.set_pin_l0_filter_and_index_blocks_in_cache(True)
    tables.set_format_version(5)
    options.set_block_based_table_factory(tables)
    return options


def _failed(what: str, path: Path, error: Exception) -> HostError:
    return HostError(
        f"RocksDB could not {what} its database in {path}: {error}",
        hint="check the free space on that disk; local_directory of the state settings says in which folder databases "
        "lie",
        retry=Retry.LATER,
    )
