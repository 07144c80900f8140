"""The coordinator of a source that finds its splits while the job runs: asks its enumerator, deals out what it found.

Its state is the enumerator's position, and whose turn it is. A split that was given out is the reader's to keep: the
gateways see to it that it is in the reader's snapshot exactly if the position in this one's is behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.api.connector import Found, SplitEnumerator
from penstock.core.ids import CheckpointId, Instant
from penstock.runtime.master.operator_coordinators.contract import CoordinatorHost, OperatorCoordinator
from penstock.runtime.task.operators.events import NoMoreSplits, SplitsAdded, encode_event
from penstock.runtime.task.operators.source import SPLITS


class _State(msgspec.Struct, frozen=True, array_like=True):
    position: bytes | None = None
    ended: bool = False
    turn: int = 0
    """Counts the splits that were given out: the next one goes to the subtask of this number, modulo how many there
    are."""


def position_in(state: bytes) -> bytes | None:
    """The enumerator's position, by what a checkpoint has of its coordinator."""
    return msgspec.msgpack.decode(state, type=_State).position


class SplitAssigner(OperatorCoordinator):
    """Deals splits out to subtasks in turn, as they are found."""

    parts_name = SPLITS

    def __init__(self, host: CoordinatorHost, enumerator: SplitEnumerator) -> None:
        super().__init__(host)
        self._enumerator = enumerator
        enumerator.bind_hold(host.guard.hold)
        self._state = _State()
        self._positions: dict[CheckpointId, bytes | None] = {}
        """Of checkpoints that have not ended."""
        self._consumed: tuple[bytes | None, Sequence[bytes]] | None = None
        """What the newest checkpoint says, as long as the enumerator has not been told."""
        self._is_telling = False
        self._look_at: Instant | None = None
        self._waits_for_room = False
        self._is_behind: bool | None = None
        """What the checkpoint coordinator was told of the enumerator in this attempt."""
        self._given = 0
        """Splits that subtasks of this attempt have, or had."""
        self._read: dict[int, int] = {}
        """How many of them each subtask has read to their ends."""
        self._now = Instant(0)

    def reset(self, restored: bytes | None, parts: Sequence[bytes]) -> None:
        """Go on from the position of a checkpoint; its splits are the readers' already."""
        self._state = _State() if restored is None else msgspec.msgpack.decode(restored, type=_State)
        if self.more_data:
            self._state = msgspec.structs.replace(self._state, ended=False)
        self._positions = {}
        self._consumed, self._is_telling = None, False
        self._look_at = None
        self._waits_for_room = False
        self._is_behind = None
        self._given, self._read = len(parts), {}

    def run(self) -> None:
        """Have the enumerator start; readers are told again that nothing will follow, if it will not."""
        super().run()
        if self._state.ended:
            self.tell_all(encode_event(NoMoreSplits()))
            return
        position = self._state.position
        self.off_loop(lambda: self._enumerator.start(position), lambda _: self._look())

    def turn(self, now: Instant) -> None:
        """Look for more, if it is time to."""
        self._now = now
        if self._look_at is not None and now >= self._look_at:
            self._look()

    def splits_read(self, subtask: int, count: int) -> None:
        """There may be room for more."""
        self._read[subtask] = count
        if self._waits_for_room:
            self._look()

    def next_deadline(self) -> Instant | None:
        """When to look again."""
        return self._look_at

    def snapshot(self, checkpoint: CheckpointId) -> bytes:
        """The position, and whose turn it is."""
        position: object = self._state.position
        if not isinstance(position, bytes | None):
            raise TypeError(
                f"{type(self._enumerator).__name__}.discover returned a {type(position).__name__} as the position, "
                f"which cannot be part of a checkpoint; return bytes"
            )
        self._positions[checkpoint] = self._state.position
        return msgspec.msgpack.encode(self._state)

    def completed(self, checkpoint: CheckpointId, parts: Sequence[bytes]) -> None:
        """Tell the enumerator what is left to read. If it is slower than checkpoints come, it is told of the newest
        only: a line of such calls would keep it from finding more."""
        if checkpoint not in self._positions:
            return
        self._consumed = (self._positions[checkpoint], parts)
        self._positions = {c: p for c, p in self._positions.items() if c > checkpoint}
        if not self._is_telling:
            self._tell_consumed()

    def _tell_consumed(self) -> None:
        consumed, self._consumed = self._consumed, None
        if consumed is None:
            return
        self._is_telling = True

        def told(_: None) -> None:
            self._is_telling = False
            self._tell_consumed()

        self.off_loop(lambda: self._enumerator.consumed(*consumed), told)

    def aborted(self, checkpoint: CheckpointId) -> None:
        """It was asked for in vain."""
        self._positions.pop(checkpoint, None)

    def close(self) -> None:
        """Close the enumerator."""
        self._enumerator.close()

    def _look(self) -> None:
        self._look_at = None
        limit = self._enumerator.unread
        left = self._given - sum(self._read.values())
        self._waits_for_room = limit is not None and left >= limit * self.parallelism
        if self._waits_for_room:
            return
        position = self._state.position
        self.off_loop(lambda: self._enumerator.discover(position), self._found)

    def _found(self, found: Found) -> None:
        given: dict[int, list[bytes]] = {}
        for number, split in enumerate(found.splits, self._state.turn):
            given.setdefault(number % self.parallelism, []).append(split)
        self._state = _State(
            position=found.position, ended=found.ended, turn=(self._state.turn + len(found.splits)) % (1 << 32)
        )
        self._given += len(found.splits)
        is_behind = found.catching_up and not found.ended
        if is_behind != self._is_behind:
            self._is_behind = is_behind
            self.host.catching_up(is_behind)
        for subtask, splits in given.items():
            self.host.say(subtask, encode_event(SplitsAdded(splits=tuple(splits))))
        if found.ended:
            self.tell_all(encode_event(NoMoreSplits()))
        else:
            self._look_at = Instant(self._now + max(1, found.wait_ms))
