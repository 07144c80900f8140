"""Which of several drivers has a job, and the records of the job, in ZooKeeper. Implements `ports.Election` and
`ports.JobRecords`.

    <root>/<job>/election/<token>-<n>    a driver, while its session lasts; the driver with the lowest n has the job
                 term                    the term of the newest driver that had the job
                 counter                 the lowest checkpoint id that was never given away
                 completed/<19 digits>   a checkpoint that counts
                 start                   the term in which the beginning of the job was recorded
                 outcome                 how the job ended

Nodes are small. The content of a checkpoint's record, and how the job began, are files in the checkpoint storage; each
file is written before its node. Every change is a transaction that first checks the driver's own node in the election.
That node is gone before another driver can have the job, so a driver whose session is over changes nothing, however
late it wakes up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from penstock.api.high_availability import InZooKeeper
from penstock.core.errors import InvariantError, JobTakenOver, Retry, StorageError, UsageError
from penstock.core.ids import CheckpointId, JobId, Term
from penstock.core.recovery import layout
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.core.recovery.tenure import Inheritance, JobOutcome, Start, Tenure
from penstock.ports import Store
from penstock.storage.completed import FileCompletedStore
from penstock.storage.tenure import decode_completed, inheritance_format, outcome_format, read_inheritance, taken_over

try:
    from kazoo import exceptions as zk
    from kazoo.client import KazooClient, KazooState
except ImportError as error:
    raise UsageError(
        "high availability with ZooKeeper needs the package kazoo", hint='install it: pip install "penstock[zookeeper]"'
    ) from error

T = TypeVar("T")

RETRY_S = 0.1
_TRIES_PER_SESSION = 4
_RECONNECT = {"max_tries": -1, "delay": RETRY_S, "max_delay": 1.0}
"""The client tries to connect for as long as it takes. By default the pauses of the client would grow to an hour."""

log = logging.getLogger(__name__)


class ZooKeeperElection:
    """The election for a job, for one driver that waits for the job."""

    def __init__(
        self, settings: InZooKeeper, job: JobId, store: Store, *, token: str, clock_ms: Callable[[], float]
    ) -> None:
        """`store` has the job's checkpoints. `token` is a name that no other driver has. `clock_ms` measures time, from
        any starting point."""
        self._settings = settings
        self._job = layout.job_folder(job)
        self._store = store
        self._base = f"{settings.root}/{self._job}"
        self._token = token
        self._clock_ms = clock_ms
        self._session: _Session | None = None
        self._changed = threading.Event()
        self._looks_for_end = settings.restart_finished
        self._after: int | None = None

    def campaign(self, lost: Callable[[], None]) -> ZooKeeperLeader | None:
        """Take the job over, if no other driver has the job; None if another driver has the job."""
        session = self._session
        if session is not None and session.is_lost:
            self.close()
            session = None
        if session is None:
            session = self._session = _Session(self._settings, self._job, self._token, self._clock_ms)
            self._changed.set()
        if not self._changed.is_set():
            return None
        self._changed.clear()
        try:
            records = ZooKeeperRecords(session, self._base, self._job, self._store)
            if self._looks_for_end:
                # A job that ends while this driver waits has done its work: to begin the job anew would do the work
                # twice.
                self._after, self._looks_for_end = records.end(), False
            if not session.is_first(self._changed.set):
                return None
            # Every change checks that the session still lasts.
            tenure = records.take_over(after=self._after)
        except JobTakenOver:
            # The session has ended meanwhile. The next session begins at the end of the line.
            session.is_lost = True
            return None
        except BaseException:
            self._changed.set()
            raise
        self._session = None
        session.on_lost = lost
        if session.is_lost:
            lost()
        return ZooKeeperLeader(session, tenure, records)

    def close(self) -> None:
        """Leave the line of drivers that wait."""
        if self._session is not None:
            self._session.close()
            self._session = None


class ZooKeeperLeader:
    """The hold of the driver that has the job."""

    def __init__(self, session: _Session, tenure: Tenure, records: ZooKeeperRecords) -> None:
        self.tenure = tenure
        self.records = records
        self._session = session

    @property
    def is_lost(self) -> bool:
        """Whether another driver may have the job."""
        return self._session.is_lost

    def resign(self) -> None:
        """Let go of the job: another driver may take the job over at once."""
        self._session.close()


class _Session:
    """A driver's session with ZooKeeper, and the driver's node in the election. May be used from any thread."""

    def __init__(self, settings: InZooKeeper, job: str, token: str, clock_ms: Callable[[], float]) -> None:
        self.is_lost = False
        self.on_lost: Callable[[], None] = lambda: None
        self._settings = settings
        self._job = job
        self._election = f"{settings.root}/{job}/election"
        self._token = token
        self._clock_ms = clock_ms
        self._closed = threading.Event()
        self._node: str | None = None
        self._timeout_s = settings.session_timeout_ms / 1_000
        self.client = KazooClient(hosts=_several(settings.hosts), timeout=self._timeout_s, connection_retry=_RECONNECT)
        self.client.add_listener(self._listen)
        try:
            self.client.start(timeout=self._timeout_s)
        except self.client.handler.timeout_exception as error:
            self.close()
            raise _unreachable(settings.hosts, error) from error

    def _listen(self, state: str) -> None:
        # The client calls this function from its own thread, which must not wait.
        if state == KazooState.LOST and not self.is_lost:
            self.is_lost = True
            self.on_lost()

    def is_first(self, changed: Callable[[], None]) -> bool:
        """Whether this driver is the first in the line. If not, `changed` is called when the driver right before this
        driver is gone."""
        if self._node is None:
            self._node = self.retried(self._enter)
        mine = self._node.rpartition("/")[2]
        names = sorted(self.retried(lambda: self.answer(self.client.get_children_async(self._election))), key=_place)
        if mine not in names:
            raise taken_over(self._job)
        before = names[: names.index(mine)]
        if not before:
            return True
        watched = f"{self._election}/{before[-1]}"
        if self.retried(lambda: self.answer(self.client.exists_async(watched, watch=lambda _event: changed()))) is None:
            changed()
        return False

    def _enter(self) -> str:
        client = self.client
        self.answer(client.ensure_path_async(self._election))
        # An earlier try may have created the node, although its answer was lost.
        for name in self.answer(client.get_children_async(self._election)):
            if name.startswith(self._token):
                return f"{self._election}/{name}"
        entered = client.create_async(f"{self._election}/{self._token}-", ephemeral=True, sequence=True)
        path: str = self.answer(entered)
        return path

    def change(self, fill: Callable[[Any], None]) -> None:
        """Commit a transaction that `fill` fills, if this driver has the job. The transaction may be tried more than
        once. Raises `JobTakenOver`."""
        self.retried(lambda: self._change(fill))

    def check(self) -> None:
        """Raise `JobTakenOver` if this driver does not have the job."""
        self.change(lambda _transaction: None)

    def _change(self, fill: Callable[[Any], None]) -> None:
        if self._node is None:
            raise InvariantError("a driver that takes no part in the election was to change the records of a job")
        transaction = self.client.transaction()
        transaction.check(self._node, 0)
        fill(transaction)
        results = self.answer(transaction.commit_async())
        if isinstance(results[0], zk.NoNodeError):
            raise taken_over(self._job)
        failed = [result for result in results if isinstance(result, Exception)]
        if isinstance(results[0], zk.RolledBackError):
            # A node has changed between the look at the node and the transaction. Only an earlier try of the same
            # transaction can have changed the node, so the transaction is tried again.
            raise zk.ConnectionLoss(f"{failed[-1]}")

    def retried(self, call: Callable[[], T]) -> T:
        """Make the call, and try again while the connection is broken, for as long as the session may last. Raises
        `JobTakenOver` if the session is over."""
        deadline = self._clock_ms() + self._settings.session_timeout_ms
        while True:
            try:
                return call()
            except (zk.SessionExpiredError, zk.ConnectionClosedError) as error:
                raise taken_over(self._job) from error
            except (zk.ConnectionLoss, zk.OperationTimeoutError, self.client.handler.timeout_exception) as error:
                if self._clock_ms() >= deadline:
                    raise _unreachable(self._settings.hosts, error) from error
                self._closed.wait(RETRY_S)
            except zk.KazooException as error:
                raise StorageError(
                    f"ZooKeeper at {self._settings.hosts} refused: {type(error).__name__} {error}",
                    hint="see that this driver may read and write below the root node",
                ) from error

    def answer(self, asked: Any) -> Any:
        """The answer of the server, awaited with a time-out: without the time-out the client would wait for as long as
        the connection is broken."""
        return asked.get(timeout=self._timeout_s)

    def close(self) -> None:
        self._closed.set()
        self.client.remove_listener(self._listen)
        self.client.stop()
        self.client.close()


class ZooKeeperRecords:
    """The records of one job. Calls block."""

    def __init__(self, session: _Session, base: str, job: layout.JobFolder, store: Store) -> None:
        self._session = session
        self._client = session.client
        self._base = base
        self._job = job
        self._store = store
        self._files = FileCompletedStore(store, job)
        self._term = Term(0)

    def end(self) -> int | None:
        """A number that names the end of the job, whichever driver has the job; None if the job has not ended. If the
        job begins anew and ends again, that end has another number. Raises `StorageError`, `JobTakenOver`."""
        found = self._look_at("outcome")
        return None if found is None else found[1]

    def take_over(self, *, after: int | None) -> Tenure:
        """Begin the next term. If `after` names the end of the job, the job begins anew. Raises `StorageError`,
        `CorruptFile`, `JobTakenOver`."""
        self._session.retried(lambda: self._session.answer(self._client.ensure_path_async(f"{self._base}/completed")))
        before = self._number("term")
        self._term = Term(0 if before is None else before + 1)
        self._put("term", b"%d" % self._term)
        next_id = self._number("counter")
        outcome, end = self._look_at("outcome") or (None, None)
        if end is not None and end == after:
            self.clear()
            self._drop("start")
            self._drop("outcome")
            outcome = None
        return Tenure(
            term=self._term,
            next_id=CheckpointId(1 if next_id is None else next_id),
            completed=tuple(self._completed(checkpoint) for checkpoint in self._checkpoints()),
            outcome=None if outcome is None else outcome_format.decode(f"{self._base}/outcome", outcome),
            start=self._start(is_needed=outcome is None),
        )

    def record(self, checkpoint: CheckpointId, data: bytes, *, forget: Iterable[CheckpointId] = ()) -> None:
        """Make it durable that `checkpoint` is complete; only then drop the records of the checkpoints in `forget`."""
        forgotten = sorted(forget)
        if checkpoint in forgotten:
            raise InvariantError(
                f"one call was to record checkpoint {checkpoint} and to drop the record of the same checkpoint"
            )
        self._files.record(checkpoint, data)
        self._put(_name_of(checkpoint), b"")
        for old in forgotten:
            self.remove(old)

    def holds(self, checkpoint: CheckpointId) -> bool:
        """Whether there is a record of the checkpoint."""
        found = checkpoint in self._checkpoints()
        self._session.check()
        return found

    def remove(self, checkpoint: CheckpointId) -> None:
        """Drop the record of a checkpoint. Nothing happens if there is no record."""
        self._drop(_name_of(checkpoint))
        self._files.remove(checkpoint)

    def take_ids(self, below: CheckpointId) -> None:
        """Make it durable that checkpoint ids below `below` are used."""
        taken = self._number("counter")
        if taken is None or below > taken:
            self._put("counter", b"%d" % below)
        else:
            self._session.check()

    def record_start(self, start: Start, began_with: CompletedCheckpoint | None) -> None:
        """Make it durable how the job began, and with which snapshot."""
        found = Inheritance(start=start)
        self._store.write(layout.tenure_file(self._job, self._term), inheritance_format.encode(found))
        if began_with is not None:
            self.record(began_with.checkpoint, msgspec.msgpack.encode(began_with))
        self._put("start", b"%d" % self._term)

    def record_outcome(self, outcome: JobOutcome) -> None:
        """Make it durable how the job ended."""
        self._put("outcome", outcome_format.encode(outcome))

    def clear(self) -> None:
        """Drop the records of all checkpoints."""
        self._session.check()
        for checkpoint in self._checkpoints():
            self.remove(checkpoint)

    def check(self) -> None:
        """Raise `JobTakenOver` if this driver does not have the job."""
        self._session.check()

    def _checkpoints(self) -> list[CheckpointId]:
        folder = f"{self._base}/completed"
        names = self._session.retried(lambda: self._session.answer(self._client.get_children_async(folder)))
        return sorted(CheckpointId(int(name)) for name in names)

    def _completed(self, checkpoint: CheckpointId) -> CompletedCheckpoint:
        entry = self._files.read(layout.completed_file(self._job, checkpoint))
        return decode_completed(checkpoint, entry.data)

    def _start(self, *, is_needed: bool) -> Start | None:
        began = self._number("start")
        if began is None:
            return None
        try:
            return read_inheritance(self._store, self._job, Term(began)).start
        except StorageError:
            # If the job has ended, how the job began is of no use, and the checkpoint directory may be gone.
            if is_needed:
                raise
            return None

    def _look_at(self, name: str) -> tuple[bytes, int] | None:
        """The content of a node, and the number of the ZooKeeper transaction that created the node: a node that is
        created again has another number."""

        def look() -> tuple[bytes, int] | None:
            try:
                data, status = self._session.answer(self._client.get_async(f"{self._base}/{name}"))
            except zk.NoNodeError:
                return None
            return data, status.czxid

        return self._session.retried(look)

    def _number(self, name: str) -> int | None:
        found = self._look_at(name)
        return None if found is None else int(found[0])

    def _put(self, name: str, data: bytes) -> None:
        path = f"{self._base}/{name}"

        def put(transaction: Any) -> None:
            if self._session.answer(self._client.exists_async(path)) is None:
                transaction.create(path, data)
            else:
                transaction.set_data(path, data)

        self._session.change(put)

    def _drop(self, name: str) -> None:
        path = f"{self._base}/{name}"

        def drop(transaction: Any) -> None:
            if self._session.answer(self._client.exists_async(path)) is not None:
                transaction.delete(path)

        self._session.change(drop)


def _several(hosts: str) -> str:
    """The same hosts, several times over. The client waits for the answer of each host for the session time-out divided
    by the number of hosts. One host that takes a call and does not answer must not cost the session."""
    named = hosts.split(",")
    return ",".join(named * -(-_TRIES_PER_SESSION // len(named)))


def _name_of(checkpoint: CheckpointId) -> str:
    return layout.completed_file(layout.JobFolder(""), checkpoint).removeprefix("/")


def _place(name: str) -> int:
    return int(name.rpartition("-")[2])


def _unreachable(hosts: str, error: BaseException) -> StorageError:
    return StorageError(
        f"ZooKeeper at {hosts} could not be reached: {str(error) or type(error).__name__}",
        hint="see that ZooKeeper runs and can be reached from this host",
        retry=Retry.LATER,
    )
