"""How a user says that a job outlives its driver."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from penstock.core.durations import Duration, duration_ms_or_problem
from penstock.core.errors import SettingsError
from penstock.core.recovery import roots

LEAST_MS = 500
"""The shortest lease. With a shorter lease a driver would be given up because its disk or network is busy."""
_HOST = re.compile(r"[A-Za-z0-9_.\-\[\]:]+")


@dataclass(frozen=True, kw_only=True)
class InFiles:
    """Drivers meet in a folder. Made by `ha_files`."""

    location: str
    lease_ms: int
    restart_finished: bool


@dataclass(frozen=True, kw_only=True)
class InZooKeeper:
    """Drivers meet in ZooKeeper. Made by `zookeeper`."""

    hosts: str
    root: str
    session_timeout_ms: int
    restart_finished: bool


HighAvailability = InFiles | InZooKeeper
"""What the `high_availability` argument takes."""


def ha_files(
    directory: str | os.PathLike[str], *, lease: Duration = "10s", restart_finished: bool = False
) -> HighAvailability:
    """Another driver takes the job over when this driver dies. The drivers meet in a folder that all of them have
    mounted, or in a folder of S3 or Google Cloud Storage, given by its URI. Object storage needs the extra
    `object-storage`.

    A driver that shows no sign of life for a `lease` loses the job. In a mounted folder, a driver that died on the same
    host as the next driver loses the job at once. With `restart_finished` a job that has ended begins anew when the job
    is started again under its name; without `restart_finished` the job stays ended, and its outcome is returned. A job
    that ends while this driver is on standby stays ended.

    >>> import penstock as ps
    >>> # for ps.Environment(spark, high_availability=meeting)
    >>> meeting = ps.ha_files("s3://bucket/checkpoints", lease="20s")
    >>> meeting.location, meeting.lease_ms
    ('s3://bucket/checkpoints', 20000)
    """
    problems: list[str] = []
    path = os.fspath(directory) if isinstance(directory, os.PathLike) else directory
    if not isinstance(path, str) or not path.strip() or roots.problem_with(path) is not None:
        problems.append(f"directory is {directory!r}; give the path of a folder")
    elif not roots.is_local(path) and roots.scheme_of(path) not in roots.OBJECT_STORES:
        problems.append(f"directory {roots.shown(path)} is no mounted folder; use zookeeper(...) instead")
    lease_ms = _long_enough("lease", lease, problems)
    if problems or not isinstance(path, str):
        raise SettingsError(problems)
    location = path if roots.scheme_of(path) is not None else str(Path(path).expanduser().absolute())
    return InFiles(location=location, lease_ms=lease_ms, restart_finished=restart_finished)


def zookeeper(
    hosts: str, *, root: str = "/penstock", session_timeout: Duration = "10s", restart_finished: bool = False
) -> HighAvailability:
    """Another driver takes the job over when this driver dies. The drivers meet in ZooKeeper, at `hosts`
    ("host:port,…"), below the node `root`. Needs the extra `zookeeper`.

    A driver from which ZooKeeper has heard nothing for `session_timeout` loses the job. With `restart_finished` a job
    that has ended begins anew when the job is started again under its name; without `restart_finished` the job stays
    ended, and its outcome is returned. A job that ends while this driver is on standby stays ended.

    >>> import penstock as ps
    >>> # for ps.Environment(spark, high_availability=meeting)
    >>> meeting = ps.zookeeper("zk-1:2181,zk-2:2181")
    >>> meeting.hosts, meeting.root
    ('zk-1:2181,zk-2:2181', '/penstock')
    """
    problems: list[str] = []
    parts = hosts.split(",") if isinstance(hosts, str) else []
    if not parts or not all(_HOST.fullmatch(part.strip()) for part in parts):
        problems.append(f'hosts is {hosts!r}; give "host:port", or several such hosts with commas between')
    if not isinstance(root, str) or not re.fullmatch(r"(/[^/\0]+)+", root) or {".", ".."} & set(root.split("/")):
        problems.append(f'root is {root!r}; give the path of a node, for example "/penstock"')
    session_timeout_ms = _long_enough("session_timeout", session_timeout, problems)
    if problems:
        raise SettingsError(problems)
    return InZooKeeper(hosts=hosts, root=root, session_timeout_ms=session_timeout_ms, restart_finished=restart_finished)


def _long_enough(argument: str, given: Duration, problems: list[str]) -> int:
    found = duration_ms_or_problem(given, argument=argument, problems=problems)
    if found is not None and found < LEAST_MS:
        problems.append(f"{argument} is {given!r}; give at least {LEAST_MS} ms")
    return found or LEAST_MS
