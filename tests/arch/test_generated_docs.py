"""The pages about the code say what the code says."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.core.reasons import CheckpointFailure

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("penstock_docs_generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_fresh(generator):
    assert generator.stale_pages() == [], "run `make docs`"


@pytest.fixture
def copied(generator, tmp_path, monkeypatch):
    """A folder of pages of its own, in which there is only the protocol, fresh."""
    monkeypatch.setattr(generator, "DOCS", tmp_path)
    page = tmp_path / "protocol.md"
    page.write_text((ROOT / "docs" / "protocol.md").read_text("utf-8"), "utf-8")
    page.write_text(generator.protocol_page(), "utf-8")
    return tmp_path


def test_a_page_that_is_missing_or_says_something_else_is_stale(generator, copied):
    pages = ("settings", "errors", "api", "cli", "metrics")
    assert generator.stale_pages() == [f"reference/{name}.md" for name in pages]
    assert generator.main([]) == 0
    assert generator.stale_pages() == []
    (copied / "reference" / "errors.md").write_text("something else", encoding="utf-8")
    assert generator.main(["--check"]) == 1


def test_a_block_of_the_protocol_that_says_something_else_is_stale_and_written_anew(generator, copied):
    page = copied / "protocol.md"
    fresh = page.read_text("utf-8")
    page.write_text(fresh.replace("| `PointerStored` |", "| `PointerLost` |"), "utf-8")
    assert "protocol.md" in generator.stale_pages()
    assert generator.main([]) == 0
    assert page.read_text("utf-8") == fresh


def test_what_is_written_by_hand_around_the_blocks_stays(generator, copied):
    page = copied / "protocol.md"
    text = page.read_text("utf-8") + "\nA line of one's own.\n"
    page.write_text(text, "utf-8")
    assert generator.protocol_page() == text


@dataclass(frozen=True, kw_only=True)
class Planted:
    """Two settings, one of which says nothing."""

    spoken_ms: int = 1_500
    """How long
    to speak."""
    silent: int = 1


def test_texts_are_found_below_their_fields(generator):
    assert generator.texts_below_fields(Planted) == {"spoken_ms": "How long to speak."}


def test_a_setting_without_text_is_refused(generator):
    with pytest.raises(SystemExit, match=r"Planted\.silent has no text"):
        list(generator._field_rows(Planted))


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("timeout_ms", 600_000, "`600_000` (10 min)"),
        ("timeout_ms", 500, "`500`"),
        ("batch_bytes", 1024, "`1_024` (1 KiB)"),
        ("rows", 65_536, "`65_536`"),
        ("transport", "auto", "`'auto'`"),
        ("unaligned", False, "`False`"),
        ("limit", None, "`None`"),
    ],
)
def test_a_default_is_shown_with_its_unit(generator, name, value, text):
    assert generator._default(name, value) == text


# --- the protocol ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def protocol() -> str:
    return (ROOT / "docs" / "protocol.md").read_text("utf-8")


def test_every_machine_shows_all_its_events_and_effects(protocol):
    """A union of the core whose members are events or effects has its table."""
    unions = [
        f"{module}:{name}"
        for path in sorted((ROOT / "src/penstock/core").rglob("*.py"))
        for module, name in _unions_of(path)
    ]
    assert len(unions) >= 8
    shown = re.findall(r"<!-- members (\S+) -->", protocol)
    assert sorted(shown) == sorted([*unions, "penstock.core.elements:AnyElement"])


def _unions_of(path: Path):
    module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
    for statement in ast.parse(path.read_text("utf-8")).body:
        match statement:
            # `JobEvent` of the job, `HandlerEffect` of a handler; parts of those serve a dispatch and have no table.
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.BinOp(op=ast.BitOr())) if path.name in (
                "events.py",
                "effects.py",
                "ending.py",
            ):
                yield module, name
            case _:
                pass


@pytest.mark.parametrize(
    ("drawn_in", "states_of"),
    [
        ("penstock.core.job.lifecycle", "penstock.core.job.events:JobState"),
        ("penstock.core.coordinator.pending", "penstock.core.coordinator.pending:Phase"),
        ("penstock.core.barrier.persister", "penstock.core.barrier.persister:PersistStatus"),
        ("penstock.core.barrier.aligned", "penstock.core.barrier.aligned:State"),
        ("penstock.core.barrier.alternating", "penstock.core.barrier.alternating:State"),
        ("penstock.core.task.life", "penstock.core.task.life:LifeState"),
    ],
)
def test_a_diagram_has_every_state(generator, drawn_in, states_of):
    module, _, name = states_of.partition(":")
    rows = generator._states(importlib.import_module(module), name)[2:]
    states = [row.split("`")[1] for row in rows]
    picture = re.findall(r"```\n(.*?)```", "\n".join(generator._theory(importlib.import_module(drawn_in), "")), re.S)
    assert states
    assert [state for state in states if not re.search(rf"\b{state}\b", picture[0])] == []


def test_every_module_and_test_that_the_protocol_names_exists(protocol):
    _, _, table = protocol.partition("## 8. Where everything is")
    named = re.findall(r"`((?:src|tests)/[\w/.]+)`", protocol)
    for row in re.findall(r"^\| [A-E]\d+ \|.*$", table, re.M):
        _, _, _, modules, tests, _, _ = row.split("|")
        named += [f"src/penstock/{path}" for path in re.findall(r"`([\w/]+\.py)`", modules)]
        named += [f"tests/{path}" for path in re.findall(r"`([\w/]+\.py)`", tests)]
    assert len(named) > 100
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_table_has_every_part_once(protocol):
    counts = {"A": 10, "B": 8, "C": 7, "D": 8, "E": 7}
    expected = [f"{letter}{number}" for letter, last in counts.items() for number in range(1, last + 1)]
    assert re.findall(r"^\| ([A-E]\d+) \|", protocol, re.M) == expected


def test_a_part_without_modules_says_that_it_does_not_exist(protocol):
    for row in re.findall(r"^\| [A-E]\d+ \|.*$", protocol, re.M):
        _, number, _, modules, tests, missing, _ = (cell.strip() for cell in row.split("|"))
        assert bool(modules) == bool(tests), number
        assert modules or missing == "all of it", number


def test_pictures_in_a_docstring_become_blocks_and_the_first_line_is_left_out(generator):
    module = type(re)("planted", "Heading.\n\nRules of this file:\n\n    A ─► B\n\n    C\n\nText.\n")
    assert generator._theory(module, "") == ["Rules:", "", "```", "A ─► B", "", "C", "```", "", "Text."]


def test_a_picture_may_end_a_docstring(generator):
    assert generator._theory(type(re)("planted", "Heading.\n\n    A ─► B\n"), "") == ["```", "A ─► B", "```"]


def test_every_reason_says_when_it_can_occur(generator):
    rows = {row.split("`")[1]: row for row in generator._reason_rows()}
    assert rows["IO"].endswith("| before any task was triggered | yes | yes |")
    assert rows["EXPIRED"].endswith("| while tasks take their snapshots | yes | no |")
    assert rows["SUBSUMED"].endswith("| on the master | no | no |")
    assert all(when for when in generator.times_of(inspect.getsource(CheckpointFailure)).values())


def test_a_reason_under_no_comment_has_no_time(generator):
    source = "class Reasons(Enum):\n    FIRST = 'first'\n\n    # In the end.\n    LAST = 'last'\n"
    assert generator.times_of(source) == {"FIRST": "", "LAST": "in the end"}


def test_the_page_of_the_interface_has_every_public_name_with_what_it_says(generator):
    page = generator.api_page()
    for module in ("penstock", "penstock.testing"):
        for name in importlib.import_module(module).__all__:
            assert f"\n### {name}\n" in page, name
    assert "#### Stream.key_by\n\n```python\nkey_by(*columns: str) -> KeyedStream\n```\n\nThe same records" in page
    assert "#### Environment.read\n" in page, "what a class has of a base that is not public is its own"
    assert "* `parallelism`: how many slots" in page
    assert " at 0x" not in page
