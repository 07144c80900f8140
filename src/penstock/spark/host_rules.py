"""The rules by which a Spark is judged before a job is started on it. The rules get facts and return sentences; this
module does not call Spark.

A *problem* would keep slots from coming up or from staying up, and the job is not started. A *warning* is about
something that makes the job slower, or less robust than the job could be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation

from penstock.spark import shared_folders

LEAST_SPARK = (4, 1)
LEAST_WORKER_MB = 768
"""With less address space than this, a worker cannot import the modules that a slot needs."""
ROOMY_WORKER_MB = 2_048
LONGEST_KILL_S = 10
MOST_TASK_FAILURES = 10
SHORTEST_REAPER_S = 30
"""Spark needs 2 to 4 s to kill a slot, and longer on a busy host."""

_UNITS_MB = {"b": 1 / 1024**2, "k": 1 / 1024, "m": 1.0, "g": 1_024.0, "t": 1_024.0**2, "p": 1_024.0**3}
_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
_QUANTITY = re.compile(r"\s*(\d+)\s*([a-z]*)\s*")
_LOCAL_FAILURES = re.compile(r"local\[[^,\]]+,\s*(\d+)\s*\]")
_LOOPBACK = ("localhost", "127.", "::1", "[::1]")


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """The facts about a Spark."""

    master: str
    version: str
    task_slots: int
    """How many tasks Spark can run at once."""
    busy: int | None
    """How many tasks of other work run, or wait. None if this is not known."""
    conf: Mapping[str, str] = field(default_factory=dict)
    is_connect: bool = False
    """Whether the program is a client of Spark Connect, and not Spark's driver."""

    @property
    def is_local(self) -> bool:
        """Whether all slots are processes on the driver's host, in one JVM."""
        return is_local_master(self.master)

    @property
    def free(self) -> int | None:
        """How many more tasks Spark could run besides the tasks of other work. None if this is not known."""
        return None if self.busy is None else max(0, self.task_slots - self.busy)

    def text(self, name: str, default: str) -> str:
        """The value of a setting; `default` if it is not set."""
        return self.conf.get(name, default).strip()

    def is_on(self, name: str, *, default: bool) -> bool:
        """The value of a setting that is true or false; `default` if it is not set."""
        return self.text(name, str(default)).lower() == "true"


@dataclass(frozen=True, kw_only=True)
class WorkerFacts:
    """The facts that a first task found out about its worker, or why the task failed."""

    host: str = ""
    python: str = ""
    executable: str = ""
    has_penstock: bool = True
    user: int = 0
    """The number of the user that the worker runs as."""
    cannot_call: str = ""
    """Why the worker could not call the program; empty if the worker could."""
    lacks_folders: tuple[str, ...] = ()
    """The folders of the program that the worker does not have."""
    error: str = ""
    """Why the task failed; empty if the task ended well."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """The slots that a job needs."""

    parallelism: int
    spare_slots: int = 0

    @property
    def slots(self) -> int:
        """The number of slots in all, spare slots included."""
        return self.parallelism + self.spare_slots


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Everything that is wrong with a Spark for a job. Each problem and each warning is a sentence that says what to
    change."""

    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def is_local_master(master: str) -> bool:
    """Whether a master URL means one JVM on this host."""
    return master == "local" or master.startswith("local[")


def is_one_host(master: str) -> bool:
    """Whether a master URL means processes of one host, in however many JVMs."""
    return is_local_master(master) or master.startswith("local-cluster")


def judge_worker(found: WorkerFacts, *, address: str, same_host: str | None, user: int = 0) -> tuple[str, ...]:
    """What keeps a worker from being a slot of a job whose master is called at `address`. With `same_host`, the master
    can be called only from the host of this name and only by the user `user`."""
    if found.error:
        return (f"a first task failed: {found.error}",)
    problems: list[str] = []
    if not found.has_penstock:
        problems.append(
            f"Python {found.python} of Spark's workers ({found.executable} on {found.host}) has no Penstock: install "
            "Penstock there, or have Spark start its workers with another interpreter (PYSPARK_PYTHON of the Connect "
            "server)"
        )
    reach = "give network=NetworkSettings(master_host=...) an address of this host that the workers can reach"
    if same_host is not None and found.host != same_host:
        problems.append(f"Spark's workers run on {found.host}, this program on {same_host}: {reach}")
    elif same_host is not None and found.user != user:
        problems.append(
            f"Spark's workers run as user {found.user}, this program as user {user}, and sockets in a folder are for "
            'one user: give network=NetworkSettings(transport="tcp")'
        )
    elif found.cannot_call:
        problems.append(
            f"Spark's workers ({found.host}) cannot call this program at {address}: {found.cannot_call}: {reach}"
        )
    problems += [shared_folders.told(found.host, folder) for folder in found.lacks_folders]
    return tuple(problems)


def judge(facts: HostFacts, needs: Needs) -> Findings:
    """Everything that is wrong with such a Spark for a job with these needs."""
    found: list[tuple[str, str]] = []
    for rule in _RULES:
        found += rule(facts, needs)
    return Findings(
        problems=tuple(text for kind, text in found if kind == PROBLEM),
        warnings=tuple(text for kind, text in found if kind == WARNING),
    )


# --- the rules -----------------------------------------------------------------------

PROBLEM, WARNING = "problem", "warning"

Found = list[tuple[str, str]]


def _version(facts: HostFacts, _needs: Needs) -> Found:
    numbers = tuple(int(n) for n in re.findall(r"\d+", facts.version)[:2])
    if numbers >= LEAST_SPARK:
        return []
    least = ".".join(map(str, LEAST_SPARK))
    return [(PROBLEM, f"this is Spark {facts.version}: use {least} or later")]


def _room(facts: HostFacts, needs: Needs) -> Found:
    has = _capacity(facts)
    spare = f" ({needs.spare_slots} of them spare)" if needs.spare_slots else ""
    needed = f"the job needs {needs.slots} slots{spare}"
    if facts.task_slots < needs.slots and not _may_grow(facts, needs):
        wanted = needs.slots + 1
        more = f"local[{wanted}]" if facts.is_local else f"executors with room for {wanted} tasks in all"
        least = (
            f", or parallelism={facts.task_slots - needs.spare_slots}" if facts.task_slots > needs.spare_slots else ""
        )
        return [(PROBLEM, f"{needed}, Spark ({facts.master}) {has}: use {more}{least}")]
    if facts.task_slots < needs.slots:
        return []
    if facts.free is not None and facts.free < needs.slots:
        return [
            (
                WARNING,
                f"{needed}, Spark ({facts.master}) {has}: slots wait until other work ends; give Spark more cores",
            )
        ]
    if facts.task_slots == needs.slots:
        return [(WARNING, f"{needed}, Spark ({facts.master}) {has}: give Spark one more, for its own work")]
    return []


def _capacity(facts: HostFacts) -> str:
    cpus = facts.text("spark.task.cpus", "1")
    if cpus == "1":
        free = "" if facts.free is None else f", {facts.free} of them free now"
        return f"has {facts.task_slots} cores{free}"
    more = "" if facts.free is None else f", {facts.free} of which could start now"
    return f"has room for {facts.task_slots} tasks of {cpus} cores each (spark.task.cpus){more}"


def _may_grow(facts: HostFacts, needs: Needs) -> bool:
    """Whether dynamic allocation may add the executors that are missing."""
    if not facts.is_on("spark.dynamicAllocation.enabled", default=False):
        return False
    most = facts.text("spark.dynamicAllocation.maxExecutors", "")
    if not most.isdigit():
        return True
    per_executor = _number(facts.text("spark.executor.cores", "1")) / _number(facts.text("spark.task.cpus", "1"))
    return int(most) * int(per_executor) >= needs.slots


def _task_cpus(facts: HostFacts, _needs: Needs) -> Found:
    cpus = facts.text("spark.task.cpus", "1")
    if _number(cpus) <= 1:
        return []
    return [(WARNING, f"spark.task.cpus={cpus} keeps {cpus} cores for every slot, and a slot uses one: set it to 1")]


def _idle_timeout(facts: HostFacts, _needs: Needs) -> Found:
    seconds = facts.text("spark.python.worker.idleTimeoutSeconds", "0")
    if seconds == "0" or not facts.is_on("spark.python.worker.killOnIdleTimeout", default=False):
        return []
    return [
        (
            PROBLEM,
            (
                f"spark.python.worker.killOnIdleTimeout kills every slot after {seconds} s "
                "(spark.python.worker.idleTimeoutSeconds), because slots say nothing to Spark: set it to false"
            ),
        )
    ]


def _speculation(facts: HostFacts, _needs: Needs) -> Found:
    if not facts.is_on("spark.speculation", default=False):
        return []
    return [(PROBLEM, "spark.speculation would start slots twice: set it to false")]


def _dynamic_allocation(facts: HostFacts, needs: Needs) -> Found:
    if facts.is_local or not facts.is_on("spark.dynamicAllocation.enabled", default=False):
        return []
    decommission = facts.is_on("spark.decommission.enabled", default=False)
    takes = "decommissions executors under running slots" if decommission else "takes executors away between restarts"
    return [
        (
            WARNING,
            (
                f"spark.dynamicAllocation.enabled {takes}: set it to false, or spark.dynamicAllocation.minExecutors to "
                f"what {needs.slots} slots need"
            ),
        )
    ]


def _reuse(facts: HostFacts, _needs: Needs) -> Found:
    if facts.is_on("spark.python.worker.reuse", default=True):
        return []
    return [(WARNING, "spark.python.worker.reuse=false starts an interpreter for every slot: set it to true")]


def _worker_memory(facts: HostFacts, _needs: Needs) -> Found:
    text = facts.text("spark.executor.pyspark.memory", "")
    memory_mb = _quantity(text, _UNITS_MB, default="m")
    if not memory_mb:
        return []
    share_mb = int(memory_mb / max(Decimal(1), _number(facts.text("spark.executor.cores", "1"))))
    if share_mb >= ROOMY_WORKER_MB:
        return []
    return [
        (
            PROBLEM if share_mb < LEAST_WORKER_MB else WARNING,
            (
                f"spark.executor.pyspark.memory={text} limits the address space of a slot to {share_mb} MB: leave it "
                f"unset, or give each core {ROOMY_WORKER_MB} MB"
            ),
        )
    ]


def _kill_timeout(facts: HostFacts, _needs: Needs) -> Found:
    text = facts.text("spark.python.task.killTimeout", "2s")
    if _quantity(text, _UNITS_S, default="ms") <= LONGEST_KILL_S:
        return []
    return [
        (WARNING, f"spark.python.task.killTimeout={text} leaves a slot that hangs on its core that long: set it to 2s")
    ]


def _task_failures(facts: HostFacts, _needs: Needs) -> Found:
    # On `local[n]` Spark tries a task once, unless the master URL says otherwise.
    written = _LOCAL_FAILURES.fullmatch(facts.master)
    text = written[1] if written else "1" if facts.is_local else facts.text("spark.task.maxFailures", "4")
    if _number(text) <= MOST_TASK_FAILURES:
        return []
    where = f"master {facts.master}" if written else f"spark.task.maxFailures={text}"
    return [
        (
            WARNING,
            (
                f"{where} has Spark start a slot that cannot come up {text} times, without a pause, before the job "
                "learns why: set it to 4"
            ),
        )
    ]


def _exclusion(facts: HostFacts, _needs: Needs) -> Found:
    both = "spark.excludeOnFailure.enabled"
    # Where a setting of `names` is set, it counts instead of the setting for both.
    of_all = facts.is_on(both, default=False)
    names = (
        "spark.excludeOnFailure.application.enabled",
        "spark.excludeOnFailure.taskAndStage.enabled",
    )
    on = [name for name in names if facts.is_on(name, default=of_all)]
    if facts.is_local or not on:
        return []
    name = both if of_all else on[0]
    return [
        (
            WARNING,
            (
                f"{name} has Spark start no slot on executors and hosts where slots have died, as if the hosts were at "
                "fault, until the job has too few slots: set it to false"
            ),
        )
    ]


def _reaper(facts: HostFacts, _needs: Needs) -> Found:
    text = facts.text("spark.task.reaper.killTimeout", "-1")
    timeout_s = _quantity(text, _UNITS_S, default="ms")
    if facts.is_local or not facts.is_on("spark.task.reaper.enabled", default=False) or not timeout_s:
        return []
    if timeout_s >= SHORTEST_REAPER_S:
        return []
    return [
        (
            WARNING,
            (
                f"spark.task.reaper.killTimeout={text} ends an executor, with all slots in it, if one slot is not "
                f"killed that fast: set it to {SHORTEST_REAPER_S}s or more"
            ),
        )
    ]


def _driver_address(facts: HostFacts, _needs: Needs) -> Found:
    host = facts.text("spark.driver.host", "")
    # With Spark Connect the job master is in the client, and slots do not call the host of Spark's driver.
    if facts.is_connect or is_one_host(facts.master) or not host.startswith(_LOOPBACK):
        return []
    return [
        (
            WARNING,
            (
                f"spark.driver.host is {host}, which executors on other hosts cannot call: "
                "set it to an address that executors can reach"
            ),
        )
    ]


_RULES: tuple[Callable[[HostFacts, Needs], Found], ...] = (
    _version,
    _room,
    _task_cpus,
    _idle_timeout,
    _speculation,
    _dynamic_allocation,
    _reuse,
    _worker_memory,
    _kill_timeout,
    _task_failures,
    _exclusion,
    _reaper,
    _driver_address,
)


def _number(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal(1)


def _quantity(text: str, units: Mapping[str, float], *, default: str) -> Decimal:
    """The number of a size or duration in Spark's notation. Zero for a text that cannot be read; Spark itself would
    refuse such a text."""
    matched = _QUANTITY.fullmatch(text.lower())
    if matched is None:
        return Decimal(0)
    unit = matched[2] or default
    # A size may have a B behind the letter of the unit.
    factor = units.get(unit) or units.get(unit.removesuffix("b").removesuffix("i"))
    return Decimal(matched[1]) * Decimal(str(factor)) if factor is not None else Decimal(0)
