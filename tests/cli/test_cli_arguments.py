"""Wrong arguments are refused before anything starts, in words that name them."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from penstock.cli import main


def run(*arguments: str):
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("demo", "--events", "0"), "--events"),
        (("demo", "--events", "-5"), "--events"),
        (("demo", "--events", "many"), "--events"),
        (("demo", "--parallelism", "0"), "--parallelism"),
        (("demo", "--kills", "-1"), "--kills"),
        (("demo", "--seed", "-1"), "--seed"),
        (("demo", "--ui-port", "70000"), "--ui-port"),
        (("demo", "--interval", "1 parsec"), "--interval"),
        (("demo", "--interval", "1ms"), "interval"),
        (("bench", "window", "--events", "0"), "--events"),
        (("bench", "window", "--parallelism", "0"), "--parallelism"),
        (("bench", "window", "--rounds", "0"), "--rounds"),
        (("bench", "window", "--latency-seconds", "0"), "--latency-seconds"),
        (("demo", "--no-such-option"), "--no-such-option"),
        (("verify",), "DIRECTORY"),
        (("verify", "--json", "--delete-orphans", "x"), "--yes"),
        (("verify", "no/such/directory"), "no file of a job is in"),
        (("verify", "ftp://host/x"), "no file system is known by 'ftp'"),
        (("no-such-command",), "no-such-command"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(arguments, named, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/nowhere/at/all")
    result = run(*arguments)
    assert result.exit_code == 2
    assert named in result.stderr
    assert "JAVA_HOME" not in result.stderr, "nothing was started"
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "command", [(), ("demo",), ("bench",), ("bench", "window"), ("bench", "processor"), ("sim",), ("verify",)]
)
def test_every_command_explains_itself(command):
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert "Usage: " in result.stdout


@pytest.mark.parametrize("command", [("demo",), ("bench", "window")])
def test_without_java_a_command_ends_with_one_line(command, monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = run(*command)
    assert result.exit_code == 2
    assert result.stderr.startswith("penstock: JAVA_HOME is")
    assert len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_ends_with_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    result = run("demo", "--directory", str(tmp_path / "file"))
    assert result.exit_code == 2
    assert result.stderr.startswith("penstock: directory")
    assert len(result.stderr.splitlines()) == 1


def test_the_output_of_an_earlier_run_is_not_written_into(tmp_path):
    (tmp_path / "out").mkdir()
    result = run("demo", "--directory", str(tmp_path))
    assert result.exit_code == 2
    assert "has the output of an earlier run" in result.stderr


def test_a_port_that_is_taken_ends_with_one_line():
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        result = run("demo", "--ui-port", str(listener.getsockname()[1]))
    assert result.exit_code == 2
    assert "cannot be used for Spark's page: Address already in use" in result.stderr
