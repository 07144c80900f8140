"""What all tests share: one local Spark, and a check that tests with threads and processes leave none behind."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import s3_server
import short_lived_jvms

from penstock.spark import page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from zookeeper_server import ZooKeeperServer

    import penstock as ps
    from penstock.bench.kafka_broker import KafkaBroker

TESTS = Path(__file__).resolve().parent
WATCHED = tuple(TESTS / folder for folder in ("runtime", "net", "spark"))
WHOLE_JOBS = (TESTS / "sim", TESTS / "runtime" / "jobs")
GRACE_S = 60.0
"""A thread that was told to end, or a process that was killed, may need a moment to be gone, on a busy machine a long
one."""

# A property says what holds, not how fast: machines that run several things at once must not fail it.
hypothesis.settings.register_profile("penstock", deadline=None, print_blob=True)
# For `make check`, which people run all the time; `make test` looks at more examples, and at all cases.
FEW_EXAMPLES = 20
hypothesis.settings.register_profile("quick", deadline=None, print_blob=True, max_examples=FEW_EXAMPLES)
EXAMPLES = os.environ.get("PENSTOCK_EXAMPLES", "penstock")
hypothesis.settings.load_profile(EXAMPLES)


def pytest_configure() -> None:
    """Every JVM of the tests is cheap, also that of a program that a test starts."""
    short_lived_jvms.use_cheap_jvms()
    # The server of the page lives as long as its process, and so longer than the test that starts it. Tests of the page
    # ask for the page.
    page.BY_DEFAULT = False


def pytest_addoption(parser: pytest.Parser) -> None:
    """Scripts (`tests/scripts`) are rewritten on request only."""
    text = "write what happened into tests/scripts/*.txt, instead of comparing"
    parser.addoption("--rewrite-scripts", action="store_true", help=text)


# --- leaks -----------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_leaks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test of runtime, net or spark that leaves a thread or a child process behind.

    What a fixture of wider scope has started, such as the session's Spark, is there before and may stay. Jobs that are
    left are cancelled: they would take the cores that the next tests need.
    """
    if not any(request.path.is_relative_to(folder) for folder in WATCHED):
        yield
        return
    jobs = _started_jobs(monkeypatch) if "spark" in request.fixturenames else []
    threads_before = set(threading.enumerate())
    children_before = child_processes()
    yield
    deadline = time.monotonic() + GRACE_S
    left = [*_threads_left(threads_before, deadline), *_children_left(children_before, deadline)]
    if left:
        for job in jobs:
            job.cancel()
        _threads_left(threads_before, time.monotonic() + GRACE_S)
        pytest.fail("left behind: " + ", ".join(left), pytrace=False)


def _started_jobs(patch: pytest.MonkeyPatch) -> list[ps.Job]:
    """The jobs that this process starts from now on."""
    import penstock as ps  # most tests do not need all of it

    started: list[ps.Job] = []
    start = ps.Environment.start

    def start_and_remember(*args: Any, **options: Any) -> ps.Job:
        job = start(*args, **options)
        started.append(job)
        return job

    patch.setattr(ps.Environment, "start", start_and_remember)
    return started


def _threads_left(before: set[threading.Thread], deadline: float) -> list[str]:
    # A native thread that has called Python once is listed for good, cannot be joined, and is not ours to end.
    found = [
        thread
        for thread in threading.enumerate()
        if thread not in before and not _is_of_py4j(thread) and not isinstance(thread, threading._DummyThread)
    ]
    for thread in found:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [f"thread {thread.name!r}" for thread in found if thread.is_alive()]


def _is_of_py4j(thread: threading.Thread) -> bool:
    """Spark's driver keeps a connection, and so a thread here, for each of its threads that has called Python."""
    owner = getattr(getattr(thread, "_target", None), "__self__", thread)
    return type(owner).__module__.startswith("py4j.")


def _children_left(before: dict[int, str], deadline: float) -> list[str]:
    # There is no way to wait for a process of unknown origin without reaping it under its owner's hands.
    pause = threading.Event()
    while (left := {p: c for p, c in child_processes().items() if p not in before}) and time.monotonic() < deadline:
        pause.wait(0.02)
    return [f"process {pid} ({command})" for pid, command in left.items()]


def child_processes() -> dict[int, str]:
    """Direct children of this process, dead ones that nobody waited for included: pid -> command. Linux only."""
    found: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        # A process may end while it is being looked at.
        with contextlib.suppress(OSError):
            text = entry.read_text(encoding="utf-8", errors="replace")
            head, _, rest = text.rpartition(")")
            pid, _, command = head.partition(" (")
            parent = int(rest.split()[1])
            if parent == os.getpid():
                found[int(pid)] = command
    return found


# --- Kafka -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A real broker. Tests that kill the broker start the broker again."""
    from penstock.bench.kafka_broker import KafkaBroker, missing  # most tests do not need it

    if (reason := missing()) is not None:
        pytest.skip(f"no Kafka broker can be started: {reason}")
    with KafkaBroker(tmp_path_factory.mktemp("kafka"), users={"alice": "wonderland"}) as broker:
        yield broker


# --- Spark -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one local Spark of the session, with four cores. A test that uses it is marked `slow`."""
    if short_lived_jvms.java() is None:
        pytest.fail("Java was not found: Spark needs a JDK 17 or later; leave Spark out with -m 'not slow'")
    # Spark starts its Python workers by this variable; the setting alone reaches them only through spark-submit.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        # Workers get the environment that Spark was started with.
        for name, value in s3_server.CREDENTIALS.items():
            patch.setenv(name, value)
        from pyspark.sql import SparkSession  # only tests that need Spark pay for it

        session = (
            SparkSession.builder.master("local[4]")
            .appName("penstock-tests")
            .config("spark.pyspark.python", sys.executable)
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "4")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()


# --- storage ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def s3() -> Iterator[s3_server.S3Server]:
    """The S3 server of the session, and the credentials for it in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.CREDENTIALS.items():
            patch.setenv(name, value)
        server = s3_server.S3Server()
        yield server
        server.close()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """The ZooKeeper server of the session. A test that uses it is marked `slow`: it needs Java."""
    from zookeeper_server import ZooKeeperServer  # only tests that need it pay for it

    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))
    yield server
    server.close()


def pytest_collection_finish() -> None:
    """Ten thousand tests and their modules stay until the end. The collector need not look at them again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Whatever uses the `spark` fixture, or `zookeeper`, is slow, said or not.

    Files with tests that wait for Spark come first: the checks that `make test` runs beside the tests have the cores
    while the tests wait. Other files with slow tests follow. Short files come last: of several processes none is left
    alone with a long file in the end.
    """
    for item in items:
        if {"spark", "zookeeper"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    waits = {item.path for item in items if "spark" in getattr(item, "fixturenames", ())}
    waits |= {path for path in slow if path.parent == TESTS / "spark"}
    items.sort(key=lambda item: (item.path not in waits, item.path not in slow))
    if EXAMPLES == "quick":
        for item in items:
            _try_few_examples(getattr(item, "obj", None))
        kept = _a_few_cases(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]


def _try_few_examples(test: Any) -> None:
    """A property that asks for many examples by itself tries as few as the others: its own number goes before that of
    the profile."""
    own = getattr(test, "_hypothesis_internal_use_settings", None)
    if own is not None and own.max_examples > FEW_EXAMPLES:
        test._hypothesis_internal_use_settings = hypothesis.settings(own, max_examples=FEW_EXAMPLES)


def _a_few_cases(items: list[pytest.Item]) -> set[pytest.Item]:
    """All tests, but only the first and the last case of a test that runs whole jobs in many ways."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        whole_job = item.path.parent in WHOLE_JOBS
        cases.setdefault(item.nodeid.partition("[")[0] if whole_job else item.nodeid, []).append(item)
    return {kept for of_one in cases.values() for kept in (of_one[0], of_one[-1])}
