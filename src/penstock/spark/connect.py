"""A Spark Connect session as the host of a job: its facts, the address where its tasks call the job master, its tags.

A Connect client has no SparkContext. The client asks the server for settings, and reads off a plan how many tasks can
run at once. The server does not tell how many cores are free. The job master is a thread of the *client*, so that the
workers must be able to call the host of the client, and not the host of Spark's driver. A first task (`look_ahead`)
finds out whether a worker can call, and whether a worker has what a slot needs.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from pyspark.errors import PySparkException

from penstock.core.errors import HostError, UsageError
from penstock.spark import shared_folders
from penstock.spark.host_rules import HostFacts, WorkerFacts, is_local_master, is_one_host

BINDING = "spark.connect.grpc.binding.address"
FOUND_AT_LOCALHOST = ("", "localhost", "127.0.0.1", "::1", "0.0.0.0", "::")
LEAF_PARALLELISM = "spark.sql.leafNodeDefaultParallelism"
LOOK_AHEAD_S = 30.0
"""How long the first task may take, with the time that it waits for a core."""
CALL_S = 5.0
LOOPBACK = "127.0.0.1"

_SPLITS = re.compile(r"splits=(\d+)")
_LOCAL_CORES = re.compile(r"local\[(\d+)[,\]]")


def is_connect(session: Any) -> bool:
    """Whether a session is a client of Spark Connect."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def facts(session: Any) -> HostFacts:
    """What a Connect session says about its Spark. A client cannot learn how many cores are busy."""
    conf = dict(session.conf.getAll)
    return HostFacts(
        master=conf.get("spark.master", "unknown"),
        version=session.version,
        task_slots=task_slots(session),
        busy=None,
        conf=conf,
        is_connect=True,
    )


def is_local(session: Any) -> bool:
    """Whether all slots are processes on this host, judged by the address of the server."""
    return is_here(session) and is_local_master(session.conf.get("spark.master"))


def is_here(session: Any) -> bool:
    """Whether the client calls the Spark Connect server at a loopback address of this host."""
    return _numeric(session.client.host).startswith(("127.", "::1"))


def task_slots(session: Any) -> int:
    """How many tasks Spark can run at once. On `local[n]` the number of cores is n. Elsewhere Spark's default
    parallelism is taken, which is the number of cores unless `spark.default.parallelism` is set."""
    written = _LOCAL_CORES.match(session.conf.get("spark.master"))
    cores = int(written[1]) if written else default_parallelism(session)
    try:
        return int(cores / float(session.conf.get("spark.task.cpus", "1")))
    except (ValueError, ZeroDivisionError):
        return cores


def default_parallelism(session: Any) -> int:
    """How many partitions Spark makes of data that does not say how many. Raises `HostError` if the plan of a
    query does not show the number."""
    # The query is planned and not run: a task would wait for a free core.
    with _unset(session, LEAF_PARALLELISM):
        plan = session.range(0, 1)._explain_string(extended=False)  # noqa: SLF001  # the public way prints it
    found = _SPLITS.search(plan)
    if found is None:
        raise HostError(
            f"the plan of a query in Spark {session.version} does not show how many tasks Spark can run at once"
        )
    return int(found[1])


@contextmanager
def _unset(session: Any, name: str) -> Iterator[None]:
    before = session.conf.get(name, None)
    if before is not None:
        session.conf.unset(name)
    try:
        yield
    finally:
        if before is not None:
            session.conf.set(name, before)


def own_address(session: Any) -> str:
    """The address of this host at which Spark's tasks can call the job master.

    If the tasks run on this host: loopback. If only Spark's driver runs on this host: `spark.driver.host`. Otherwise:
    the address from which this host calls the server.
    """
    if not is_here(session):
        return _address_towards(session.client.host)
    if is_one_host(session.conf.get("spark.master")):
        return LOOPBACK
    return _numeric(session.conf.get("spark.driver.host"))


def check_queries(session: Any) -> None:
    """Check that streaming queries of the server can run Python. The Python process of a streaming query calls the
    server at localhost, whatever address the server listens at.

    Raises:
        UsageError: the server does not listen at localhost.

    """
    bound = session.conf.get(BINDING, None)
    if bound is not None and bound.strip("[]").lower() not in FOUND_AT_LOCALHOST:
        raise UsageError(
            f"the Spark Connect server listens at {bound} only ({BINDING}), and the Python processes of its streaming "
            "queries call the server at localhost",
            hint=f"leave {BINDING} unset, so that the server listens at all addresses, or set it to 127.0.0.1",
        )


def look_ahead(session: Any, own: str, folders: Sequence[Path] = ()) -> WorkerFacts | None:
    """Run a first task, and return what it found out: the host and the packages of its worker, whether the worker can
    call this host at the address `own`, and which of `folders` the worker lacks. None if the task did not end in time,
    for example because no core was free.

    Raises:
        HostError: this host cannot listen at the address `own`.

    """
    signs = shared_folders.sign(folders)
    try:
        with closing(_listen(own)) as listener:
            return _asked(session, (own, listener.getsockname()[1]), signs)
    finally:
        shared_folders.remove(signs)


def _asked(session: Any, address: tuple[str, int], signs: tuple[str, ...]) -> WorkerFacts | None:
    tag = f"penstock-look-ahead-{address[1]}"
    found: list[WorkerFacts] = []

    def ask() -> None:
        session.addTag(tag)
        try:
            (row,) = session.range(0, 1, 1, 1).mapInArrow(_looking(address, signs), "found string").collect()
            found.append(msgspec.json.decode(row.found, type=WorkerFacts))
        except PySparkException as error:
            found.append(WorkerFacts(error=str(error)))

    thread = threading.Thread(target=ask, name="penstock-look-ahead", daemon=True)
    thread.start()
    thread.join(LOOK_AHEAD_S)
    if thread.is_alive():
        session.interruptTag(tag)
        thread.join(CALL_S)
        return None
    return found[0] if found else WorkerFacts(error="see the traceback that this program has printed")


def _looking(address: tuple[str, int], signs: tuple[str, ...]) -> Any:
    """The function of the first task. The function is nested and has its imports inside, so that it also runs where
    Penstock is missing."""

    def look(batches: Iterator[Any]) -> Iterator[Any]:
        import importlib.util
        import json
        import os
        import platform
        import socket
        import sys
        from pathlib import Path

        import pyarrow as pa

        for _ in batches:
            pass
        called = ""
        try:
            socket.create_connection(address, timeout=5).close()
        except OSError as error:
            called = str(error)
        text = json.dumps(
            {
                "host": socket.gethostname(),
                "python": platform.python_version(),
                "executable": sys.executable,
                "has_penstock": importlib.util.find_spec("penstock") is not None,
                "user": os.getuid(),
                "cannot_call": called,
                "lacks_folders": [str(Path(sign).parent) for sign in signs if not Path(sign).exists()],
            }
        )
        yield pa.RecordBatch.from_pydict({"found": [text]})

    return look


def mark(session: Any, *tags: str) -> None:
    """Give these tags to the Spark jobs that this thread submits from now on. Spark shows the tags with the jobs."""
    for tag in tags:
        session.addTag(tag)


def _listen(host: str) -> socket.socket:
    try:
        return socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise HostError(
            f"the job master cannot listen at {host}, where Spark's tasks would call the master: {error.strerror}",
            hint="give network=NetworkSettings(master_host=...) an address of this host that Spark's tasks can reach",
        ) from error


def _numeric(host: str) -> str:
    try:
        return str(socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise HostError(f"the address of {host} was not found: {error.strerror}") from error


def _address_towards(host: str) -> str:
    numeric = _numeric(host)
    with socket.socket(socket.AF_INET6 if ":" in numeric else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # To connect a datagram socket sends nothing; the call only asks the routing table.
        probe.connect((numeric, 9))
        return str(probe.getsockname()[0])
