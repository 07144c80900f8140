"""What must be true of a Spark session before a job is started on it; all that is wrong is said at once."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError

from penstock.core.errors import HostError, UsageError
from penstock.spark.host_rules import HostFacts, Needs, is_local_master, judge

log = logging.getLogger(__name__)

EXECUTOR_LOOK_S = 0.5
EXECUTOR_LOOKS = 40
"""On a cluster, how often to look for executors that are still on their way before the job is refused."""


def check_session(session: Any) -> None:
    """Refuse what is not a live classic SparkSession."""
    context = getattr(session, "_sc", None)
    if context is None:
        if type(session).__module__.startswith("pyspark.sql.connect"):
            raise UsageError(
                "a Spark Connect session cannot host a job",
                hint="use a classic session: SparkSession.builder.master(...)",
            )
        raise UsageError(
            f"the first argument is {type(session).__name__}, not a SparkSession",
            hint='make one: SparkSession.builder.master("local[4]").getOrCreate()',
        )
    if context._jsc is None:  # noqa: SLF001  # the only sign that a context was stopped
        raise HostError(
            "the SparkSession has been stopped", hint="make a new one with SparkSession.builder.getOrCreate()"
        )


def is_local(session: Any) -> bool:
    """Whether the slots are processes on the driver's host, in one JVM."""
    return is_local_master(session.sparkContext.master)


def task_slots(session: Any) -> int:
    """How many tasks Spark can run at once, on the executors that it has."""
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
    context = session.sparkContext
    return HostFacts(
        master=context.master,
        version=context.version,
        task_slots=task_slots(session),
        busy=busy_slots(session),
        conf=dict(context.getConf().getAll()),
    )


def check_host(session: Any, needs: Needs) -> None:
    """Raise `UsageError` with everything that would keep the slots from coming up or staying up. Log the rest."""
    facts = host_facts(session)
    patience = 0 if facts.is_local else EXECUTOR_LOOKS
    while facts.task_slots < needs.slots and patience:
        # Executors come up after the session is there.
        patience -= 1
        threading.Event().wait(EXECUTOR_LOOK_S)
        facts = host_facts(session)
    found = judge(facts, needs)
    for warning in found.warnings:
        log.warning("%s", warning)
    if found.problems:
        raise UsageError(told(found.problems))


def told(problems: Sequence[str]) -> str:
    """One message for all problems."""
    if len(problems) == 1:
        return problems[0]
    return f"{len(problems)} things keep Spark from hosting the job: " + "; ".join(problems)


def capacity_now(session: Any) -> str:
    """How much room Spark has, for the text of a job that got too little of it."""
    try:
        facts = host_facts(session)
    except (Py4JError, AttributeError, OSError):
        return "the SparkSession does not answer any more"
    return f"Spark ({facts.master}) runs {facts.task_slots} tasks at once, and has room for {facts.free} more now"


def use_own_interpreter(session: Any) -> None:
    """On one host, have Spark start its workers with this program's interpreter: another one lacks its packages."""
    context = session.sparkContext
    found = shutil.which(context.pythonExec)
    # Compared as they are written: an environment's interpreter is often a link to one that lacks its packages.
    if is_local(session) and (found is None or Path(found) != Path(sys.executable)):
        context.pythonExec = sys.executable
