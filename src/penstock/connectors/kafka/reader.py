"""How a subtask reads partitions: chunks come from the thread of the fetcher, and are handed on in turns.

A position is the offset that is to be read next. Offsets have gaps, from transactions and from compaction: so a
position is taken from records and from the end of a partition, and is never computed from a number of records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Sequence
from dataclasses import replace

import msgspec
import pyarrow as pa

from penstock.api.connector import HELD_MS, End, Pause, Polled, SourceReader, SplitProgress
from penstock.api.fetching import WAIT_MS
from penstock.connectors.kafka.fetching import Chunk, Key, PartitionFetcher, Reading
from penstock.connectors.kafka.places import Place, decoded_place, encoded


class KafkaReader(SourceReader):
    """Reads its partitions in turns. Each partition has an event time of its own."""

    def __init__(self, reading: Reading, splits: Sequence[bytes]) -> None:
        self._reading = reading
        self._places: dict[Key, Place] = {}
        self._waiting: dict[Key, deque[Chunk]] = {}
        """Chunks that were fetched and not handed on."""
        self._turns: deque[Key] = deque()
        """The partitions that have such chunks."""
        self._at_end: dict[Key, None] = {}
        self._held: Collection[Hashable] = ()
        self._current: Key | None = None
        self._bad = 0
        self._snapshots: dict[int, tuple[Place, ...]] = {}
        self._fetcher: PartitionFetcher | None = None
        self.add_splits(splits)

    def add_splits(self, splits: Sequence[bytes]) -> None:
        """Read these partitions, too."""
        places = [decoded_place(split) for split in splits]
        self._places |= {(place.topic, place.partition): place for place in places}
        if self._fetcher is not None:
            self._fetcher.add(places)
        elif places:
            self._fetcher = PartitionFetcher(self._reading, places)

    @property
    def holds_splits(self) -> bool:
        """Always."""
        return True

    def hold(self, splits: Collection[Hashable]) -> None:
        """Give no records of these partitions until the next call, and fetch none."""
        self._held = splits
        if self._fetcher is not None:
            self._fetcher.hold([key for key in self._places if key in splits])

    def poll(self, max_rows: int, now_ms: int) -> Polled:  # noqa: ARG002  # records have times of their own
        """Records of one partition that have been fetched."""
        if not self._places or self._fetcher is None:
            return End()
        key = self._turn(self._fetcher)
        if key is None:
            if not self._places:
                return End()
            return Pause(HELD_MS if all(each in self._held for each in self._places) else WAIT_MS)
        return self._hand_on(key, max_rows)

    def _turn(self, fetcher: PartitionFetcher) -> Key | None:
        """The partition whose records come next; None if no records have come."""
        while (key := self._free()) is None:
            chunk = fetcher.take()
            if chunk is None:
                return None
            self._come(chunk)
        return key

    def _free(self) -> Key | None:
        """The next partition that has records and is not held."""
        for _ in range(len(self._turns)):
            if self._turns[0] not in self._held:
                return self._turns[0]
            self._turns.rotate(-1)
        return None

    def _come(self, chunk: Chunk) -> None:
        self._bad += chunk.bad
        key = chunk.key
        if key not in self._places:
            # The partition has been read to its stop, and the fetcher goes on for a moment.
            return
        if chunk.rows is None or not chunk.rows.num_rows:
            if key in self._waiting:
                self._waiting[key][-1] = replace(self._waiting[key][-1], following=chunk.following, at_end=chunk.at_end)
            else:
                self._move(key, chunk.following, at_end=chunk.at_end)
            return
        if key not in self._waiting:
            self._waiting[key] = deque()
            self._turns.append(key)
        self._waiting[key].append(chunk)

    def _hand_on(self, key: Key, max_rows: int) -> pa.RecordBatch | Pause:
        chunk = self._waiting[key].popleft()
        rows = chunk.rows
        if rows is None:
            raise TypeError("only chunks with rows wait")
        self._current = key
        if rows.num_rows > max_rows:
            rest = replace(chunk, rows=rows.slice(max_rows), offsets=chunk.offsets[max_rows:])
            self._waiting[key].appendleft(rest)
            self._move(key, int(chunk.offsets[max_rows - 1]) + 1, at_end=False)
            return rows.slice(0, max_rows)
        self._turns.popleft()
        if self._waiting[key]:
            self._turns.append(key)
        else:
            del self._waiting[key]
        self._move(key, chunk.following, at_end=chunk.at_end and key not in self._waiting)
        return rows

    def _move(self, key: Key, offset: int, *, at_end: bool) -> None:
        """The partition has been read up to `offset`."""
        place = self._places[key]
        if place.stop is not None and offset >= place.stop:
            del self._places[key]
            self._at_end.pop(key, None)
            self._hold_finished()
            return
        self._places[key] = msgspec.structs.replace(place, offset=max(offset, place.offset))
        if at_end:
            self._at_end[key] = None
        else:
            self._at_end.pop(key, None)

    def _hold_finished(self) -> None:
        """Nothing more is fetched of a partition that has been read to its stop: the fetcher drops what comes."""
        if not self._places and self._fetcher is not None:
            self._fetcher.close()

    def snapshot(self) -> list[bytes]:
        """The partitions, each with the offset that is to be read next."""
        return [encoded(place) for place in self._places.values()]

    def snapshot_for(self, checkpoint: int) -> list[bytes]:
        """The same, and remember the offsets for the group."""
        if self._reading.group is not None:
            self._snapshots[checkpoint] = tuple(self._places.values())
        return self.snapshot()

    def checkpoint_completed(self, checkpoint: int) -> None:
        """Commit the offsets of the checkpoint to the group, for people who look at its lag."""
        positions = self._snapshots.get(checkpoint)
        self._snapshots = {number: kept for number, kept in self._snapshots.items() if number > checkpoint}
        if positions and self._fetcher is not None:
            self._fetcher.commit(positions)

    def progress(self) -> SplitProgress:
        """Every partition has an event time of its own. A partition that has not come to its end has records."""
        open_ = list(self._places)
        return SplitProgress(current=self._current, open=open_, ready=[key for key in open_ if key not in self._at_end])

    def metrics(self) -> dict[str, float]:
        """How many records could not be read, and were skipped or kept as text."""
        name = "lines_skipped" if self._reading.treatment.kind == "skip" else "lines_kept_as_text"
        return {name: self._bad} if self._bad else {}

    def close(self) -> None:
        """End the thread of the fetcher."""
        if self._fetcher is not None:
            self._fetcher.close()
