"""Names that somebody chose in order to write on the terminal of whoever looks."""

from __future__ import annotations

import pytest
from rich.console import Console
from rich.table import Table

from penstock.cli import main
from penstock.core.errors import UsageError
from penstock.terminal.failures import one_line
from penstock.terminal.plain_text import add_plain_row, plain

EVIL = "a\x1b[2Jb\x9b\x07\r\nfine: 9 of 9 snapshots could be restored\u202e"


def test_what_cannot_be_seen_is_written_out():
    assert plain("größer, 大") == "größer, 大"
    assert plain(EVIL) == r"a\x1b[2Jb\x9b\x07\r\nfine: 9 of 9 snapshots could be restored\u202e"
    assert one_line(UsageError("a\x1b]0;t\x07", hint="b\nc")) == r"a\x1b]0;t\x07 (b\nc)"


def test_a_row_of_a_table_is_no_markup():
    table, console = Table("name"), Console(width=80, force_terminal=False)
    add_plain_row(table, "[red]x[/red]\n")
    with console.capture() as shown:
        console.print(table)
    assert r"[red]x[/red]\n" in shown.get()


@pytest.mark.parametrize("name", ["job/chk-1/", "job/"])
def test_a_file_that_verify_names_cannot_forge_a_line(tmp_path, capsys, name):
    (tmp_path / "job" / "chk-1").mkdir(parents=True)
    (tmp_path / "job" / "chk-1" / "file").touch()
    (tmp_path / f"{name}{EVIL}").touch()
    with pytest.raises(SystemExit):
        main(["verify", str(tmp_path)])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert not any(line.startswith("fine: 9") for line in out.splitlines())
    assert r"a\x1b[2Jb" in out
