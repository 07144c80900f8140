"""What can be wrong with a machine is found before Spark starts, or said in one line when it does not."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from ports import own_port

from penstock.core.errors import HostError, UsageError
from penstock.spark.java import check_java, java_major, log_reason
from penstock.terminal.failures import one_line
from penstock.terminal.session import check_port, work_directory


def fake_java(folder: Path, *, prints: str, exit_code: int = 0) -> Path:
    """A home with a `java` that prints to standard error, as the real one does."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{prints}\nEND\nexit {exit_code}\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "25-ea" 2025-09-16', 25),
        ('java version "1.8.0_292"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "11.0.2" 2019-01-15', 11),
        ("no such thing", None),
        ("", None),
    ],
)
def test_the_major_version_is_read_from_what_java_prints(text, major):
    assert java_major(text) == major


def test_a_java_that_is_new_enough_is_found_by_its_home(tmp_path):
    java = fake_java(tmp_path, prints='openjdk version "17.0.1" 2021-10-19')
    assert check_java({"JAVA_HOME": str(tmp_path)}) == str(java)


def test_a_java_that_is_new_enough_is_found_on_the_path(tmp_path):
    java = fake_java(tmp_path, prints='openjdk version "21.0.1" 2023-10-17')
    assert check_java({"PATH": f"{java.parent}{os.pathsep}{os.environ['PATH']}"}) == str(java)


def test_no_java_at_all_is_said(tmp_path):
    with pytest.raises(HostError, match="java was not found") as caught:
        check_java({"PATH": str(tmp_path)})
    assert "install a JDK 17 or later" in one_line(caught.value)


def test_a_home_without_java_is_said_rather_than_passed_over(tmp_path):
    with pytest.raises(HostError, match="there is no bin/java in this folder"):
        check_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})


def test_an_old_java_is_refused_with_its_version_and_place(tmp_path):
    java = fake_java(tmp_path, prints='openjdk version "11.0.2" 2019-01-15')
    with pytest.raises(HostError, match=f"java 11 at {java} is too old"):
        check_java({"JAVA_HOME": str(tmp_path)})


def test_a_java_that_does_not_run_is_refused_with_what_it_said(tmp_path):
    fake_java(tmp_path, prints="Unable to locate a Java Runtime.", exit_code=1)
    with pytest.raises(HostError, match="Unable to locate a Java Runtime"):
        check_java({"JAVA_HOME": str(tmp_path)})


def test_a_port_that_is_taken_is_refused():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} cannot be used"):
            check_port(port)


def test_a_port_that_is_free_is_accepted():
    check_port(own_port())


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        pytest.param(
            "Setting default log level\n"
            "26/11/16 05:21:21 ERROR SparkContext: Error initializing SparkContext.\n"
            "java.net.BindException: Address already in use: Service 'SparkUI' failed\n"
            "\tat java.base/sun.nio.ch.Net.bind0(Native Method)\n"
            "Caused by: java.io.IOException: other\n",
            "java.net.BindException: Address already in use: Service 'SparkUI' failed",
            id="the first exception with a text",
        ),
        pytest.param(
            "NOTE: Picked up JDK_JAVA_OPTIONS: -Xnonsense\n"
            "Unrecognized option: -Xnonsense\n"
            "Error: Could not create the Java Virtual Machine.\n",
            "Unrecognized option: -Xnonsense",
            id="what java says of its options",
        ),
        pytest.param("one\ntwo\n\n", "two", id="the last line if none tells"),
        pytest.param("", "there was no output", id="nothing"),
    ],
)
def test_the_reason_is_the_most_telling_line(printed, reason):
    assert log_reason(printed) == reason


def test_a_directory_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with (
        pytest.raises(UsageError, match="cannot be written: Not a directory"),
        work_directory(tmp_path / "file" / "below", keep=False, prefix="x"),
    ):
        pass


def test_a_temporary_directory_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with work_directory(None, keep=False, prefix="demo-") as work:
        (work / "file").write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_directory_is_removed_after_a_failure_too(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(KeyboardInterrupt), work_directory(None, keep=False, prefix="demo-"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_directory_stays_if_asked(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with work_directory(None, keep=True, prefix="demo-") as work:
        pass
    assert list(tmp_path.iterdir()) == [work]


def did_not_start(work: Path) -> None:
    (work / "spark.log").write_text("why")
    raise HostError("Spark did not start")


def test_the_log_of_a_spark_that_did_not_start_stays(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(HostError), work_directory(None, keep=False, prefix="demo-") as work:
        did_not_start(work)
    assert (work / "spark.log").read_text() == "why"


def test_a_directory_that_was_given_stays(tmp_path):
    with work_directory(tmp_path / "mine", keep=False, prefix="demo-") as work:
        assert work.is_dir()
    assert work == tmp_path / "mine"
    assert work.is_dir()
