"""Lines from a TCP socket, for trying things out.

A socket cannot be read again. Lines that were read from the socket and are in no completed checkpoint are lost when the
job fails: the source is *at most once*, whatever the checkpoints of the job promise about everything behind it.
"""

from __future__ import annotations

import logging
import socket as sockets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from penstock.api.connector import End, Pause, Polled, Site, Source, SourceReader
from penstock.api.fetching import WAIT_MS, Fetcher
from penstock.api.saved_pieces import decoded_piece
from penstock.connectors.file_formats import TEXT_SCHEMA, TextLines
from penstock.core.errors import ExternalError, Retry, StreamError, UsageError

log = logging.getLogger(__name__)

CONNECT_S = 10.0
"""How long a connection may take to come up."""
LONGEST_LINE_BYTES = 1024 * 1024
"""A longer line is refused: most probably the other side does not send lines."""

_CHUNK_BYTES = 65_536
_HIGHEST_PORT = 65_535


def socket(host: str, port: int) -> SocketLines:
    """Lines of text from a TCP socket, in a column `line`: for trying things out, such as with `nc -lk 9999`.

    **A socket cannot be read again.** Lines that were read and are in no completed checkpoint are lost when the job
    fails. For data that counts, write the lines into files or a log first.

    One subtask connects, and reads until the other side closes the connection. If there is nobody to connect to, or the
    connection breaks, the attempt of the job fails, and the restart strategy of the job decides whether to connect
    again. Bytes that are no UTF-8 are replaced.

        >>> socket("localhost", 9999).schema.names
        ['line']

    Args:
        host: the name or address of the other side, as the slots know it.
        port: the port of the other side.

    """
    if not isinstance(host, str) or not host.strip():
        raise UsageError(f"host is {host!r}", hint="give the name or the address of a machine, such as 'localhost'")
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port <= _HIGHEST_PORT:
        raise UsageError(f"port is {port!r}; give a whole number from 1 to {_HIGHEST_PORT}")
    return SocketLines(host=host, port=port)


class _Place(msgspec.Struct, frozen=True, array_like=True):
    lines: int = 0
    """How many lines were handed on. For people: nobody can go back there."""


@dataclass(frozen=True, kw_only=True)
class SocketLines(Source):
    """The source that `socket` makes. The position is not pickled. The source leaves nothing outside the job's
    checkpoints, and finds no more lines later."""

    host: str
    port: int

    @property
    def saved_as(self) -> str:
        """The form of the splits."""
        return "a socket"

    @property
    def name(self) -> str:
        """The name of the step, unless the user names the step."""
        return "socket"

    @property
    def schema(self) -> pa.Schema:
        """The column `line`."""
        return TEXT_SCHEMA

    @property
    def is_unbounded(self) -> bool:
        """True: only the other side knows whether lines are still to come."""
        return True

    def prepared(self, site: Site) -> Source:
        """Warn that lines may be lost."""
        if not site.has_ended:
            log.warning(
                "the lines of socket %s:%d cannot be read again: lines that are in no completed checkpoint are lost if "
                "the job fails",
                self.host,
                self.port,
            )
        return self

    def splits(self, parallelism: int) -> list[bytes]:  # noqa: ARG002  # there is a single connection
        """One split: the connection."""
        return [msgspec.msgpack.encode(_Place())]

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        """A reader with a connection of its own, or of nothing."""
        places = [decoded_piece(split, _Place, what="the position in a socket") for split in splits]
        return _SocketReader(self, places[0] if places else None)


class _SocketReader(SourceReader):
    """Hands on the lines that have come. All lines are of one split, so they share one event time."""

    def __init__(self, source: SocketLines, place: _Place | None) -> None:
        self._address = (source.host, source.port)
        self._place = place
        self._connection: sockets.socket | None = None
        self._is_closed = False
        self._fetcher = None if place is None else Fetcher(self._chunks, name="socket")

    def poll(self, max_rows: int, now_ms: int) -> Polled:  # noqa: ARG002  # the other side has the clock
        """The lines that have come and were not handed on."""
        fetcher, place = self._fetcher, self._place
        if fetcher is None or place is None:
            return End()
        # Lines may come between the two looks: so the end is looked at first.
        has_ended = fetcher.has_ended
        batch = fetcher.take(max_rows)
        if isinstance(batch, pa.RecordBatch):
            self._place = _Place(place.lines + batch.num_rows)
            return batch
        if not has_ended:
            return Pause(WAIT_MS)
        if fetcher.error is not None:
            self._raise(fetcher.error, place)
        self._place, self._fetcher = None, None
        return End()

    def snapshot(self) -> list[bytes]:
        """The split; nothing if the other side has closed the connection."""
        return [] if self._place is None else [msgspec.msgpack.encode(self._place)]

    def close(self) -> None:
        """Close the connection, which ends the thread."""
        self._is_closed = True
        if self._fetcher is not None:
            self._fetcher.close()
        if self._connection is not None:
            _shut(self._connection)

    def _chunks(self) -> Iterator[pa.RecordBatch]:
        """Batches of the lines that come. Runs on the thread of the fetcher."""
        form, left = TextLines(), b""
        with sockets.create_connection(self._address, timeout=CONNECT_S) as connection:
            connection.settimeout(None)
            self._connection = connection
            while not self._is_closed and (chunk := connection.recv(_CHUNK_BYTES)):
                whole, line_break, left = (left + chunk).rpartition(b"\n")
                if line_break:
                    yield form.decode(_text(whole + line_break))
                if len(left) > LONGEST_LINE_BYTES:
                    host, port = self._address
                    raise UsageError(
                        f"socket {host}:{port} sent a line of more than {LONGEST_LINE_BYTES} bytes",
                        hint="the other side must send lines of text",
                    )
        if left and not self._is_closed:
            yield form.decode(_text(left + b"\n"))

    def _raise(self, error: BaseException, place: _Place) -> None:
        if isinstance(error, StreamError) or not isinstance(error, OSError):
            raise error
        host, port = self._address
        raise ExternalError(
            f"socket {host}:{port} could not be read: {error}; {place.lines} lines were read before",
            hint="start the other side first, for example with nc -lk, and see that the slots can reach it",
            retry=Retry.LATER,
        ) from error


def _text(lines: bytes) -> bytes:
    """The same lines, as UTF-8 in any case."""
    return lines.decode(errors="replace").encode()


def _shut(connection: sockets.socket) -> None:
    try:
        connection.shutdown(sockets.SHUT_RDWR)
    except OSError:
        # The connection is gone already.
        return
