"""A command ends with one line and an exit code."""

from __future__ import annotations

import os
import signal

import pytest

from penstock.core.errors import HostError, InvariantError, JobFailed, StreamError, UsageError
from penstock.terminal.failures import one_line, reported_failures, uninterrupted


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (UsageError("port 1 is taken"), "port 1 is taken"),
        (UsageError("port 1 is taken", hint="choose another"), "port 1 is taken (choose another)"),
        (JobFailed("job 'demo' failed: x\nTraceback\n  File y"), "job 'demo' failed: x"),
        (StreamError(""), "StreamError"),
    ],
)
def test_an_error_is_one_line(error, line):
    assert one_line(error) == line


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("wrong"), 2),
        (HostError("no java"), 2),
        (JobFailed("gave up"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_kind_of_failure_has_its_exit_code(error, code, capsys):
    with pytest.raises(SystemExit) as caught, reported_failures():
        raise error
    assert caught.value.code == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1


def test_a_bug_keeps_its_traceback():
    with pytest.raises(InvariantError), reported_failures():
        raise InvariantError("we are wrong")


def test_being_told_to_end_unwinds_with_its_own_code():
    with pytest.raises(SystemExit) as caught, reported_failures():
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.code == 143


def test_what_must_not_be_interrupted_is_not():
    before = signal.getsignal(signal.SIGINT)
    with uninterrupted():
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
