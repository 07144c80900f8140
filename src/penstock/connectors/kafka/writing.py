"""How a subtask writes records: exactly once, through files that are replayed, or at least once, as they come."""

from __future__ import annotations

import io
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from penstock.api.connector import KeptFiles, SinkWriter, WriterContext
from penstock.connectors.kafka.clock import now_ms
from penstock.connectors.kafka.connection import explained, made
from penstock.connectors.kafka.encoding import Encoding
from penstock.connectors.kafka.lanes import COMMIT_WITHIN_S, PRODUCER, KafkaLane, Target, let_go, produce
from penstock.connectors.kafka.replay import OnUnknown, Prepared, Replay, decoded_prepared
from penstock.core.errors import ExternalError, Retry, StorageError

log = logging.getLogger(__name__)

BUFFER_BYTES = 32 * 1024 * 1024
"""When the rows that a subtask holds have this many bytes, they are encoded and kept before the checkpoint comes."""


@dataclass(frozen=True, kw_only=True)
class Writing:
    """What writers of a sink share. Pickled into every slot."""

    target: Target
    encoding: Encoding
    files: KeptFiles
    run: str
    """The beginning of the names of the lanes of this start of the job."""
    topic_id: str
    on_unknown: OnUnknown

    def replay(self, lane: str) -> Replay:
        """What commits the records of a lane."""
        return Replay(KafkaLane(lane, self.target), on_unknown=self.on_unknown, now_ms=now_ms)

    def read(self, piece: Prepared) -> Iterable[pa.Table]:
        """The records that were kept for a piece. Raises `MissingFile`."""
        for place in piece.places:
            with pa.ipc.open_stream(self.files.read(place)) as stream:
                yield stream.read_all()

    def forget(self, piece: Prepared) -> None:
        """The records are in the cluster: their files are not needed any more."""
        for place in piece.places:
            try:
                self.files.delete(place)
            except StorageError as error:
                # The file is removed when the job ends.
                log.warning("a file of records that are in Kafka could not be deleted: %s", error.message)


class _Chunk:
    """Rows of one transaction, which become one file."""

    def __init__(self, writing: Writing, name: str, batches: list[pa.RecordBatch]) -> None:
        self._writing = writing
        self._name = name
        self._batches = batches
        self.place: bytes | None = None
        self.records = 0
        self.topic: str | None = None
        """The topic of the first record, if records name their topics."""

    def write(self) -> None:
        """Encode the rows and keep the records, durably. A call that raised may be tried again."""
        if self.place is not None or not self._batches:
            return
        table = pa.concat_tables([self._writing.encoding.records(batch) for batch in self._batches])
        self.records = table.num_rows
        if self.records:
            if "topic" in table.schema.names:
                self.topic = table.column("topic")[0].as_py()
            out = io.BytesIO()
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            with pa.ipc.new_stream(out, table.schema, options=options) as stream:
                stream.write_table(table)
            self.place = self._writing.files.write(self._name, out.getvalue())
        self._batches = []


class ReplayWriter(SinkWriter):
    """Keeps records until their checkpoint is complete, and writes them then."""

    def __init__(self, writing: Writing, context: WriterContext) -> None:
        self._writing = writing
        self._context = context
        self._lane = f"{writing.run}-{context.epoch}-{context.subtask}"
        self._replay = writing.replay(self._lane)
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._chunks: list[_Chunk] = []
        self._files = 0
        self._thread: ThreadPoolExecutor | None = None
        self._early: Future[None] | None = None

    @property
    def commits(self) -> bool:
        """Always: the writer has the lane."""
        return True

    def write(self, batch: pa.RecordBatch) -> None:
        """Hold rows. Blocks only if much has come while the rows before are still being encoded."""
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= BUFFER_BYTES:
            chunk = self._cut()
            if self._early is not None:
                self._early.result()
            if self._thread is None:
                self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="penstock-kafka")
            self._early = self._thread.submit(chunk.write)

    def prepare(self, checkpoint: int) -> Callable[[], list[bytes]]:
        """Close the transaction. The returned work keeps its records, durably."""
        if self._batches:
            self._cut()
        chunks, early, created_ms = self._chunks, self._early, now_ms()
        self._chunks, self._early = [], None

        def work() -> list[bytes]:
            if early is not None:
                # An error is not looked at: the chunk is tried again below.
                early.exception()
            for chunk in chunks:
                chunk.write()
            return self._prepared(checkpoint, chunks, created_ms)

        return work

    def commit(self, committables: Sequence[bytes]) -> None:
        """Write what this writer has kept."""
        for piece in map(decoded_prepared, committables):
            self._replay.commit(piece, self._writing.read)
            self._writing.forget(piece)

    def close(self) -> None:
        """Abandon the open transaction, and let go of the lane."""
        self._batches, self._chunks = [], []
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
            self._thread = None
        self._replay.close()

    def _cut(self) -> _Chunk:
        context = self._context
        name = f"r{context.subtask}-p{context.parallelism}-e{context.epoch}-{self._files}.arrow"
        chunk = _Chunk(self._writing, name, self._batches)
        self._files += 1
        self._chunks.append(chunk)
        self._batches, self._bytes = [], 0
        return chunk

    def _prepared(self, checkpoint: int, chunks: Sequence[_Chunk], created_ms: int) -> list[bytes]:
        full = [chunk for chunk in chunks if chunk.records]
        if not full:
            return []
        writing = self._writing
        piece = Prepared(
            lane=self._lane,
            checkpoint=checkpoint,
            places=tuple(chunk.place for chunk in full if chunk.place is not None),
            records=sum(chunk.records for chunk in full),
            topic=full[0].topic or writing.target.topic or "",
            topic_id=writing.topic_id,
            created_ms=created_ms,
        )
        return [msgspec.msgpack.encode(piece)]


class DirectWriter(SinkWriter):
    """Writes records as they come. A checkpoint waits until the cluster has all records before its barrier, so that
    none is lost; records behind the checkpoint are written again after a failure."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="penstock-kafka")
        self._under_way: deque[tuple[int, Future[None]]] = deque()
        self._bytes = 0
        self._producer: Any = None
        self._failed: Any = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Hand rows to the thread. Blocks only if the cluster is slower than the stream for long."""
        self._look()
        while self._bytes >= BUFFER_BYTES:
            _, oldest = self._under_way[0]
            oldest.exception()
            self._look()
        self._bytes += batch.nbytes
        self._under_way.append((batch.nbytes, self._thread.submit(self._write, batch)))

    def prepare(self, checkpoint: int) -> Callable[[], list[bytes]]:  # noqa: ARG002  # nothing waits for a checkpoint
        """The returned work waits until the cluster has all records."""
        self._look()
        flushed = self._thread.submit(self._flush)

        def work() -> list[bytes]:
            flushed.result()
            return []

        return work

    def close(self) -> None:
        """Let go of the producer."""
        self._thread.submit(self._let_go)
        self._thread.shutdown(wait=False)

    def _look(self) -> None:
        """Raise what went wrong on the thread."""
        while self._under_way and self._under_way[0][1].done():
            size, done = self._under_way.popleft()
            self._bytes -= size
            done.result()

    # --- on the thread -------------------------------------------------------------------------------------

    def _write(self, batch: pa.RecordBatch) -> None:
        if self._producer is None:
            from confluent_kafka import Producer

            self._producer = made(Producer, self._writing.target.cluster.client(PRODUCER))
        produce(self._producer, self._writing.target, self._writing.encoding.records(batch), told=self._told)
        self._raise()

    def _told(self, error: Any, message: Any) -> None:  # noqa: ARG002  # the error says enough
        if error is not None:
            self._failed = error

    def _flush(self) -> None:
        if self._producer is not None and self._producer.flush(COMMIT_WITHIN_S):
            raise ExternalError("records were not taken by Kafka in time", retry=Retry.LATER)
        self._raise()

    def _raise(self) -> None:
        if self._failed is not None:
            raise explained(self._failed, self._writing.target.cluster, topic=self._writing.target.topic)

    def _let_go(self) -> None:
        if self._producer is not None:
            let_go(self._producer)
            self._producer = None
