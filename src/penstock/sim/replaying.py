"""A sink of a world that replays what it kept, in one transaction with a marker, as the Kafka sink does.

The order of steps is the Kafka sink's own (`connectors/kafka/replay`); the cluster is simulated. A process may die, or
a call may fail before or after its work, at each step of a commit: when the lane is opened, when the marker is read,
when the transaction begins, at its records, at its marker, at its commit, and right behind.

The cluster refuses a writer whose lane another writer has opened since, and shows no record of a transaction that was
not committed. It does not notice that records are written twice: the comparison of the output does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import msgspec
import pyarrow as pa

from penstock.api.connector import SinkWriter, WriterContext
from penstock.connectors.kafka.replay import Lane, Prepared, Replay, commit_all, decoded_prepared
from penstock.core.errors import ExternalError, MissingFile, Retry
from penstock.sim.external import ExternalSystem, Transaction, system_of
from penstock.sim.outputs import SimSink, SimWriter


@dataclass
class LaneState:
    """What the cluster knows of a lane."""

    owner: int = 0
    """How many times the lane was opened: the last writer that opened the lane has it."""
    marker: int | None = None
    batches: list[pa.RecordBatch] | None = None
    """The records of the open transaction; None: no transaction is open."""
    marks: Prepared | None = None
    """The marker of the open transaction."""


@dataclass
class Cluster:
    """The lanes of a world, and how many times each kept transaction was written."""

    lanes: dict[str, LaneState] = field(default_factory=dict)
    shown: dict[bytes, int] = field(default_factory=dict)


_CLUSTERS: WeakKeyDictionary[ExternalSystem, Cluster] = WeakKeyDictionary()


def cluster_of(system: ExternalSystem) -> Cluster:
    """The cluster of a world."""
    return _CLUSTERS.setdefault(system, Cluster())


class SimLane(Lane):
    """A lane of the simulated cluster. Every call may fail, and the process may die in every call."""

    def __init__(self, system: ExternalSystem, name: str) -> None:
        self._system = system
        self._state = cluster_of(system).lanes.setdefault(name, LaneState())
        self._owner = 0

    def open(self) -> None:
        """Fence whoever has the lane, and abort the open transaction."""

        def act() -> None:
            self._state.owner += 1
            self._state.batches = self._state.marks = None
            self._owner = self._state.owner

        self._system.perform("commit", act)

    def marker(self, piece: Prepared) -> int | None:  # noqa: ARG002  # a lane has one marker
        """The marker that was committed last."""
        self._step(lambda: None)
        return self._state.marker

    def topic_id(self, topic: str) -> str:  # noqa: ARG002  # nobody makes topics anew here
        """Nothing."""
        return ""

    def forgets_after_ms(self) -> int:
        """The cluster does not forget."""
        return 1 << 62

    def begin(self) -> None:
        """Begin a transaction."""

        def act() -> None:
            self._state.batches = []

        self._step(act)

    def produce(self, records: pa.Table) -> None:
        """Add records to the transaction."""

        def act() -> None:
            if self._state.batches is not None:
                self._state.batches += records.to_batches()

        self._step(act)

    def mark(self, piece: Prepared) -> None:
        """Add the marker to the transaction."""

        def act() -> None:
            self._state.marks = piece

        self._step(act)

    def commit(self) -> None:
        """Show the records, and have the marker."""
        self._step(self._show)
        # The answer may be lost, and the process may die before anybody has heard the answer.
        self._step(lambda: None)

    def close(self) -> None:
        """Nothing is told to the cluster."""

    def _step(self, act: Callable[[], None]) -> None:
        def if_owned() -> None:
            if self._owner != self._state.owner:
                raise ExternalError("another writer has the lane", retry=Retry.LATER)
            act()

        self._system.perform("commit", if_owned)

    def _show(self) -> None:
        state, system = self._state, self._system
        if state.marks is None or state.batches is None:
            raise ExternalError("a transaction without a marker was to be committed")
        (token,) = state.marks.places
        shown = cluster_of(system).shown
        kept = system.prepared.get(token) or system.committed[token]
        shown[token] = shown.get(token, 0) + 1
        # Records that are written again are in the topic twice: the cluster does not know what they are.
        again = token if shown[token] == 1 else token + str(shown[token]).encode()
        system.show(again, replace(kept, batches=tuple(state.batches)))
        state.marker, state.batches, state.marks = state.marks.checkpoint, None, None


class ReplaySink(SimSink):
    """Keeps what it prepares, and replays it when the checkpoint is complete."""

    def writer(self, context: WriterContext) -> SinkWriter:
        """A writer with a lane of its own."""
        return ReplayingWriter(self, context)

    def replay(self, lane: str) -> Replay:
        """What commits for a lane."""
        system = system_of(self.world)
        return Replay(SimLane(system, lane), on_unknown="fail", now_ms=lambda: system.now_ms)

    def read(self, piece: Prepared) -> Iterable[pa.Table]:
        """The kept records."""
        system = system_of(self.world)
        (token,) = piece.places
        if token not in system.prepared:
            if token in system.dropped:
                system.on_refused(system.dropped[token])
            raise MissingFile(f"transaction {token.decode()} is not kept")
        return [pa.Table.from_batches([batch]) for batch in system.prepared[token].batches]

    def forget(self, piece: Prepared) -> None:
        """The records are in the cluster, and are not kept any more."""
        (token,) = piece.places
        system_of(self.world).prepared.pop(token, None)

    def commit(self, committables: Sequence[bytes]) -> None:
        """Write what a snapshot promises and the cluster does not have."""
        commit_all(committables, replay_of=self.replay, read=self.read, done=self.forget)

    def clean(self, context: WriterContext, keep: Sequence[bytes]) -> None:
        """Drop what earlier attempts of the subtask kept, except for what is in `keep`."""
        super().clean(context, [token for part in keep for token in decoded_prepared(part).places])


class ReplayingWriter(SimWriter):
    """Commits with its own lane."""

    def __init__(self, sink: ReplaySink, context: WriterContext) -> None:
        super().__init__(system_of(sink.world), context, sink.target)
        self._sink = sink
        self._lane = f"{sink.target}-{context.job}-{context.epoch}-{context.subtask}"
        self._replay = sink.replay(self._lane)

    @property
    def commits(self) -> bool:
        """Always."""
        return True

    def commit(self, committables: Sequence[bytes]) -> None:
        """Write what this writer kept."""
        for piece in map(decoded_prepared, committables):
            self._replay.commit(piece, self._sink.read)
            self._sink.forget(piece)

    def prepare(self, checkpoint: int) -> Callable[[], list[bytes]]:
        """Close the transaction. The committable names the lane as well."""
        batches, self.open_batches = tuple(self.open_batches), []

        def work() -> list[bytes]:
            return [self._piece(self.prepare_now(checkpoint, batches))] if batches else []

        return work

    def close(self) -> None:
        """Let go of the lane."""
        self._replay.close()

    def _piece(self, transaction: Transaction) -> bytes:
        piece = Prepared(
            lane=self._lane,
            checkpoint=transaction.checkpoint,
            places=(transaction.token,),
            records=sum(batch.num_rows for batch in transaction.batches),
            topic=self.target,
            topic_id="",
            created_ms=self.system.now_ms,
        )
        return msgspec.msgpack.encode(piece)
