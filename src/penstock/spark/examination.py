"""What `penstock doctor` looks at: whether this host, Spark, its executors and the folders of a job are fit for jobs.

Each look gives findings. A *fault* keeps jobs from running or from being safe; a *warning* is something that hurts
later. Looks that need Spark run a small Spark job, one task per core, whose tasks say what they have found.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.core.errors import HostError, StreamError
from penstock.core.recovery import roots
from penstock.net import control
from penstock.private_folders import check_private
from penstock.settings import NetworkSettings
from penstock.spark.clock import WallClock, fresh_token
from penstock.spark.host_rules import Needs, judge
from penstock.spark.java import check_java
from penstock.spark.preflight import host_facts, is_local, master_address, use_own_interpreter
from penstock.spark.slots import short_reason
from penstock.storage.locations import open_store

PACKAGES = (
    "penstock",
    "pyspark",
    "pyarrow",
    "polars",
    "numpy",
    "pandas",
    "pyzmq",
    "msgspec",
    "cloudpickle",
    "rocksdict",
)
"""What executors need as well as the driver."""
PYTHONS = ((3, 11), (3, 13))
LEAST_FILES = 1_024
SKEW_WARNED_MS, SKEW_FAULT_MS = 1_000, 60_000
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
LOOKS = 8
"""So many tasks look at the hosts of executors, at most one per core."""
CALLED_WITHIN_S = 5.0


class Grade(Enum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    what: str
    grade: Grade
    text: str
    fix: str = ""


def _ok(what: str, text: str) -> Finding:
    return Finding(what=what, grade=Grade.OK, text=text)


def _fault(what: str, text: str, fix: str) -> Finding:
    return Finding(what=what, grade=Grade.FAULT, text=text, fix=fix)


def _warning(what: str, text: str, fix: str) -> Finding:
    return Finding(what=what, grade=Grade.WARNING, text=text, fix=fix)


# --- this host -------------------------------------------------------------------------------------------------------


def examine_host(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Python, packages, Java and the limits of this process. Needs no Spark."""
    yield _python(sys.version_info[:2], sys.executable)
    yield from _packages(versions_here())
    try:
        yield _ok("Java", f"{check_java(environment)}")
    except HostError as error:
        yield _fault("Java", error.message, error.hint or "install a JDK 17 or later")
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files < LEAST_FILES:
        yield _warning(
            "open files", f"this process may open {files} files", f"raise the limit: ulimit -n {LEAST_FILES}"
        )
    else:
        yield _ok("open files", f"up to {files}")
    yield _sockets(control.default_folder())


def _python(version: tuple[int, int], where: str) -> Finding:
    text = f"{version[0]}.{version[1]}, {where}"
    if PYTHONS[0] <= version <= PYTHONS[1]:
        return _ok("Python", text)
    return _fault("Python", text, "use Python 3.11, 3.12 or 3.13")


def versions_here() -> dict[str, str | None]:
    """The versions of the packages in this process; None for a package that is missing."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def _packages(found: Mapping[str, str | None]) -> Iterator[Finding]:
    missing = [name for name, version in found.items() if version is None]
    if missing:
        yield _fault("packages", f"missing here: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    else:
        yield _ok("packages", ", ".join(f"{name} {version}" for name, version in found.items()))


def _sockets(folder: Path) -> Finding:
    try:
        if folder.exists():
            check_private(folder, what="the folder of control sockets", setting="TMPDIR")
        elif not os.access(folder.parent, os.W_OK | os.X_OK):
            return _fault("control sockets", f"{folder.parent} cannot be written", "set TMPDIR to a folder of your own")
    except StreamError as error:
        return _fault("control sockets", error.message, error.hint or "set TMPDIR to a folder of your own")
    return _ok("control sockets", f"in {folder}")


# --- folders ---------------------------------------------------------------------------------------------------------


def examine_directory(directory: str, mounts: str | None = None) -> Iterator[Finding]:
    """Whether checkpoints may lie in a directory, as seen from this host. `mounts` is the text of /proc/mounts."""
    what = f"directory {roots.shown(directory)}"
    name = f"penstock-doctor-{fresh_token()}"
    try:
        store = open_store(directory)
        obstacle = store.obstacle_to_create()
        store.write(name, b"ok")
        try:
            is_read = store.read(name) == b"ok"
        finally:
            store.delete(name)
    except StreamError as error:
        yield _fault(what, error.message, error.hint or "choose a directory that you may write to")
        return
    except (OSError, ImportError) as error:
        yield _fault(what, str(error), "choose a directory that you may write to")
        return
    if not is_read:
        yield _fault(what, "a file that was written was not read back", "choose another storage")
        return
    if obstacle is not None:
        yield _warning(
            what, obstacle, "a program that is run again would start over; choose a storage that can do this"
        )
    kind = None if not roots.is_local(directory) else file_system_of(Path(directory).expanduser().absolute(), mounts)
    if kind in IN_MEMORY:
        yield _warning(
            what, f"lies in memory ({kind}): it is gone when the host restarts", "choose a directory on a disk"
        )
        return
    yield _ok(what, "can be written, read and deleted" + (f"; file system {kind}" if kind else ""))


def file_system_of(path: Path, mounts: str | None = None) -> str | None:
    """The kind of file system that a path lies on; None if that is not known."""
    if mounts is None:
        try:
            mounts = Path("/proc/mounts").read_text(encoding="utf-8")
        except OSError:
            return None
    best, kind = -1, None
    for line in mounts.splitlines():
        parts = line.split()
        if len(parts) >= 3:
            place = Path(parts[1].replace("\\040", " "))
            if path.is_relative_to(place) and len(place.parts) >= best:
                best, kind = len(place.parts), parts[2]
    return kind


# --- Spark and its executors -----------------------------------------------------------------------------------------


def examine_spark(spark: Any, *, parallelism: int, directories: Sequence[str]) -> Iterator[Finding]:
    """Whether this Spark can host a job of `parallelism` slots, and what its executors say."""
    use_own_interpreter(spark)
    facts = host_facts(spark)
    found = judge(facts, Needs(parallelism=parallelism))
    for problem in found.problems:
        yield _fault("Spark", problem, "change the settings of Spark before the session is made")
    for warning in found.warnings:
        yield _warning("Spark", warning, "change the settings of Spark before the session is made")
    if not found.problems:
        yield _ok("Spark", f"{facts.version} at {facts.master}, {facts.task_slots} tasks at once")
    local = [each for each in directories if roots.is_local(each)]
    with _Listening(master_address(spark, NetworkSettings())) as listening, _Signs(local) as signs:
        began = WallClock().now()
        try:
            looks = _looked(spark, max(1, min(LOOKS, facts.task_slots)), listening.address, signs.paths)
        except Exception as error:  # noqa: BLE001  # whatever keeps Spark from running a task in Python
            yield _fault(
                "executors",
                f"a first task failed: {short_reason(str(error))}",
                "see Spark's log; is Penstock installed there?",
            )
            return
        yield from judged_looks(looks, began=began, ended=WallClock().now(), is_local=is_local(spark))


def _looked(spark: Any, count: int, address: tuple[str, int, str], signs: Mapping[str, str]) -> list[dict[str, Any]]:
    packages = PACKAGES

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"found": [json.dumps(_seen_from_task(packages, address, signs))]})

    frame = spark.range(0, count, 1, count).mapInArrow(look, "found string")
    return [json.loads(row["found"]) for row in frame.collect()]


def _seen_from_task(packages: Sequence[str], address: tuple[str, int, str], signs: Mapping[str, str]) -> dict[str, Any]:
    """What a task in an executor finds."""
    versions: dict[str, str | None] = {}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    host, port, token = address
    called = ""
    try:
        with socket.create_connection((host, port), CALLED_WITHIN_S) as connection:
            connection.settimeout(CALLED_WITHIN_S)
            if connection.recv(len(token)).decode() != token:
                called = "something else listens there"
    except OSError as error:
        called = str(error)
    folders: dict[str, str] = {}
    for folder, sign in signs.items():
        if not Path(sign).exists():
            folders[folder] = "is not the same folder there"
        elif not os.access(folder, os.W_OK | os.X_OK):
            folders[folder] = f"cannot be written there by user {os.getuid()}"
    return {
        "host": socket.gethostname(),
        "time_ms": WallClock().now(),
        "python": list(sys.version_info[:2]),
        "executable": sys.executable,
        "versions": versions,
        "called": called,
        "folders": folders,
    }


def judged_looks(looks: Sequence[Mapping[str, Any]], *, began: int, ended: int, is_local: bool) -> Iterator[Finding]:
    """What follows from what tasks have found, one finding per host and matter. The tasks ran between `began` and
    `ended`, by the clock of this host."""
    hosts = {look["host"]: look for look in looks}
    here, version = versions_here(), list(sys.version_info[:2])
    for host, look in sorted(hosts.items()):
        what = f"executor {host}"
        if look["python"] != version:
            theirs = ".".join(map(str, look["python"]))
            yield _fault(what, f"Python {theirs} at {look['executable']}, another version than here",
                         "set PYSPARK_PYTHON to the same version of Python on every host")  # fmt: skip
        missing = [name for name, found in look["versions"].items() if found is None]
        if missing:
            yield _fault(
                what, f"lacks {', '.join(missing)}", f"pip install {' '.join(missing)} for {look['executable']}"
            )
        other = [
            f"{name} {found} (here {here[name]})"
            for name, found in look["versions"].items()
            if found is not None and found != here.get(name)
        ]
        if other:
            yield _warning(what, f"other versions: {', '.join(other)}", "install the same versions on every host")
        if look["called"]:
            yield _fault(what, f"cannot call the driver: {look['called']}",
                         "open the driver's ports to executors, or set NetworkSettings(master_host=...)")  # fmt: skip
        for folder, problem in look["folders"].items():
            yield _fault(what, f"{folder} {problem}", "mount the folder on every host, with rights for Spark's user")
        if look["python"] == version and not (missing or other or look["called"] or look["folders"]):
            yield _ok(what, "Python, packages, folders and the way to the driver are right")
    if not is_local:
        yield from _skews(hosts, began, ended)


def _skews(hosts: Mapping[str, Mapping[str, Any]], began: int, ended: int) -> Iterator[Finding]:
    for host, look in sorted(hosts.items()):
        skew_ms = max(began - look["time_ms"], look["time_ms"] - ended, 0)
        text = f"the clock is {skew_ms / 1_000:.1f} s away from the clock of the driver"
        fix = "have the hosts set their clocks by NTP: time-outs, event time by the clock and all durations are wrong"
        if skew_ms >= SKEW_FAULT_MS:
            yield _fault(f"clock of {host}", text, fix)
        elif skew_ms >= SKEW_WARNED_MS:
            yield _warning(f"clock of {host}", text, fix)
        else:
            yield _ok(f"clock of {host}", "agrees with the clock of the driver")


class _Listening:
    """A port of this host that says a token to whoever calls."""

    def __init__(self, host: str) -> None:
        self._token = fresh_token()
        self._socket = socket.create_server(("", 0))
        self._socket.settimeout(0.2)
        self.address = (host, int(self._socket.getsockname()[1]), self._token)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._answer, name="penstock-doctor", daemon=True)

    def _answer(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                continue
            with connection:
                connection.sendall(self._token.encode())

    def __enter__(self) -> _Listening:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close()


class _Signs:
    """A file in each folder, by which executors recognise the folder."""

    def __init__(self, folders: Sequence[str]) -> None:
        self.paths: dict[str, str] = {}
        for folder in folders:
            place = Path(folder).expanduser().absolute()
            if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
                self.paths[str(place)] = str(place / f"penstock-doctor-{fresh_token()}")

    def __enter__(self) -> _Signs:
        for path in self.paths.values():
            Path(path).touch()
        return self

    def __exit__(self, *_: object) -> None:
        for path in self.paths.values():
            Path(path).unlink(missing_ok=True)
