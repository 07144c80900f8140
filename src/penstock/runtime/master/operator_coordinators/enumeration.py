"""The coordinator of a source that finds its splits while the job runs: deals out what the enumerator finds.

The state of the coordinator is the enumerator's position, and which subtask gets the next split. A split that was given
out is kept by its reader: the gateways make sure that a checkpoint has the split in the reader's snapshot exactly if
the position in the coordinator's snapshot is behind the split.
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
    """How many splits were given out. The next split goes to the subtask of this number, modulo the parallelism."""


def position_in(state: bytes) -> bytes | None:
    """The enumerator's position, in the state that a checkpoint has of the coordinator."""
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
        """The positions in checkpoints that have not ended."""
        self._consumed: tuple[bytes | None, Sequence[bytes]] | None = None
        """The position and the unread splits in the newest completed checkpoint, until the enumerator is told."""
        self._is_telling = False
        self._look_at: Instant | None = None
        self._waits_for_room = False
        self._is_behind: bool | None = None
        """Whether the enumerator is behind, as the checkpoint coordinator was last told in this attempt; None: not told
        yet."""
        self._given = 0
        """How many splits the subtasks of this attempt have got."""
        self._read: dict[int, int] = {}
        """How many splits each subtask of this attempt has read to their ends."""
        self._now = Instant(0)

    def reset(self, restored: bytes | None, parts: Sequence[bytes]) -> None:
        """Go on from the position of a checkpoint. The readers already have the splits of the checkpoint."""
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
        """Have the enumerator start. If there are no more splits, only tell the readers so again."""
        super().run()
        if self._state.ended:
            self.tell_all(encode_event(NoMoreSplits()))
            return
        position = self._state.position
        self.off_loop(lambda: self._enumerator.start(position), lambda _: self._look())

    def turn(self, now: Instant) -> None:
        """Look for more splits, if it is time to look."""
        self._now = now
        if self._look_at is not None and now >= self._look_at:
            self._look()

    def splits_read(self, subtask: int, count: int) -> None:
        """A subtask has read splits: there may be room for more splits."""
        self._read[subtask] = count
        if self._waits_for_room:
            self._look()

    def not_needed(self) -> None:
        """Look for no more splits. The splits of a look that is under way are not given out, and the position stays
        before them."""
        self._state = msgspec.structs.replace(self._state, ended=True)
        self._look_at, self._waits_for_room = None, False
        if self._is_behind:
            self._is_behind = False
            self.host.catching_up(self._is_behind)

    def next_deadline(self) -> Instant | None:
        """When to look for splits again."""
        return self._look_at

    def snapshot(self, checkpoint: CheckpointId) -> bytes:
        """The position, and which subtask gets the next split."""
        position: object = self._state.position
        if not isinstance(position, bytes | None):
            raise TypeError(
                f"{type(self._enumerator).__name__}.discover returned a {type(position).__name__} as the position, "
                f"which cannot be part of a checkpoint; return bytes"
            )
        self._positions[checkpoint] = self._state.position
        return msgspec.msgpack.encode(self._state)

    def completed(self, checkpoint: CheckpointId, parts: Sequence[bytes]) -> None:
        """Tell the enumerator which splits are left to read. If checkpoints complete faster than the enumerator
        answers, the enumerator is told of the newest checkpoint only: a queue of such calls would keep the enumerator
        from finding more splits."""
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
        """Forget the position in the checkpoint."""
        self._positions.pop(checkpoint, None)

    def close(self) -> None:
        """Close the enumerator."""
        self._enumerator.close()

    def _look(self) -> None:
        self._look_at = None
        if self._state.ended:
            return
        limit = self._enumerator.unread
        left = self._given - sum(self._read.values())
        self._waits_for_room = limit is not None and left >= limit * self.parallelism
        if self._waits_for_room:
            return
        position = self._state.position
        self.off_loop(lambda: self._enumerator.discover(position), self._found)

    def _found(self, found: Found) -> None:
        if self._state.ended:
            return
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
