"""What must be true of a Spark session before a job is started on it; all that is wrong is said at once."""

from __future__ import annotations

import logging
import shutil
import sys
from pathlib import Path
from typing import Any

from penstock.core.errors import HostError, UsageError

log = logging.getLogger(__name__)


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
    master: str = session.sparkContext.master
    return master == "local" or master.startswith("local[")


def free_cores(session: Any) -> int:
    """How many tasks Spark can run at once, as far as it knows."""
    return int(session.sparkContext.defaultParallelism)


def check_host(session: Any, *, parallelism: int) -> None:
    """Raise `UsageError` with everything that would keep the slots from coming up or staying up."""
    conf = session.sparkContext.getConf()
    problems: list[str] = []
    cores = free_cores(session)
    if cores < parallelism:
        master = session.sparkContext.master
        more = f"local[{parallelism + 1}]" if is_local(session) else f"executors with {parallelism + 1} cores in all"
        problems.append(
            f"the job needs {parallelism} slots, Spark ({master}) has {cores} cores: use {more}, or parallelism={cores}"
        )
    elif cores == parallelism:
        log.warning("no core is left for Spark's own work", extra={"cores": cores, "slots": parallelism})
    idle = conf.get("spark.python.worker.idleTimeoutSeconds", "0")
    if idle != "0" and conf.get("spark.python.worker.killOnIdleTimeout", "false") == "true":
        problems.append(f"spark.python.worker.killOnIdleTimeout kills every slot after {idle} s: set it to false")
    if conf.get("spark.speculation", "false") == "true":
        problems.append("spark.speculation would start slots twice: set it to false")
    if problems:
        raise UsageError("; ".join(problems))


def use_own_interpreter(session: Any) -> None:
    """On one host, have Spark start its workers with this program's interpreter: another one lacks its packages."""
    context = session.sparkContext
    found = shutil.which(context.pythonExec)
    # Compared as they are written: an environment's interpreter is often a link to one that lacks its packages.
    if is_local(session) and (found is None or Path(found) != Path(sys.executable)):
        context.pythonExec = sys.executable
