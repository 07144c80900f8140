"""What must be true of a Spark session before a job is started on it; all that is wrong is said at once."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.core.errors import HostError, UsageError
from penstock.core.job.events import FailureCause
from penstock.settings import NetworkSettings
from penstock.spark import connect
from penstock.spark.host_rules import HostFacts, Needs, is_local_master, judge, judge_worker
from penstock.spark.slots import short_reason

log = logging.getLogger(__name__)

_WRONG_INTERPRETER = ("ModuleNotFoundError: ", "PYTHON_VERSION_MISMATCH", "Cannot run program")
"""What is said by workers that lack a package or are of another Python, and by Spark of one that is not there."""
EXECUTOR_LOOK_S = 0.5
EXECUTOR_LOOKS = 40
"""On a cluster, how often to look for executors that are still on their way before the job is refused."""


def check_session(session: Any) -> None:
    """Refuse what is not a live SparkSession, a classic one or one of Spark Connect."""
    stopped = HostError(
        "the SparkSession has been stopped", hint="make a new one with SparkSession.builder.getOrCreate()"
    )
    if connect.is_connect(session):
        if session.is_stopped:
            raise stopped
        return
    context = getattr(session, "_sc", None)
    if context is None:
        raise UsageError(
            f"the first argument is {type(session).__name__}, not a SparkSession",
            hint='make one: SparkSession.builder.master("local[4]").getOrCreate()',
        )
    if context._jsc is None:  # noqa: SLF001  # the only sign that a context was stopped
        raise stopped


def is_local(session: Any) -> bool:
    """Whether the slots are processes on the host of this program, in one JVM."""
    if connect.is_connect(session):
        return connect.is_local(session)
    return is_local_master(session.sparkContext.master)


def task_slots(session: Any) -> int:
    """How many tasks Spark can run at once, on the executors that it has."""
    if connect.is_connect(session):
        return connect.task_slots(session)
    context = session.sparkContext._jsc.sc()  # noqa: SLF001  # Python has no way to ask
    try:
        return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))
    except Py4JError:
        # Not part of Spark's public interface: another version may not have it.
        return int(session.sparkContext.defaultParallelism)


def busy_slots(session: Any) -> int:
    """How many tasks Spark runs, or has waiting, for others; as far as it knows, which lags a little behind."""
    tracker = session.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(stage.numTasks - stage.numCompletedTasks for stage in stages if stage is not None)


def host_facts(session: Any) -> HostFacts:
    """What a live session says about itself."""
    if connect.is_connect(session):
        return connect.facts(session)
    context = session.sparkContext
    return HostFacts(
        master=context.master,
        version=context.version,
        task_slots=task_slots(session),
        busy=busy_slots(session),
        conf=dict(context.getConf().getAll()),
    )


def master_address(session: Any, network: NetworkSettings) -> str:
    """The address of this host at which slots call the job master, if they do so over TCP."""
    if network.master_host is not None:
        return network.master_host
    if connect.is_connect(session):
        return connect.own_address(session)
    return "127.0.0.1" if is_local(session) else str(session.sparkContext.getConf().get("spark.driver.host"))


def is_called_by_tcp(session: Any, network: NetworkSettings) -> bool:
    """Whether slots may be on other hosts, or must act as if they were."""
    return network.transport == "tcp" or network.master_host is not None or not is_local(session)


def check_host(session: Any, needs: Needs, network: NetworkSettings, folders: Sequence[Path] = ()) -> None:
    """Raise `UsageError` with everything that would keep the slots from coming up or staying up, among it that they
    have not these folders, as far as that can be found out, and with what else is bad for them. If nothing would, log
    that."""
    facts = host_facts(session)
    patience = 0 if facts.is_local else EXECUTOR_LOOKS
    while facts.task_slots < needs.slots and patience:
        # Executors come up after the session is there.
        patience -= 1
        threading.Event().wait(EXECUTOR_LOOK_S)
        facts = host_facts(session)
    found = judge(facts, needs)
    problems = found.problems
    if connect.is_connect(session):
        problems += _worker_problems(session, network, folders)
    if problems:
        raise UsageError(told(problems, found.warnings))
    if found.warnings:
        log.warning("%s", "; ".join(found.warnings))


def _worker_problems(session: Any, network: NetworkSettings, folders: Sequence[Path]) -> tuple[str, ...]:
    """What a first task says: the environment of the workers is the server's, and not this program's."""
    address = master_address(session, network)
    try:
        found = connect.look_ahead(session, address, folders)
    except HostError as error:
        return (f"{error.message}: {error.hint}",)
    if found is None:
        log.warning("no core was free for a first task in %d s: slots will wait for one, too", connect.LOOK_AHEAD_S)
        return ()
    if found.error:
        found = replace(found, error=short_reason(found.error))
    same_host = None if is_called_by_tcp(session, network) else socket.gethostname()
    return judge_worker(found, address=address, same_host=same_host, user=os.getuid())


def told(problems: Sequence[str], warnings: Sequence[str] = ()) -> str:
    """One message for all problems, and for what need not be changed and should be."""
    one, *others = problems
    text = f"{len(problems)} things keep Spark from hosting the job: {'; '.join(problems)}" if others else one
    return f"{text}; besides: {'; '.join(warnings)}" if warnings else text


def advice_on(cause: FailureCause, session: Any) -> str | None:
    """What whoever has this session can do about a failure: give it room, or another interpreter. None if it is not for
    lack of these."""
    if cause.lacks_room:
        return _capacity_now(session)
    if cause.operator is None and any(sign in cause.text for sign in _WRONG_INTERPRETER):
        return _interpreters(session)
    return None


def _interpreters(session: Any) -> str:
    version = ".".join(map(str, sys.version_info[:2]))
    wanted = f"a Python {version} that has Penstock and what it needs, on every host"
    if connect.is_connect(session):
        return f"the Connect server says how workers are started: give it as PYSPARK_PYTHON {wanted}"
    return (
        f"Spark starts workers with {session.sparkContext.pythonExec}, and this program runs with {sys.executable}: "
        f"set PYSPARK_PYTHON before the session is made (with spark-submit: spark.pyspark.python) to {wanted}"
    )


def _capacity_now(session: Any) -> str:
    try:
        facts = host_facts(session)
    except (Py4JError, PySparkException, HostError, AttributeError, OSError):
        return "the SparkSession does not answer any more"
    room = "" if facts.free is None else f", and has room for {facts.free} more now"
    return f"Spark ({facts.master}) runs {facts.task_slots} tasks at once{room}"


def use_own_interpreter(session: Any) -> None:
    """On one host, have Spark start its workers with this program's interpreter: another one lacks its packages. Over
    Spark Connect the server decides which it is."""
    if connect.is_connect(session):
        return
    context = session.sparkContext
    found = shutil.which(context.pythonExec)
    # Compared as they are written: an environment's interpreter is often a link to one that lacks its packages.
    if is_local(session) and (found is None or Path(found) != Path(sys.executable)):
        context.pythonExec = sys.executable
