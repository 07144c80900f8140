"""Raw keyed state: bytes of a function's own format, one stream per state and key group.

Raw keyed state is held in memory with every back end, and has a file of its own in a snapshot:

    4 bytes   PKRW
    2 bytes   version of this format
    4 bytes   number of bytes of the header
    …         the header: `RawHeader` as JSON
    …         the streams, one after the other, in the order of the header

Numbers are unsigned, most significant byte first. Only the function knows the content of a stream; nothing here looks
into a stream. Streams of states that the function does not declare any more are kept, and written again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from penstock.api.state import RawKeyedState, State
from penstock.core.errors import CorruptFile, UsageError
from penstock.core.messages import OperatorState, StateFile
from penstock.state.backend import ListTable, StateReader, StateWriter
from penstock.state.handles import ListHandle

MAGIC = b"PKRW"
VERSION = 1
_PREFIX = struct.Struct(">4sHI")
_HINT = "copy the file back from a backup, or restore from another checkpoint or savepoint"


class RawStream(msgspec.Struct, frozen=True, kw_only=True):
    """What the header says about one stream. New fields: at the end, with a default."""

    name: str
    """The name of the state."""
    group: int
    size: int


class RawHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says about itself. New fields: at the end, with a default."""

    operator: str
    groups: int
    """Key groups of the job."""
    own_groups: tuple[int, int]
    """First and last key group of the subtask that wrote the file."""
    streams: tuple[RawStream, ...]


Streams = dict[int, bytes]
"""The streams of one state, by key group."""


def encode(operator: str, groups: int, own_groups: tuple[int, int], states: Mapping[str, Streams]) -> bytes | None:
    """The content of a file with these streams; None if there are no streams."""
    found = [(name, group, data) for name, streams in states.items() for group, data in sorted(streams.items())]
    if not found:
        return None
    entries = tuple(RawStream(name=name, group=group, size=len(data)) for name, group, data in found)
    header = msgspec.json.encode(RawHeader(operator=operator, groups=groups, own_groups=own_groups, streams=entries))
    return b"".join([_PREFIX.pack(MAGIC, VERSION, len(header)), header, *(data for _, _, data in found)])


class RawFile:
    """A file that was read; `what` names the file in errors. Raises `CorruptFile` for a file that is cut short, was
    changed, was not written by this package, or has a newer format."""

    def __init__(self, data: bytes, *, what: str) -> None:
        self._what = what
        if len(data) < _PREFIX.size:
            raise self._corrupt(f"is cut short: it has {len(data)} bytes, and its prefix alone has {_PREFIX.size}")
        magic, version, size = _PREFIX.unpack_from(data)
        if magic != MAGIC:
            raise self._corrupt("is not raw keyed state")
        if version > VERSION:
            raise CorruptFile(
                f"{what} has format version {version}; this program reads up to {VERSION}", hint="use a newer penstock"
            )
        end = _PREFIX.size + size
        try:
            self.header = msgspec.json.decode(data[_PREFIX.size : end], type=RawHeader)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise self._corrupt(f"has a header that cannot be read: {error}") from error
        self._places: dict[tuple[str, int], tuple[int, int]] = {}
        first, last = self.header.own_groups
        for stream in self.header.streams:
            if stream.size < 0 or not first <= stream.group <= last or (stream.name, stream.group) in self._places:
                raise self._corrupt(f"has an impossible stream of {stream.name!r} for key group {stream.group}")
            self._places[stream.name, stream.group] = (end, end + stream.size)
            end += stream.size
        if len(data) != end:
            raise self._corrupt(f"has {len(data)} bytes instead of {end}")
        self._data = data

    def streams(self, own: tuple[int, int]) -> Iterator[tuple[str, int, bytes]]:
        """Name, key group and bytes of every stream whose key group is from `own[0]` to `own[1]`."""
        for (name, group), (start, end) in self._places.items():
            if own[0] <= group <= own[1]:
                yield name, group, self._data[start:end]

    def _corrupt(self, text: str) -> CorruptFile:
        return CorruptFile(f"{self._what} {text}", hint=_HINT)


class RawKeyedStates:
    """The raw keyed states of one function in one subtask."""

    def __init__(
        self, declared: Mapping[str, State], *, operator: str, name: str, groups: int, own_groups: tuple[int, int]
    ) -> None:
        self._operator = operator
        self._name = name
        self._groups = groups
        self._own = own_groups
        self._streams: dict[str, Streams] = {state.spec.name: {} for state in declared.values()}
        self.handles: dict[str, State] = {
            attribute: RawKeyedHandle(state, self._streams[state.spec.name], own_groups)
            for attribute, state in declared.items()
        }
        """The handles, by the name of the attribute that declares the state."""

    def restore(self, states: Iterable[OperatorState], reader: StateReader) -> None:
        """Take in the streams of this subtask's key groups. Blocks. Raises `CorruptFile` or `StorageError`."""
        for file in (file for state in states for file in state.raw_keyed):
            where = "inside the metadata" if file.path is None else f"in {file.path}"
            what = f"the raw state of {self._name!r} {where}"
            for name, group, data in RawFile(reader.get(file), what=what).streams(self._own):
                streams = self._streams.setdefault(name, {})
                if group in streams:
                    raise CorruptFile(f"{what} has key group {group} of {name!r}, and so has another file", hint=_HINT)
                streams[group] = data

    def snapshot(self) -> Callable[[StateWriter], tuple[StateFile, ...]]:
        """Freeze the streams by reference, and return the work that writes them."""
        frozen = {name: dict(streams) for name, streams in self._streams.items() if streams}
        operator, groups, own = self._operator, self._groups, self._own

        def write(writer: StateWriter) -> tuple[StateFile, ...]:
            data = encode(operator, groups, own, frozen)
            return () if data is None else (writer.put(data),)

        return write


class RawKeyedHandle(RawKeyedState):
    """The streams of one state."""

    def __init__(self, declared: State, streams: Streams, own: tuple[int, int]) -> None:
        super().__init__(declared.spec)
        self._streams = streams
        self._own = range(own[0], own[1] + 1)

    @property
    def groups(self) -> range:
        """The key groups that this subtask owns."""
        return self._own

    def get(self, group: int) -> bytes:
        """The stream of a key group."""
        return self._streams.get(self._owned(group), b"")

    def set(self, group: int, data: bytes | bytearray | memoryview) -> None:
        """Replace the stream of a key group. Empty bytes remove the stream."""
        given = as_bytes(data, self)
        if given:
            self._streams[self._owned(group)] = given
        else:
            self._streams.pop(self._owned(group), None)

    def items(self) -> Iterator[tuple[int, bytes]]:
        """Every key group that has a stream, and its stream."""
        return iter(sorted(self._streams.items()))

    def exists(self) -> bool:
        """Whether there is at least one stream."""
        return bool(self._streams)

    def clear(self) -> None:
        """Remove all streams."""
        self._streams.clear()

    def _owned(self, group: int) -> int:
        if group not in self._own:
            raise UsageError(
                f"state {self.spec.name!r} was used for key group {group!r}; this subtask owns {self._own[0]} to "
                f"{self._own[-1]}",
                hint="use context.key_group, which is the key group of the current key",
            )
        return group


class RawListHandle(ListHandle):
    """A list of byte strings."""

    def __init__(self, declared: State, table: ListTable) -> None:
        super().__init__(declared, table)
        self._coerce = lambda value: as_bytes(value, declared)


def as_bytes(given: object, state: State) -> bytes:
    """The given value of a raw state as `bytes`, which are immutable. Raises `UsageError` if the value is not bytes."""
    if isinstance(given, bytes):
        return given
    if isinstance(given, bytearray | memoryview):
        return bytes(given)
    raise UsageError(
        f"state {state.spec.name!r} is raw, and takes bytes; {given!r} is not bytes", hint="encode the value first"
    )
