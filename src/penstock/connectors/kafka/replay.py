"""Exactly-once by replay with a marker: what is done in which order, and what is known after a failure.

Records of a checkpoint are kept until the checkpoint is complete. Then they are written in one short transaction, which
also writes a *marker*, the number of the checkpoint. A *lane* is the transactional id of one writer of one attempt; the
checkpoints of a lane are committed in their order, so the marker of a lane goes up.

    begin ──► produce ──► mark ──► commit

    fails where                          the cluster has                   the next `open` of the lane
    before `begin`                       nothing, marker below             does nothing; the records are written
    between `begin` and `commit`         an open transaction               aborts it; the records are written
    `commit` sent, answer lost           what the coordinator decided      waits for it; the marker says which
    behind `commit`                      records and marker                does nothing; the marker says so

`open` fences whoever had the lane before: after it, nothing of an earlier owner can become visible any more. So who has
a committable and has opened its lane knows by the marker alone whether the records are there. Any call that fails
leaves the lane closed: the next commit opens the lane again and looks at the marker.

Nothing here calls a cluster: a `Lane` does, a real one or one of the simulator.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec
import pyarrow as pa

from penstock.api.saved_pieces import decoded_piece
from penstock.core.errors import ExternalError, MissingFile, UsageError

OnUnknown = Literal["fail", "produce", "skip"]
"""What to do if the cluster may have forgotten whether records were written."""

_DAY_MS = 24 * 60 * 60 * 1_000


class Prepared(msgspec.Struct, frozen=True, array_like=True):
    """What one writer wrote between two barriers: a committable."""

    lane: str
    checkpoint: int
    places: tuple[bytes, ...]
    """The files with the records, in their order."""
    records: int
    topic: str
    """The topic whose partition 0 carries the marker."""
    topic_id: str
    created_ms: int


def decoded_prepared(committable: bytes) -> Prepared:
    """A committable as it comes from a snapshot. Raises `CorruptFile`."""
    return decoded_piece(committable, Prepared, what="prepared records for Kafka")


class Lane(ABC):
    """A writer of transactions, by its name. All calls block. A call raises `ExternalError` if it did not happen, or if
    nobody knows whether it happened."""

    @abstractmethod
    def open(self) -> None:
        """Take the lane: whoever had it can write nothing more, an open transaction is aborted, and a transaction whose
        commit was decided is finished."""

    @abstractmethod
    def marker(self, piece: Prepared) -> int | None:
        """The highest checkpoint of the lane that was committed; None if the cluster knows of none."""

    @abstractmethod
    def topic_id(self, topic: str) -> str:
        """The id of a topic; empty if the cluster does not tell."""

    @abstractmethod
    def forgets_after_ms(self) -> int:
        """For how long the cluster remembers a marker at least."""

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction."""

    @abstractmethod
    def produce(self, records: pa.Table) -> None:
        """Write records in the transaction."""

    @abstractmethod
    def mark(self, piece: Prepared) -> None:
        """Write the marker in the transaction."""

    @abstractmethod
    def commit(self) -> None:
        """Commit the transaction."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections. The lane may be opened again."""


class Replay:
    """Commits what was prepared for one lane. May be used from several threads, one call at a time."""

    def __init__(self, lane: Lane, *, on_unknown: OnUnknown, now_ms: Callable[[], int]) -> None:
        self._lane = lane
        self._on_unknown = on_unknown
        self._now_ms = now_ms
        self._is_open = False
        self._is_closed = False
        self._committed: int | None = None
        """The highest checkpoint that is known to be committed; None: not asked, or nothing is known."""
        self._lock = threading.Lock()

    def commit(self, piece: Prepared, read: Callable[[Prepared], Iterable[pa.Table]]) -> bool:
        """Have the records of `piece` in the cluster, once. Returns whether this call wrote them. `read` reads the kept
        records, and is called only if they have to be written."""
        with self._lock:
            try:
                return self._commit(piece, read)
            except BaseException:
                self._let_go()
                raise
            finally:
                if self._is_closed:
                    self._let_go()

    def close(self) -> None:
        """Close the lane, now or when the commit that is under way has ended."""
        self._is_closed = True
        if self._lock.acquire(blocking=False):
            try:
                self._let_go()
            finally:
                self._lock.release()

    def _commit(self, piece: Prepared, read: Callable[[Prepared], Iterable[pa.Table]]) -> bool:
        if not self._is_open:
            self._lane.open()
            self._is_open = True
            self._committed = self._known(piece)
        if self._committed is not None and self._committed >= piece.checkpoint:
            return False
        # Everything is read before anything is written: a file that is missing must not leave a transaction open.
        tables = list(read(piece))
        self._lane.begin()
        for table in tables:
            self._lane.produce(table)
        self._lane.mark(piece)
        self._lane.commit()
        self._committed = piece.checkpoint
        return True

    def _known(self, piece: Prepared) -> int | None:
        """What the marker says. Raises `ExternalError` if nobody can know, or if the topic is another topic."""
        marker = self._lane.marker(piece)
        if marker is not None:
            return marker
        there = self._lane.topic_id(piece.topic)
        if piece.topic_id and there and there != piece.topic_id:
            raise ExternalError(
                f"topic {piece.topic!r} was deleted and made anew since {piece.records} records of checkpoint "
                f"{piece.checkpoint} were prepared for it, so nobody knows whether they were written",
                hint="start over with fresh=True, or give the step another name",
            )
        age_ms = self._now_ms() - piece.created_ms
        if age_ms <= max(0, self._lane.forgets_after_ms() - _DAY_MS) or self._on_unknown == "produce":
            return None
        if self._on_unknown == "skip":
            return piece.checkpoint
        raise ExternalError(
            f"nobody knows whether {piece.records} records of checkpoint {piece.checkpoint} are in topic "
            f"{piece.topic!r}: they were prepared {age_ms // _DAY_MS} days ago by {piece.lane}, and the cluster "
            f"forgets after {self._lane.forgets_after_ms() // _DAY_MS} days what was committed",
            hint="look whether the records are there, and give kafka_sink on_unknown='skip' if they are, or "
            "on_unknown='produce' if they are not; marker_topic= keeps what was committed for good",
        )

    def _let_go(self) -> None:
        if self._is_open:
            self._is_open, self._committed = False, None
            self._lane.close()


def commit_all(
    committables: Sequence[bytes],
    *,
    replay_of: Callable[[str], Replay],
    read: Callable[[Prepared], Iterable[pa.Table]],
    done: Callable[[Prepared], None],
) -> None:
    """Commit what a restored snapshot promises, lane by lane, each in the order of its checkpoints. `done` is called
    for each piece when its records are in the cluster."""
    lanes: dict[str, list[Prepared]] = {}
    for piece in map(decoded_prepared, committables):
        lanes.setdefault(piece.lane, []).append(piece)
    for lane, pieces in lanes.items():
        replay = replay_of(lane)
        try:
            for piece in sorted(pieces, key=lambda each: each.checkpoint):
                _commit(replay, piece, read)
                done(piece)
        finally:
            replay.close()


def _commit(replay: Replay, piece: Prepared, read: Callable[[Prepared], Iterable[pa.Table]]) -> None:
    try:
        replay.commit(piece, read)
    except MissingFile as error:
        raise UsageError(
            f"{piece.records} records of checkpoint {piece.checkpoint} for topic {piece.topic!r} are neither known to "
            f"be written nor kept any more: {error.message}",
            hint="files are deleted when their records have been written: if nobody deleted files by hand, the records "
            "are in the topic, and the cluster has forgotten so: give kafka_sink on_unknown='skip'",
        ) from error
