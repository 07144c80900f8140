"""A Spark of the command's own: found, started quietly, stopped without a trace.

All that Java and Spark print goes to one file in the work directory, and all that Penstock logs to another, so that the
terminal is the command's alone. What can go wrong on somebody else's machine (no Java, an old one, a JVM that ends at
once) is told in one line as `HostError`; a taken port or a directory that cannot be written as `UsageError`.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.core.errors import HostError, UsageError
from penstock.spark.java import check_java, log_reason
from penstock.spark.slots import short_reason
from penstock.terminal.failures import uninterrupted

STOP_TIMEOUT_S = 15
LOG_NAME = "spark.log"
OWN_LOG_NAME = "penstock.log"


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """How to start Spark."""

    application: str
    cores: int
    work: Path
    """Where Spark keeps its files and its log."""
    ui: bool = False
    ui_port: int | None = None
    """None: 4040, or the next one that is free."""
    settings: Mapping[str, str] | None = None
    """More Spark settings, above the ones made here."""


@contextmanager
def spark_session(options: SessionOptions) -> Iterator[Any]:
    """A SparkSession on `local[cores]`. When the block ends, its JVM and all its workers are gone.

    What Spark itself raises inside the block leaves it as a `HostError`.
    """
    if options.ui and options.ui_port is not None:
        check_port(options.ui_port)
    check_java(os.environ)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Spark's Python side looks here, its Java side at the setting; both must start this interpreter.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with _logged_to(options.work / OWN_LOG_NAME):
        gateway, spark = _start(options)
        try:
            with _spark_errors(options.work / LOG_NAME):
                yield spark
        finally:
            with uninterrupted():
                _stop(gateway, spark)


@contextmanager
def work_directory(given: Path | None, *, keep: bool, prefix: str) -> Iterator[Path]:
    """A directory that can be written: `given`, which stays, or a fresh one that is removed unless `keep`.

    It also stays if Spark did not start in it, for the log's sake.
    """
    if given is not None:
        yield _writable(given)
        return
    try:
        path = Path(tempfile.mkdtemp(prefix=prefix))
    except OSError as error:
        raise UsageError(
            f"no temporary directory can be made: {error.strerror or error}", hint="name a place with --directory"
        ) from error
    stays = keep
    try:
        yield path
    except HostError:
        stays = (path / LOG_NAME).exists()
        raise
    finally:
        if not stays:
            with uninterrupted():
                shutil.rmtree(path, ignore_errors=True)


def check_port(port: int) -> None:
    """Raise `UsageError` if somebody listens on `port` already."""
    host = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
    with socket.socket() as probe:
        # As Spark's server does: the rest of a connection that was closed just now does not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UsageError(
                f"port {port} cannot be used for Spark's page: {error.strerror or error}",
                hint="choose another one with --ui-port",
            ) from error


def _writable(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UsageError(
            f"directory {str(path)!r} cannot be written: {error.strerror or error}",
            hint="choose another one with --directory",
        ) from error
    return path.resolve()


@contextmanager
def _spark_errors(log: Path) -> Iterator[None]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        try:
            text = str(error)
        except Py4JError:
            # Its text is in the JVM, which may be gone.
            text = "it does not answer"
        raise HostError(f"Spark failed: {short_reason(text)}", hint=f"its log is {log}") from error


@contextmanager
def _logged_to(path: Path) -> Iterator[None]:
    """What is logged goes to a file: without a handler, warnings of ours and of Spark's client go to the terminal."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root, ours = logging.getLogger(), logging.getLogger("penstock")
    level = ours.level
    root.addHandler(handler)
    ours.setLevel(logging.INFO)
    try:
        yield
    finally:
        ours.setLevel(level)
        root.removeHandler(handler)
        handler.close()


def _start(options: SessionOptions) -> tuple[Any, Any]:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    # It would print every error of a query to the terminal, with the JVM's whole stack; the exception says the same.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    log = options.work / LOG_NAME
    conf = SparkConf(loadDefaults=False).setAll(list(_settings(options).items()))
    gateway = None
    try:
        with log.open("wb") as output:
            streams = {"stdout": output, "stderr": subprocess.STDOUT}
            gateway = launch_gateway(conf, popen_kwargs=streams)  # type: ignore[no-untyped-call]
        spark = SparkSession(SparkContext(conf=conf, gateway=gateway))
    except BaseException as error:
        with uninterrupted():
            _end_jvm(gateway)
        if isinstance(error, Exception):
            printed = log.read_text(encoding="utf-8", errors="replace")
            raise HostError(f"Spark did not start: {log_reason(printed)}", hint=f"its log is {log}") from error
        raise
    # Spark's own handler cancels every Spark job, and so tears slots down that a cancelled job would let leave.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return gateway, spark


def _settings(options: SessionOptions) -> dict[str, str]:
    place = options.work / "spark"
    settings = {
        "spark.app.name": options.application,
        "spark.master": f"local[{options.cores}]",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(place),
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(options.cores),
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.ui.enabled": str(options.ui).lower(),
        "spark.ui.showConsoleProgress": "false",
    }
    if options.ui_port is not None:
        # Exactly this port: one that is taken is an error, not a reason to take the next.
        settings |= {"spark.ui.port": str(options.ui_port), "spark.port.maxRetries": "0"}
    return settings | dict(options.settings or {})


def _stop(gateway: Any, spark: Any) -> None:
    from py4j.protocol import Py4JError

    try:
        with warnings.catch_warnings():
            # Spark warns of a JVM that is gone or does not answer; it is ended below in any case.
            warnings.simplefilter("ignore", RuntimeWarning)
            spark.stop()
    except (Py4JError, OSError):
        pass
    finally:
        _end_jvm(gateway)


def _end_jvm(gateway: Any) -> None:
    """The JVM ends by itself when its standard input closes; its Python workers end with it."""
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if process is None:
        return
    gateway.shutdown()
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
