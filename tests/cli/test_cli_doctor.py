"""What the doctor says of a host, of directories and of executors, and what to do about it."""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.spark.examination import (
    PACKAGES,
    SKEW_FAULT_MS,
    Grade,
    examine_directory,
    examine_host,
    file_system_of,
    judged_looks,
    versions_here,
)

MOUNTS = "disk / ext4 rw 0 0\nmem /fast tmpfs rw 0 0\nshare /fast/mnt\\040x nfs4 rw 0 0\n"
NOW = 1_700_000_000_000


def seen(host="a", **changes):
    return {
        "host": host,
        "time_ms": NOW,
        "python": list(sys.version_info[:2]),
        "executable": "/usr/bin/python",
        "versions": versions_here(),
        "called": "",
        "folders": {},
        **changes,
    }


def judged(*looks, is_local=False):
    return list(judged_looks(looks, began=NOW - 100, ended=NOW + 100, is_local=is_local))


def test_what_is_missing_on_this_host_comes_with_its_fix(tmp_path):
    found = {finding.what: finding for finding in examine_host({"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)})}
    assert found["Python"].grade is Grade.OK
    assert found["packages"].grade is Grade.OK
    assert found["Java"].grade is Grade.FAULT
    assert found["Java"].fix


def test_a_directory_is_written_read_and_left_as_it_was(tmp_path):
    (finding,) = examine_directory(str(tmp_path), MOUNTS)
    assert (finding.grade, finding.text) == (Grade.OK, "can be written, read and deleted; file system ext4")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_a_fault_and_one_in_memory_a_warning(tmp_path):
    (tmp_path / "file").touch()
    (finding,) = examine_directory(str(tmp_path / "file" / "below"), MOUNTS)
    assert (finding.grade, bool(finding.fix)) == (Grade.FAULT, True)
    (finding,) = examine_directory(str(tmp_path), f"mem {tmp_path} tmpfs rw 0 0\n")
    assert (finding.grade, "gone when the host restarts" in finding.text) == (Grade.WARNING, True)


@pytest.mark.parametrize(
    ("path", "kind"), [("/x", "ext4"), ("/fast/y", "tmpfs"), ("/fast/mnt x/z", "nfs4"), ("/fastest", "ext4")]
)
def test_a_path_lies_on_the_innermost_file_system(path, kind):
    from pathlib import Path

    assert file_system_of(Path(path), MOUNTS) == kind


def test_an_executor_that_is_right_is_one_line():
    (look, clock) = judged(seen(), seen())
    assert (look.grade, clock.grade) == (Grade.OK, Grade.OK)
    assert len(judged(seen(), is_local=True)) == 1


@pytest.mark.parametrize(
    ("changes", "grade", "words"),
    [
        ({"python": [3, 8]}, Grade.FAULT, "Python 3.8"),
        ({"versions": {**versions_here(), "rocksdict": None}}, Grade.FAULT, "lacks rocksdict"),
        ({"versions": {**versions_here(), "numpy": "1.0"}}, Grade.WARNING, "numpy 1.0 (here "),
        ({"called": "timed out"}, Grade.FAULT, "cannot call the driver: timed out"),
        ({"folders": {"/ck": "is not the same folder there"}}, Grade.FAULT, "/ck is not the same folder"),
        ({"time_ms": NOW + 5_000}, Grade.WARNING, "4.9 s away"),
        ({"time_ms": NOW - 2 * SKEW_FAULT_MS}, Grade.FAULT, "119.9 s away"),
    ],
)
def test_what_is_wrong_with_an_executor_names_the_host_and_the_fix(changes, grade, words):
    wrong = [finding for finding in judged(seen("good"), seen("bad", **changes)) if finding.grade is not Grade.OK]
    (finding,) = wrong
    assert (finding.grade, "bad" in finding.what, bool(finding.fix)) == (grade, True, True)
    assert words in finding.text


def test_the_exit_code_says_whether_there_is_a_fault(tmp_path):
    fine = CliRunner().invoke(main, ["doctor", "--no-spark", "--directory", str(tmp_path), "--json"])
    assert (fine.exit_code, json.loads(fine.output)["faults"]) == (0, 0)
    (tmp_path / "file").touch()
    wrong = CliRunner().invoke(main, ["doctor", "--no-spark", "--directory", str(tmp_path / "file" / "x")])
    assert (wrong.exit_code, wrong.output.splitlines()[-1]) == (1, "1 fault")


def test_the_packages_are_those_that_penstock_asks_for():
    from importlib.metadata import requires

    needed = {text.split(">")[0].split("<")[0].split("=")[0] for text in requires("penstock") or () if ";" not in text}
    assert set(PACKAGES) - {"penstock"} <= needed


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_for_each_shell(shell):
    printed = CliRunner().invoke(main, ["completion", shell])
    assert printed.exit_code == 0
    assert "_PENSTOCK_COMPLETE" in printed.output


def test_running_jobs_are_completed(monkeypatch):
    from penstock.net import control

    monkeypatch.setattr(control, "running_jobs", lambda: ["orders-0123abcd", "clicks-0123abcd"])
    asked = {"COMP_WORDS": "penstock info or", "COMP_CWORD": "2", "_PENSTOCK_COMPLETE": "bash_complete"}
    printed = CliRunner(env=asked).invoke(main, [], prog_name="penstock")
    assert printed.output == "plain,orders\n"
