"""Errors say what happened in one line and what to do in the next, and survive the way between processes."""

from __future__ import annotations

import pickle

import pytest

from penstock.core import errors
from penstock.core.errors import (
    CorruptFile,
    ExternalError,
    Fault,
    HostError,
    InvariantError,
    JobCancelled,
    JobFailed,
    JobTakenOver,
    LinkBroken,
    MalformedMessage,
    MissingFile,
    NoAnswer,
    PeerError,
    RescaleFailed,
    Retry,
    SettingsError,
    SlotLost,
    SnapshotFailed,
    StorageError,
    StreamError,
    UsageError,
    UserCodeError,
    fault_of,
)

EXAMPLES = [
    StreamError("it broke", hint="mend it"),
    UsageError("parallelism is 0", hint="set at least 1"),
    SettingsError(["interval_ms is 0", "timeout_ms is 0"]),
    UserCodeError(operator="clean", subtask=3, traceback_text="Traceback\nValueError: no\n"),
    PeerError("a peer went away"),
    SlotLost("slot 1 was lost"),
    NoAnswer("job counts does not answer"),
    LinkBroken("3 messages are missing"),
    MalformedMessage("frame has no header"),
    ExternalError("the world said no", retry=Retry.LATER),
    StorageError("disk is full", hint="make room", retry=Retry.LATER),
    CorruptFile("chk-1/_metadata is cut"),
    MissingFile("chk-1/_metadata is gone"),
    HostError("Java was not found", hint="install one"),
    JobTakenOver("another driver has taken job 'x' over", hint="this one has let go of it"),
    SnapshotFailed("the job did not stop", savepoint="save/savepoint-1/_metadata"),
    RescaleFailed("job 'x' was not rescaled to 4: the job has 4 slots already"),
    JobFailed("the job gave up", cause_text="boom"),
    JobCancelled("the job was cancelled"),
    InvariantError("two tasks have one id"),
]


def test_every_kind_of_error_has_an_example_here():
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, StreamError)]
    assert {type(error) for error in EXAMPLES} == set(kinds)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_after_being_pickled(error):
    read = pickle.loads(pickle.dumps(error))
    assert type(read) is type(error)
    assert str(read) == str(error)
    assert vars(read) == vars(error)


def test_a_hint_stands_on_a_line_of_its_own():
    assert str(StreamError("it broke", hint="mend it")) == "it broke\n  hint: mend it"
    assert str(StreamError("it broke")) == "it broke"


def test_one_wrong_setting_is_named_and_several_are_counted():
    assert str(SettingsError(["interval_ms is 0"])) == "interval_ms is 0"
    both = SettingsError(["interval_ms is 0", "timeout_ms is 0"])
    assert str(both) == "2 settings are wrong: interval_ms is 0; timeout_ms is 0"
    assert both.problems == ("interval_ms is 0", "timeout_ms is 0")


@pytest.mark.parametrize(
    ("traceback_text", "last"),
    [("Traceback\n  line\nValueError: no\n", "ValueError: no"), (" \n", "unknown error")],
)
def test_an_error_of_user_code_begins_with_where_and_what(traceback_text, last):
    error = UserCodeError(operator="clean", subtask=3, traceback_text=traceback_text)
    assert str(error).splitlines()[0] == f"user function of 'clean' failed in subtask 3: {last}"
    assert error.traceback_text == traceback_text


def test_trying_again_is_not_advised_unless_it_is_said():
    assert ExternalError("no").retry is Retry.NEVER
    assert StorageError("busy", retry=Retry.LATER).retry is Retry.LATER


def test_a_wrong_argument_is_a_value_error_too():
    assert isinstance(SettingsError(["x"]), ValueError)


def refused() -> Exception:
    return ConnectionRefusedError(111, "refused")


def with_cause(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


def with_context(error: Exception, context: BaseException) -> Exception:
    error.__context__ = context
    return error


def a_ring() -> Exception:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    return first


class OfTheProgram(UsageError):
    """A class that a program derived from one of the package's."""


def in_user_code(error: BaseException) -> BaseException:
    return with_cause(UserCodeError(operator="f", subtask=0, traceback_text="x"), error)


USER_CODE = UserCodeError(operator="f", subtask=0, traceback_text="x")


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (UsageError("wrong"), Fault.PERMANENT),
        (SettingsError(["wrong"]), Fault.PERMANENT),
        (CorruptFile("cut"), Fault.PERMANENT),
        (MissingFile("gone"), Fault.PERMANENT),
        (KeyError("price"), Fault.PROGRAM),
        (InvariantError("a bug"), Fault.PROGRAM),
        (USER_CODE, Fault.PROGRAM),
        (StorageError("no permission"), Fault.PROGRAM),
        (FileNotFoundError(2, "no such file"), Fault.PROGRAM),
        (in_user_code(UsageError("wrong")), Fault.PERMANENT),
        (in_user_code(SettingsError(["wrong"])), Fault.PERMANENT),
        (in_user_code(CorruptFile("cut")), Fault.PERMANENT),
        (in_user_code(ValueError("wrong")), Fault.PROGRAM),
        (in_user_code(OfTheProgram("wrong")), Fault.PROGRAM),
        (in_user_code(with_cause(ValueError("its own words"), UsageError("wrong"))), Fault.PROGRAM),
        (StorageError("busy", retry=Retry.LATER), Fault.PASSING),
        (SlotLost("gone"), Fault.PASSING),
        (refused(), Fault.PASSING),
        (TimeoutError("slow"), Fault.PASSING),
        (MemoryError(), Fault.PASSING),
        (OSError(28, "no space left"), Fault.PASSING),
        (with_cause(StorageError("not written"), OSError(28, "no space left")), Fault.PASSING),
        (in_user_code(refused()), Fault.PASSING),
        (with_context(OSError("a library's own error"), refused()), Fault.PASSING),
        (with_context(NameError("a typo in the handler"), refused()), Fault.PROGRAM),
        (a_ring(), Fault.PROGRAM),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_an_error_says_whether_the_same_program_may_succeed_next_time(error: BaseException, fault: Fault):
    assert fault_of(error) is fault
