"""Every script of this folder gives the output that it says. `pytest --rewrite-scripts` writes the output anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from script_job import Script
from script_text import rerun

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))
PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
COMMANDS = [name.removeprefix("do_") for name in dir(Script) if name.startswith("do_")]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_what_happens_is_what_the_script_says(path: Path, pytestconfig: pytest.Config) -> None:
    expected = path.read_text(encoding="utf-8")
    happened = rerun(expected, Script().perform)
    if pytestconfig.getoption("rewrite_scripts"):
        path.write_text(happened, encoding="utf-8")
    else:
        assert happened.splitlines() == expected.splitlines()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_tells_its_story_and_its_rule_first(path: Path) -> None:
    story = path.read_text(encoding="utf-8").split("\n\njob ")[0].splitlines()
    assert all(line.startswith("#") for line in story)
    assert any(line.startswith(("# Rule: ", "# Rules: ")) for line in story)


def test_the_script_in_the_documentation_gives_the_output_that_it_shows() -> None:
    shown = re.findall(r"```\n(# .*?\n----\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert [rerun(text, Script().perform) for text in shown] == shown
    assert len(shown) == 1


def test_every_command_is_documented() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [command for command in COMMANDS if f"| `{command}" not in page and f", `{command}" not in page] == []


def test_output_that_differs_is_told_and_comments_stay() -> None:
    text = "# A story.\n\n# Why.\njob sources=1 windows=1\n----\nwrong\n"
    happened = "# A story.\n\n# Why.\njob sources=1 windows=1\n----\nmaster: runs attempt 1 of source[0], window[0]\n"
    assert rerun(text, Script().perform) == happened


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("job sources=1 windows=1\n", "needs a line of dashes"),
        ("job sources=1 windows=1\nshow\n----\nok\n", "one command must stand above"),
        ("hop\n----\nok\n", "no command 'hop'"),
        ("job sources=1 windows=1\n----\nok\n\ndeliver source[0] -> window[0]\n----\nok\n", "nothing lies in"),
        ("job sources=1 windows=1\n----\nok\n\ndurable chk-1 metadata\n----\nok\n", "does not wait"),
    ],
)
def test_a_script_that_is_wrong_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        rerun(text, Script().perform)
