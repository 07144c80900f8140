"""The Spark session of a command: started for the command, and stopped with all its processes.

The output of Java and Spark goes to one file in the work directory, and the log of Penstock goes to another file, so
that only the command itself prints to the terminal. If Java is missing or too old, or if the JVM does not start, a
`HostError` says so in one line. A `UsageError` says that a port is taken or that a directory cannot be written.
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
    """The directory for the files of Spark, and for the logs."""
    ui: bool = False
    ui_port: int | None = None
    """The port of Spark's page. None: the first free port from 4040 on."""
    settings: Mapping[str, str] | None = None
    """More Spark settings. They replace the settings of this module that have the same names."""


@contextmanager
def spark_session(options: SessionOptions) -> Iterator[Any]:
    """A SparkSession on `local[cores]`. When the block has ended, the JVM and all Python workers have ended.

    An error that Spark itself raises inside the block becomes a `HostError`.
    """
    if options.ui and options.ui_port is not None:
        check_port(options.ui_port)
    check_java(os.environ)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # The Python side of Spark reads this variable, and the Java side reads `spark.pyspark.python`. Both must start this
    # interpreter.
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
    """A directory that can be written. The directory `given` stays when the block has ended. Without `given`, the
    directory is a temporary directory, which is removed at the end unless `keep`.

    After a `HostError` the temporary directory stays if it has Spark's log, because the log says what was wrong.
    """
    if given is not None:
        yield _writable(given)
        return
    try:
        path = Path(tempfile.mkdtemp(prefix=prefix))
    except OSError as error:
        raise UsageError(
            f"no temporary directory can be made: {error.strerror or error}", hint="give a directory with --directory"
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
    """Raise `UsageError` if `port` is taken."""
    host = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
    with socket.socket() as probe:
        # Spark's server sets the same option: with it, a connection that was closed a moment ago does not block the
        # port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UsageError(
                f"port {port} cannot be used for Spark's page: {error.strerror or error}",
                hint="choose another port with --ui-port",
            ) from error


def _writable(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UsageError(
            f"directory {str(path)!r} cannot be written: {error.strerror or error}",
            hint="choose another directory with --directory",
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
            # The text of the error is in the JVM, which may have ended.
            text = "the JVM does not answer"
        raise HostError(f"Spark failed: {short_reason(text)}", hint=f"the log of Spark is {log}") from error


@contextmanager
def _logged_to(path: Path) -> Iterator[None]:
    """Log to a file inside the block. Without a handler, warnings of Penstock and of Spark's client would be printed to
    the terminal."""
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

    # This logger would print every error of a query to the terminal, with the whole stack of the JVM. The exception has
    # the same content.
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
            raise HostError(f"Spark did not start: {log_reason(printed)}", hint=f"the log of Spark is {log}") from error
        raise
    # Spark's own handler of SIGINT cancels every Spark job. It would tear down slots that end by themselves when their
    # job is cancelled.
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
        # Spark must use exactly this port: if the port is taken, Spark must fail and not take the next port.
        settings |= {"spark.ui.port": str(options.ui_port), "spark.port.maxRetries": "0"}
    return settings | dict(options.settings or {})


def _stop(gateway: Any, spark: Any) -> None:
    from py4j.protocol import Py4JError

    try:
        with warnings.catch_warnings():
            # Spark warns if the JVM has ended or does not answer. The JVM is ended below in any case.
            warnings.simplefilter("ignore", RuntimeWarning)
            spark.stop()
    except (Py4JError, OSError):
        pass
    finally:
        _end_jvm(gateway)


def _end_jvm(gateway: Any) -> None:
    """End the JVM, which ends by itself when its standard input is closed. The Python workers end with the JVM."""
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
