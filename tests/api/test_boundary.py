"""Errors of the user's making end at the user's line, in a script, in a notebook and for whoever catches them."""

from __future__ import annotations

import signal
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest

import penstock
from penstock.api.boundary import at_user_line, rendered, shown_at_user_line
from penstock.core.errors import InvariantError, UsageError

OURS = str(Path(penstock.__file__).parent)

SCRIPT = """
from penstock.api.program import Program
from penstock.connectors.nexmark import bids

def clean(batch):
    return undefined

def build():
    stream = Program().read(bids(events=10))
    {line}

build()
"""
PATH_ONLY = {"PYTHONPATH": str(Path(OURS).parent)}


def frames_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith('  File "')]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("stream.where('prise > 1')", "prise"),
        ("stream.where('price >')", "UsageError"),
        ("stream.map(None, schema='a int')", "map takes a function"),
        ("stream.key_by('auction').window(7)", "window takes a window"),
    ],
)
def test_a_script_shows_its_own_lines_and_no_others(tmp_path, line, error):
    script = tmp_path / "main.py"
    script.write_text(SCRIPT.format(line=line))
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert error in ran.stderr
    assert [f'File "{script}"' in frame for frame in frames_of(ran.stderr)] == [True, True], ran.stderr
    assert ran.stderr.count("Traceback") == 1


def test_an_interrupt_inside_the_package_shows_the_lines_of_the_user_and_no_others(tmp_path):
    script = tmp_path / "main.py"
    text = SCRIPT.replace("return undefined", "raise KeyboardInterrupt").format(line="stream.map_batches(clean)")
    script.write_text(text)
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert ran.returncode == -signal.SIGINT
    assert [f'File "{script}"' in frame for frame in frames_of(ran.stderr)] == [True, True, True], ran.stderr
    assert ran.stderr.count("Traceback") == 1
    assert ran.stderr.splitlines()[-1].startswith("KeyboardInterrupt")


BEFORE_A_PROGRAM = """
import sys
import penstock as ps
from penstock import testing

WRONG = [
    {lines}
]

for wrong in WRONG:
    try:
        wrong()
    except Exception:
        sys.excepthook(*sys.exc_info())
    print("-- next", file=sys.stderr)
"""
WRONG = {
    "ps.value_state('seen', 'intt')": "intt",
    "testing.scripted([{'n': 1}], schema='n intt')": "intt",
    "testing.scripted([])": "UsageError",
    "testing.run(lambda env: None, crashes=-1)": "UsageError",
    "ps.tumbling('5 parsecs')": "parsecs",
    "ps.read_savepoint(None, 'nowhere')": "Error",
    "ps.restore('nowhere', claim='mine')": "mine",
    "ps.Checkpointing(interval=5)": "interval",
    "ps.fixed_delay(attempts=-1, delay='1s')": "Error",
    "ps.nexmark.bids(events=-1)": "Error",
    "ps.ttl('5 parsecs')": "parsecs",
}


def test_what_is_wrong_before_there_is_a_program_is_shown_at_the_users_line_too(tmp_path):
    script = tmp_path / "main.py"
    script.write_text(BEFORE_A_PROGRAM.format(lines="\n    ".join(f"lambda: {line}," for line in WRONG)))
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    *shown, rest = ran.stderr.split("-- next\n")
    assert rest == ""
    for error, text in zip(WRONG.values(), shown, strict=True):
        assert error in text
        assert [f'File "{script}"' in frame for frame in frames_of(text)] == [True, True], text
        assert text.count("Traceback") == 1


def test_the_package_is_imported_without_what_prints_its_errors():
    code = "import sys, penstock; sys.exit('penstock.api.boundary' in sys.modules or 'traceback' in sys.modules)"
    assert subprocess.run([sys.executable, "-S", "-c", code], check=False, env=PATH_ONLY).returncode == 0


def test_what_the_users_own_function_raised_is_shown_too(tmp_path):
    script = tmp_path / "main.py"
    script.write_text(SCRIPT.format(line="stream.map_batches(clean)"))
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert "NameError: name 'undefined' is not defined" in ran.stderr
    assert f'File "{script}", line 6, in clean' in ran.stderr
    assert OURS not in ran.stderr


def test_who_catches_an_error_finds_one_frame_of_the_package(bids):
    with pytest.raises(UsageError) as caught:
        bids.where("prise > 1").select("price")
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert [file.startswith(OURS) for file in files] == [False, True]
    assert caught.value.__cause__ is None


@at_user_line
class Public:
    def wrong(self):
        raise UsageError("wrong")

    def bug(self):
        self._deeper()

    def _deeper(self):
        raise InvariantError("a bug")

    def refused(self):
        self._from(UsageError("the type of 'seen' has changed"), "cannot go on: the type of 'seen' has changed")

    def failed(self):
        self._from(UsageError("the function of 'f' failed"), "the job failed")

    def not_stored(self):
        cause = UsageError("no room for it")
        cause.__cause__ = OSError(28, "no room")
        self._from(cause, "no savepoint: no room for it")

    def _from(self, cause, text):
        raise UsageError(text) from cause


def test_what_an_error_was_raised_from_is_shown_unless_the_error_says_it_already():
    shown = {name: "".join(rendered(raised(getattr(Public(), name)))) for name in ("refused", "failed", "not_stored")}
    assert [text.count("UsageError: ") for text in shown.values()] == [1, 2, 1], shown


def test_a_bug_keeps_all_its_frames():
    with pytest.raises(InvariantError) as caught:
        Public().bug()
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-2:] == ["bug", "_deeper"]


class Shell:
    custom_exceptions = ()

    def __init__(self) -> None:
        self.shown = []

    def set_custom_exc(self, kinds, handler):
        self.kinds, self.handler = kinds, handler

    def _showtraceback(self, kind, error, lines):
        self.shown.append("".join(lines))

    def showtraceback(self, error, tb_offset=None):
        self.shown.append(error)


def raised(call) -> BaseException:
    try:
        call()
    except Exception as error:  # noqa: BLE001  # as a notebook does
        return error
    raise AssertionError("nothing was raised")


def test_a_notebook_shows_the_same(monkeypatch):
    shell = Shell()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    shown_at_user_line()
    error, bug = raised(Public().wrong), raised(Public().bug)
    shell.handler(shell, type(error), error, error.__traceback__)
    assert OURS not in shell.shown[0]
    assert "test_boundary.py" in shell.shown[0]
    shell.handler(shell, type(bug), bug, bug.__traceback__, tb_offset=1)
    assert shell.shown[1] == (InvariantError, bug, bug.__traceback__)


def test_somebody_elses_hook_stays(monkeypatch):
    def other(*_):
        pass

    monkeypatch.setattr(sys, "excepthook", other)
    shown_at_user_line()
    assert sys.excepthook is other


def test_other_errors_are_printed_by_python(monkeypatch, capsys):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    shown_at_user_line()
    for error in (ValueError("other"), InvariantError("a bug")):
        sys.excepthook(type(error), error, None)
    assert "ValueError: other" in capsys.readouterr().err
    assert rendered(UsageError("x"))[-1].endswith("UsageError: x\n")
