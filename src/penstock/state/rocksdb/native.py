"""Snapshots in the own format: the table files of a database, shared between checkpoints, and an index.

    4 bytes   PKRX
    2 bytes   version of this format
    4 bytes   number of bytes of the header
    …         the header: `Index` as JSON
    …         the small files that the header names, one after the other

Numbers are unsigned, most significant byte first. The index is the first file of a snapshot and belongs to it alone;
the others are the table files that it names, in its order. Table files never change: a later snapshot of the same
database refers to those that it still has.
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

MAGIC = b"PKRX"
VERSION = 1
TABLE = ".sst"
MOST_GROUPS = 1 << 16
_KINDS = tuple(kind.value for kind in StateKind if kind.is_keyed)
_LOG = ".log"
_LIBRARY = "rocksdict-config.json"
_SMALL = re.compile(rf"CURRENT|IDENTITY|MANIFEST-\d+|OPTIONS-\d+|{re.escape(_LIBRARY)}", re.ASCII)
_TABLE = re.compile(r"\d+\.sst", re.ASCII)
"""What files of a database are called: no other file comes into its folder."""
_PREFIX = struct.Struct(">4sHI")
_HINT = "restore it from a copy, or restore from another checkpoint or savepoint"


class _Library(msgspec.Struct, frozen=True, kw_only=True):
    raw_mode: bool


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot says about itself. New fields: at the end, with a default."""

    operator: str
    keys: bytes
    """The key columns, as an Arrow schema."""
    groups: int
    """Key groups of the job."""
    own_groups: tuple[int, int]
    """First and last key group of the subtask that wrote it."""
    states: tuple[StateEntry, ...]
    next_element: int
    """No element of a list has this number or a higher one."""
    tables: tuple[str, ...] = ()
    """Names of the table files, in the order of the snapshot's files after the index."""
    small_files: tuple[tuple[str, int], ...] = ()
    """Names and sizes of those in the index itself."""

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
    """Write the files of a database that lie in `folder`. Those that are `known`, by their names, are referred to.
    Returns the handles, and the table files by their names, to be known from now on. An empty database has none."""
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
    # Nothing is ever written to the log.
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
    """A snapshot whose index was read. Raises `CorruptFile` if that is cut, changed or newer; `what` names it."""

    def __init__(self, data: bytes, files: Sequence[StateFile], *, what: str) -> None:
        self._what = what
        if len(data) < _PREFIX.size:
            raise self._corrupt(f"is cut: {len(data)} bytes are not even its beginning")
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
            raise self._corrupt(f"names {len(self.index.tables)} table files, the checkpoint has {len(files) - 1}")
        self._check_library()
        self.tables = {self._known(name, _TABLE): file for name, file in zip(self.index.tables, files[1:], strict=True)}
        paths = [file.path for file in files if file.path is not None]
        if len(self.tables) + 1 != len(files) or len(dict.fromkeys(paths)) != len(paths):
            raise self._corrupt("names a table file twice")

    def _check_states(self) -> None:
        """A database has every state under a name and a number of its own, so that nothing in it can be read as another
        type than the index says."""
        first, last = self.index.own_groups
        if not 0 <= first <= last < self.index.groups <= MOST_GROUPS:
            raise self._corrupt(f"has key groups {first} to {last} of {self.index.groups}")
        names: dict[str, None] = {}
        numbers: dict[int, None] = {}
        for entry in self.index.states:
            if entry.name in names or entry.number in numbers or not FIRST_STATE <= entry.number <= LAST_STATE:
                raise self._corrupt(f"has a state {entry.name!r} with number {entry.number}, which cannot be")
            if entry.kind not in _KINDS:
                raise self._corrupt(f"has a state {entry.name!r} of kind {entry.kind!r}")
            names[entry.name], numbers[entry.number] = None, None

    def check_rows(self, db: Database) -> None:
        """Raise `CorruptFile` if the database holds what the index does not name. Such rows would lie in wait for a
        state that the program declares later, and that gets their number: if its values are objects, they would be
        unpickled. Looks at one row of each state and key group."""
        first, last = (group.to_bytes(2, "big") for group in self.index.own_groups)
        known = {number.to_bytes(2, "big") for number in (TIMERS_BY_TIME, TIMERS_BY_KEY)}
        known |= {entry.number.to_bytes(2, "big") for entry in self.index.states}
        start: bytes | None = b""
        while start is not None and (row := next(db.items(start), None)) is not None:
            group, number = row[0][:2], row[0][2:4]
            if not first <= group <= last or number not in known:
                raise self._corrupt(
                    f"has table files with state {int.from_bytes(number, 'big')} of key group "
                    f"{int.from_bytes(group, 'big')}, which it does not name"
                )
            start = _following(group + number)

    def download(self, folder: Path, reader: StateReader) -> None:
        """Bring the files of the database into a new folder."""
        folder.mkdir()
        for name, content in self._small.items():
            (folder / name).write_bytes(content)
        for name, file in self.tables.items():
            (folder / name).write_bytes(reader.get(file))

    def _check_library(self) -> None:
        """The library could unpickle values by itself, and keeps beside the database whether it does."""
        if (content := self._small.get(_LIBRARY)) is None:
            return
        try:
            said = msgspec.json.decode(content, type=_Library)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise self._corrupt(f"has a file {_LIBRARY} that cannot be read: {error}") from error
        if not said.raw_mode:
            raise self._corrupt("says that the values of its database are objects of the library's")

    def _known(self, name: str, pattern: re.Pattern[str]) -> str:
        if not pattern.fullmatch(name):
            raise self._corrupt(f"names a file {name!r}")
        return name

    def _corrupt(self, text: str) -> CorruptFile:
        return CorruptFile(f"{self._what} {text}", hint=_HINT)


def _following(prefix: bytes) -> bytes | None:
    """What is behind all keys with a prefix; None if nothing can be."""
    number = int.from_bytes(prefix, "big") + 1
    return None if number >> (8 * len(prefix)) else number.to_bytes(len(prefix), "big")
