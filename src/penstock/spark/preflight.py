"""Checks of a Spark session, before a job is started on it. One error names everything that is wrong."""

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
"""Texts in the errors of workers that lack a package or have another version of Python, and of Spark if the interpreter
does not exist."""
EXECUTOR_LOOK_S = 0.5
EXECUTOR_LOOKS = 40
"""On a cluster: how often to look whether enough executors have come up, before the job is refused."""


def check_session(session: Any) -> None:
    """Raise an error unless `session` is a SparkSession that has not been stopped, a classic session or a session of
    Spark Connect."""
    stopped = HostError(
        "the SparkSession has been stopped", hint="make another session with SparkSession.builder.getOrCreate()"
    )
    if connect.is_connect(session):
        if session.is_stopped:
            raise stopped
        return
    context = getattr(session, "_sc", None)
    if context is None:
        raise UsageError(
            f"the first argument is {type(session).__name__}, not a SparkSession",
            hint='make a SparkSession: SparkSession.builder.master("local[4]").getOrCreate()',
        )
    if context._jsc is None:  # noqa: SLF001  # the only sign that a context was stopped
        raise stopped


def is_local(session: Any) -> bool:
    """Whether the slots are processes on the host of this program, in one JVM."""
    if connect.is_connect(session):
        return connect.is_local(session)
    return is_local_master(session.sparkContext.master)


def task_slots(session: Any) -> int:
    """How many tasks Spark can run at once, on the executors that are up."""
    if connect.is_connect(session):
        return connect.task_slots(session)
    context = session.sparkContext._jsc.sc()  # noqa: SLF001  # Python has no way to ask
    try:
        return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))
    except Py4JError:
        # The method is no part of Spark's public interface, and other versions of Spark may not have it.
        return int(session.sparkContext.defaultParallelism)


def busy_slots(session: Any) -> int:
    """How many tasks of other work Spark runs, or has waiting. The number lags a little behind."""
    tracker = session.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(stage.numTasks - stage.numCompletedTasks for stage in stages if stage is not None)


def host_facts(session: Any) -> HostFacts:
    """The facts that a session gives about its Spark."""
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
    """The address of this host at which slots call the job master over TCP."""
    if network.master_host is not None:
        return network.master_host
    if connect.is_connect(session):
        return connect.own_address(session)
    return "127.0.0.1" if is_local(session) else str(session.sparkContext.getConf().get("spark.driver.host"))


def is_called_by_tcp(session: Any, network: NetworkSettings) -> bool:
    """Whether slots call the job master over TCP: because slots may be on other hosts, or because the settings say
    so."""
    return network.transport == "tcp" or network.master_host is not None or not is_local(session)


def check_host(session: Any, needs: Needs, network: NetworkSettings, folders: Sequence[Path] = ()) -> None:
    """Raise `UsageError` if something would keep the slots from coming up or staying up. The error names all such
    problems, and all warnings. With Spark Connect, a worker that lacks one of `folders` is such a problem. If there is
    no problem, the warnings are logged."""
    facts = host_facts(session)
    patience = 0 if facts.is_local else EXECUTOR_LOOKS
    while facts.task_slots < needs.slots and patience:
        # Executors come up only after the session has been made.
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
    """The problems that a first task finds. With Spark Connect, the environment of the workers is that of the server,
    and not that of this program."""
    address = master_address(session, network)
    try:
        found = connect.look_ahead(session, address, folders)
    except HostError as error:
        return (f"{error.message}: {error.hint}",)
    if found is None:
        log.warning(
            "no core was free for a first task in %d s: slots will wait for a free core, too", connect.LOOK_AHEAD_S
        )
        return ()
    if found.error:
        found = replace(found, error=short_reason(found.error))
    same_host = None if is_called_by_tcp(session, network) else socket.gethostname()
    return judge_worker(found, address=address, same_host=same_host, user=os.getuid())


def told(problems: Sequence[str], warnings: Sequence[str] = ()) -> str:
    """One message with all problems, and with the warnings."""
    one, *others = problems
    text = f"{len(problems)} things keep Spark from hosting the job: {'; '.join(problems)}" if others else one
    return f"{text}; besides: {'; '.join(warnings)}" if warnings else text


def advice_on(cause: FailureCause, session: Any) -> str | None:
    """What the user of this session can do about a failure, if the cause is lack of room or a wrong interpreter. None
    for any other cause."""
    if cause.lacks_room:
        return _capacity_now(session)
    if cause.operator is None and any(sign in cause.text for sign in _WRONG_INTERPRETER):
        return _interpreters(session)
    return None


def _interpreters(session: Any) -> str:
    version = ".".join(map(str, sys.version_info[:2]))
    wanted = f"a Python {version} that has Penstock and the packages that Penstock needs, on every host"
    if connect.is_connect(session):
        return f"the Connect server decides how workers are started: set PYSPARK_PYTHON of the server to {wanted}"
    return (
        f"Spark starts workers with {session.sparkContext.pythonExec}, and this program runs with {sys.executable}: "
        f"set PYSPARK_PYTHON before the session is made (with spark-submit: spark.pyspark.python) to {wanted}"
    )


def _capacity_now(session: Any) -> str:
    try:
        facts = host_facts(session)
    except (Py4JError, PySparkException, HostError, AttributeError, OSError):
        return "the SparkSession does not answer any more"
    room = "" if facts.free is None else f", and has room for {facts.free} more tasks now"
    return f"Spark ({facts.master}) runs {facts.task_slots} tasks at once{room}"


def use_own_interpreter(session: Any) -> None:
    """On one host, have Spark start its workers with this program's interpreter: another interpreter may lack the
    program's packages. Over Spark Connect the server decides which interpreter workers have."""
    if connect.is_connect(session):
        return
    context = session.sparkContext
    found = shutil.which(context.pythonExec)
    # The paths are compared without following links: the interpreter of a virtual environment is often a link to an
    # interpreter that lacks the packages of the environment.
    if is_local(session) and (found is None or Path(found) != Path(sys.executable)):
        context.pythonExec = sys.executable
