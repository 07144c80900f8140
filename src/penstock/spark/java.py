"""The Java that Spark runs on, and the session that a builder makes. If Java is missing or Spark does not start, the
error says why in one line."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.core.errors import HostError

LEAST_JAVA = 17
JAVA_TIMEOUT_S = 30

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
# Lines that say why a JVM ended, the most helpful kind first: a named exception with a text, then words of failure.
_TELLING = (
    re.compile(r"\b[\w.$]+(Exception|Error): \S"),
    re.compile(r"[Uu]nrecognized|[Cc]ould not|[Uu]nable|[Cc]annot|\bnot set\b"),
    re.compile(r"Exception|Error"),
)


def session_of(given: Any) -> Any:
    """The session that a program gave, or the session that the given builder makes. If the program gave nothing, the
    active session, or else a session of the default builder. Raises `HostError` if Java is missing, or if Spark does
    not start."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if given is None:
        given = SparkSession.getActiveSession() or SparkSession.builder
    if not isinstance(given, SparkSession.Builder):
        return given
    is_remote = "SPARK_REMOTE" in os.environ or "spark.remote" in given._options  # noqa: SLF001  # no way to ask
    if SparkContext._gateway is None and not is_remote:  # noqa: SLF001  # a JVM that runs is good enough
        check_java(os.environ)
    try:
        return given.getOrCreate()
    except Exception as error:
        raise HostError(
            f"Spark did not start: {log_reason(str(error))}", hint="see the output of Spark above"
        ) from error


def check_java(environment: Mapping[str, str]) -> str:
    """The path of a `java` that Spark can run on, looked for in the same places as by Spark's own scripts. Raises
    `HostError` if there is none."""
    home = environment.get("JAVA_HOME")
    if home:
        java = str(Path(home) / "bin" / "java")
        if not os.access(java, os.X_OK):
            raise HostError(
                f"JAVA_HOME is {home}, and there is no bin/java in this folder",
                hint=f"set JAVA_HOME to the home of a JDK {LEAST_JAVA} or later, or unset it to use the java of PATH",
            )
    else:
        found = shutil.which("java", path=environment.get("PATH"))
        if found is None:
            raise HostError(
                "java was not found, neither by JAVA_HOME nor by PATH",
                hint=f"install a JDK {LEAST_JAVA} or later, or set JAVA_HOME to the home of such a JDK",
            )
        java = found
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = f"no answer within {JAVA_TIMEOUT_S} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
        raise HostError(f"{java} cannot be run: {reason}", hint="set JAVA_HOME to the home of another JDK") from error
    said = ran.stderr + ran.stdout
    major = java_major(said)
    if ran.returncode != 0 or major is None:
        raise HostError(f"{java} cannot be run: {log_reason(said)}", hint="set JAVA_HOME to the home of another JDK")
    if major < LEAST_JAVA:
        raise HostError(
            f"java {major} at {java} is too old for Spark",
            hint=f"install a JDK {LEAST_JAVA} or later, or set JAVA_HOME to the home of such a JDK",
        )
    return java


def java_major(text: str) -> int | None:
    """The major version in the output of `java -version`; None if the output has no version. Up to Java 8 the major
    version is the second number."""
    match = _VERSION.search(text)
    if match is None:
        return None
    first, second = int(match[1]), match[2]
    return int(second) if first == 1 and second is not None else first


def log_reason(text: str) -> str:
    """The line of a JVM's output that most likely says why the JVM ended."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    for pattern in _TELLING:
        telling = next((line for line in lines if pattern.search(line)), None)
        if telling is not None:
            return telling[:300]
    return lines[-1][:300] if lines else "there was no output"
