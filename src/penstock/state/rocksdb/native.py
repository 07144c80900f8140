"""Snapshots in RocksDB's own format: an index, and the table files of a database, which checkpoints share.

    4 bytes   PKRX
    2 bytes   version of this format
    4 bytes   number of bytes of the header
    …         the header: `Index` as JSON
    …         the small files that the header names, one after the other

Numbers are unsigned, most significant byte first. The index is the first file of a snapshot, and belongs to that
snapshot alone. The other files are the table files that the index names, in the order of the index. Table files never
change: a later snapshot of the same database refers to the table files that the database still has.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from penstock.api.state import StateKind
from penstock.core.errors import CorruptFile
from penstock.core.messages import StateFile
from penstock.state.backend import StateReader, StateWriter, reused
from penstock.state.rocksdb.catalog import FIRST_STATE, LAST_STATE, TIMERS_BY_KEY, TIMERS_BY_TIME, StateEntry
from penstock.state.rocksdb.database import Database
from penstock.state.rocksdb.table_bounds import check_table

MAGIC = b"PKRX"
VERSION = 1
TABLE = ".sst"
MOST_GROUPS = 1 << 16
_KINDS = tuple(kind.value for kind in StateKind if kind.is_keyed)
_LOG = ".log"
_LIBRARY = "rocksdict-config.json"
_SMALL = re.compile(rf"CURRENT|IDENTITY|MANIFEST-\d+|OPTIONS-\d+|{re.escape(_LIBRARY)}", re.ASCII)
_TABLE = re.compile(r"\d+\.sst", re.ASCII)
"""The names that files of a database can have. A file of a snapshot with another name is refused, so that a snapshot
cannot write elsewhere."""
_PREFIX = struct.Struct(">4sHI")
_HINT = "copy the file back from a backup, or restore from another checkpoint or savepoint"


class _Library(msgspec.Struct, frozen=True, kw_only=True):
    raw_mode: bool


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """What the index of a snapshot says. New fields: at the end, with a default."""

    operator: str
    keys: bytes
    """The key columns, as an Arrow schema."""
    groups: int
    """Key groups of the job."""
    own_groups: tuple[int, int]
    """First and last key group of the subtask that wrote the snapshot."""
    states: tuple[StateEntry, ...]
    next_element: int
    """No element of a list has this number or a higher one."""
    tables: tuple[str, ...] = ()
    """Names of the table files, in the order of the snapshot's files after the index."""
    small_files: tuple[tuple[str, int], ...] = ()
    """Names and sizes of the small files, whose content is in the index itself."""

    @property
    def key_schema(self) -> pa.Schema:
        """The key columns."""
        return pa.ipc.read_schema(pa.py_buffer(self.keys))


def upload(
    folder: Path,
    index: Index,
    writer: StateWriter,
    *,
    known: dict[str, StateFile],
    key_of: Callable[[str], str],
) -> tuple[tuple[StateFile, ...], dict[str, StateFile]]:
    """Write the files of a database, which lie in `folder`. `known` has the table files that were uploaded before, by
    name: the snapshot refers to them, and they are not written again. Returns the handles of the snapshot's files, and
    all table files by name, for `known` of a later call. For an empty database, returns no handles."""
    names = sorted(path.name for path in folder.iterdir())
    tables = [name for name in names if name.endswith(TABLE)]
    if not tables:
        return (), {}
    uploaded: dict[str, StateFile] = {}
    files: list[StateFile] = []
    for name in tables:
        if (file := known.get(name)) is not None:
            files.append(reused(file))
        else:
            file = writer.put_shared((folder / name).read_bytes(), key_of(name))
            files.append(file)
        uploaded[name] = file
    contents = {n: (folder / n).read_bytes() for n in names if not n.endswith(TABLE)}
    # The database has no write-ahead log, so its log file has no content.
    small = {name: content for name, content in contents.items() if content and not name.endswith(_LOG)}
    header = msgspec.json.encode(
        msgspec.structs.replace(
            index, tables=tuple(tables), small_files=tuple((name, len(content)) for name, content in small.items())
        )
    )
    data = b"".join([_PREFIX.pack(MAGIC, VERSION, len(header)), header, *small.values()])
    return (writer.put(data), *files), uploaded


def is_native(data: bytes) -> bool:
    """Whether a file is the index of a snapshot in this format."""
    return data[:4] == MAGIC


class NativeSnapshot:
    """A snapshot whose index was read; `what` names the index in errors. Raises `CorruptFile` if the index is cut
    short, was changed, or has a newer format."""

    def __init__(self, data: bytes, files: Sequence[StateFile], *, what: str) -> None:
        self._what = what
        if len(data) < _PREFIX.size:
            raise self._corrupt(f"is cut short: it has {len(data)} bytes, fewer than its prefix alone")
        _, version, size = _PREFIX.unpack_from(data)
        if version > VERSION:
            raise CorruptFile(
                f"{what} has format version {version}; this program reads up to {VERSION}", hint="use a newer penstock"
            )
        body = _PREFIX.size + size
        try:
            self.index = msgspec.json.decode(data[_PREFIX.size : body], type=Index)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise self._corrupt(f"has a header that cannot be read: {error}") from error
        self._check_states()
        self._small: dict[str, bytes] = {}
        for name, length in self.index.small_files:
            self._small[self._known(name, _SMALL)] = data[body : body + length]
            body += length
        if len(data) != body:
            raise self._corrupt(f"has {len(data)} bytes instead of {body}")
        if len(self.index.tables) != len(files) - 1:
            raise self._corrupt(f"names {len(self.index.tables)} table files, but the checkpoint has {len(files) - 1}")
        self._check_library()
        self.tables = {self._known(name, _TABLE): file for name, file in zip(self.index.tables, files[1:], strict=True)}
        paths = [file.path for file in files if file.path is not None]
        if len(self.tables) + 1 != len(files) or len(dict.fromkeys(paths)) != len(paths):
            raise self._corrupt("names a table file twice")

    def _check_states(self) -> None:
        """Raise `CorruptFile` unless every state has a name and a number that no other state has. Otherwise the rows of
        one state could be read with the type of another state."""
        first, last = self.index.own_groups
        if not 0 <= first <= last < self.index.groups <= MOST_GROUPS:
            raise self._corrupt(f"has the impossible key groups {first} to {last} of {self.index.groups}")
        names: dict[str, None] = {}
        numbers: dict[int, None] = {}
        for entry in self.index.states:
            if entry.name in names or entry.number in numbers or not FIRST_STATE <= entry.number <= LAST_STATE:
                raise self._corrupt(
                    f"has state {entry.name!r} with number {entry.number}: another state has this name or number, or "
                    "no state can have this number"
                )
            if entry.kind not in _KINDS:
                raise self._corrupt(f"has state {entry.name!r} of kind {entry.kind!r}, which is no kind of keyed state")
            names[entry.name], numbers[entry.number] = None, None

    def check_rows(self, db: Database) -> None:
        """Raise `CorruptFile` if the database has rows of a state or a key group that the index does not name. A state
        that the program declares later could get the number of such rows. If the values of that state are objects, the
        rows would be unpickled, which can run code. Reads one row of each state and key group."""
        first, last = (group.to_bytes(2, "big") for group in self.index.own_groups)
        known = {number.to_bytes(2, "big") for number in (TIMERS_BY_TIME, TIMERS_BY_KEY)}
        known |= {entry.number.to_bytes(2, "big") for entry in self.index.states}
        start: bytes | None = b""
        while start is not None and (row := next(db.items(start), None)) is not None:
            group, number = row[0][:2], row[0][2:4]
            if not first <= group <= last or number not in known:
                raise self._corrupt(
                    f"has table files with rows of state number {int.from_bytes(number, 'big')} in key group "
                    f"{int.from_bytes(group, 'big')}, which the index does not name"
                )
            start = _following(group + number)

    def download(self, folder: Path, reader: StateReader) -> None:
        """Write the files of the database into a new folder. Raises `CorruptFile` if a table file could be larger in
        memory than this package can have made it."""
        folder.mkdir()
        for name, content in self._small.items():
            (folder / name).write_bytes(content)
        for name, file in self.tables.items():
            with (folder / name).open("xb") as table:
                for piece in reader.pieces(file):
                    table.write(piece)
            try:
                check_table(folder / name)
            except ValueError as error:
                raise self._corrupt(
                    f"names the table file {file.path or name}, which this package cannot have written: {error}"
                ) from error

    def _check_library(self) -> None:
        """Raise `CorruptFile` if the library would unpickle values by itself. The library reads whether to do so from a
        file beside the database."""
        if (content := self._small.get(_LIBRARY)) is None:
            return
        try:
            said = msgspec.json.decode(content, type=_Library)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise self._corrupt(f"has a file {_LIBRARY} that cannot be read: {error}") from error
        if not said.raw_mode:
            raise self._corrupt(f"has a file {_LIBRARY} that tells the database library to unpickle values")

    def _known(self, name: str, pattern: re.Pattern[str]) -> str:
        if not pattern.fullmatch(name):
            raise self._corrupt(f"names a file {name!r}, which is not a file of a database")
        return name

    def _corrupt(self, text: str) -> CorruptFile:
        return CorruptFile(f"{self._what} {text}", hint=_HINT)


def _following(prefix: bytes) -> bytes | None:
    """The lowest key above all keys with a prefix; None if there is no such key."""
    number = int.from_bytes(prefix, "big") + 1
    return None if number >> (8 * len(prefix)) else number.to_bytes(len(prefix), "big")
