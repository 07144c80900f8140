"""Writes the reference pages from the code they describe, so that neither can say something else.

    python docs/generate.py            write the pages below docs/reference and fill the blocks of docs/protocol.md
    python docs/generate.py --check    exit with 1, naming the pages that are stale

Settings come from the dataclasses of `penstock.settings` and the texts below their fields; errors and reasons from
`penstock.core.errors` and `penstock.core.reasons`; the interface from the docstrings of what is public; commands and
metrics by `generate_operating.py`. The page on the
protocol is written by hand, around blocks that are not: each begins with a comment that says what is to stand there.

    <!-- theory <module> -->            the docstring of a module: rules and diagrams
    <!-- members <module>:<union> -->   the events or effects of a machine
    <!-- states <module>:<class> -->    the members of an enum, or the state classes of a module
    <!-- end -->
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import pkgutil
import re
import sys
import typing
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock import settings
from penstock.core import errors, reasons

sys.path.insert(0, str(Path(__file__).resolve().parent))
from generate_operating import cli_page, metrics_page  # beside this file, which is no package

DOCS = Path(__file__).resolve().parent
SOURCE = DOCS.parent / "src"
WRITTEN_BY = "<!-- Written by `make docs` from {source}; change that, not this. -->"
UNITS_MS = ((3_600_000, "h"), (60_000, "min"), (1_000, "s"))
UNITS_BYTES = ((1024 * 1024, "MiB"), (1024, "KiB"))


# --- settings --------------------------------------------------------------------------------------------------------


def settings_page() -> str:
    """The text of settings.md."""
    own = [k for k in vars(settings).values() if isinstance(k, type) and k.__module__ == settings.__name__]
    classes = [k for k in own if dataclasses.is_dataclass(k)]
    # The root comes first: from there each group can be followed.
    classes.sort(key=lambda kind: kind is not settings.JobSettings)
    enums = [k for k in own if issubclass(k, Enum)]
    lines = [
        "# Settings",
        "",
        WRITTEN_BY.format(source="src/penstock/settings.py"),
        "",
        _prose(settings.__doc__),
        "",
    ]
    for kind in classes:
        lines += [f"## {kind.__name__}", "", _prose(kind.__doc__), ""]
        fields = list(_field_rows(kind))
        if fields:
            lines += ["| setting | default | |", "|---|---|---|", *fields, ""]
    lines += ["## Choices", ""]
    for choice in enums:
        values = ", ".join(f"`{member.value}`" for member in choice)
        lines += [f"* **{choice.__name__}**: {_prose(choice.__doc__)} {values}"]
    return "\n".join(lines) + "\n"


def _field_rows(kind: type) -> Iterator[str]:
    texts = texts_below_fields(kind)
    for field in dataclasses.fields(kind):
        default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        if dataclasses.is_dataclass(default):
            group = type(default).__name__
            text = texts.get(field.name) or _prose(type(default).__doc__)
            yield f"| `{field.name}` | [{group}](#{group.lower()}) | {text}{_alternatives(kind, field.name, group)} |"
        elif field.name in texts:
            yield f"| `{field.name}` | {_default(field.name, default)} | {texts[field.name]} |"
        else:
            raise SystemExit(f"{kind.__name__}.{field.name} has no text below it; say what it does and what it costs")


def texts_below_fields(kind: type) -> dict[str, str]:
    """The string below each field of a class, or member of an enum, as one line."""
    (statement,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(statement, ast.ClassDef)
    texts: dict[str, str] = {}
    for above, below in zip(statement.body, statement.body[1:], strict=False):
        match above, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                texts[name] = _prose(text)
            case _:
                pass
    return texts


def _alternatives(kind: type, field: str, default: str) -> str:
    """If a field may be one of several groups: links to the others."""
    options = typing.get_args(typing.get_type_hints(kind)[field])
    others = [f"[{k.__name__}](#{k.__name__.lower()})" for k in options if k.__name__ != default]
    return f" Instead: {' or '.join(others)}." if others else ""


def _default(name: str, value: Any) -> str:
    """A default for people: with the unit that its name carries."""
    if isinstance(value, Enum):
        return f"`{value.value}`"
    if isinstance(value, bool) or not isinstance(value, int):
        return f"`{value!r}`" if isinstance(value, str) else f"`{value}`"
    units = UNITS_MS if name.endswith("_ms") else UNITS_BYTES if name.endswith("_bytes") else ()
    for size, unit in units:
        if value >= size and value % size == 0:
            return f"`{value:_}` ({value // size} {unit})"
    return f"`{value:_}`"


# --- errors ----------------------------------------------------------------------------------------------------------


def errors_page() -> str:
    """The text of errors.md."""
    heading, _, rest = inspect.cleandoc(errors.__doc__ or "").partition("\n")
    tree, _, closing = rest.strip("\n").rpartition("\n\n")
    lines = [
        "# Errors",
        "",
        WRITTEN_BY.format(source="src/penstock/core/errors.py and reasons.py"),
        "",
        f"{heading} {_prose(closing)}",
        "",
        "```",
        inspect.cleandoc(tree),
        "```",
        "",
        "| error | meaning | carries |",
        "|---|---|---|",
        *_error_rows(),
        "",
        "## Why a checkpoint failed",
        "",
        _prose((reasons.__doc__ or "").partition("\n")[2]),
        "",
        "| reason | in words | when it can occur | counts | preflight |",
        "|---|---|---|---|---|",
        *_reason_rows(),
    ]
    return "\n".join(lines) + "\n"


def _error_rows() -> Iterator[str]:
    for kind in vars(errors).values():
        if inspect.isclass(kind) and issubclass(kind, errors.StreamError):
            parameters = [p for p in inspect.signature(kind).parameters if p not in ("message", "problems")]
            carried = ", ".join(f"`{p}`" for p in (["problems"] if kind is errors.SettingsError else parameters))
            yield f"| `{kind.__name__}` | {_prose(kind.__doc__)} | {carried} |"


def _reason_rows() -> Iterator[str]:
    times = times_of(inspect.getsource(reasons.CheckpointFailure))
    for reason in reasons.CheckpointFailure:
        when = (
            times[reason.name] if _is_given(reason) else f"{times[reason.name]}; no part of the program gives it so far"
        )
        marks = ("yes" if reason.counts else "no", "yes" if reason.preflight else "no")
        yield f"| `{reason.name}` | {reason.text} | {when} | {marks[0]} | {marks[1]} |"


def times_of(source: str) -> dict[str, str]:
    """Under which comment the members of an enum stand: when each can occur."""
    times: dict[str, str] = {}
    group = ""
    for line in source.splitlines():
        if comment := re.match(r"    # (.+)\.$", line):
            group = comment[1][0].lower() + comment[1][1:]
        elif member := re.match(r"    ([A-Z_]+) = ", line):
            times[member[1]] = group
    return times


def _is_given(reason: reasons.CheckpointFailure) -> bool:
    """Whether any module speaks of a reason by its name."""
    name = re.compile(rf"\bCheckpointFailure\.{reason.name}\b")
    return any(name.search(text) for text in _sources())


@functools.cache
def _sources() -> tuple[str, ...]:
    return tuple(path.read_text("utf-8") for path in sorted((SOURCE / "penstock").rglob("*.py")))


# --- the protocol ----------------------------------------------------------------------------------------------------

BLOCK = re.compile(r"(<!-- (theory|members|states) (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def protocol_page() -> str:
    """The text of protocol.md: as it stands, with every block as the code has it."""
    return BLOCK.sub(_filled, (DOCS / "protocol.md").read_text(encoding="utf-8"))


def _filled(block: re.Match[str]) -> str:
    opening, kind, name, closing = block.groups()
    module_name, _, member = name.partition(":")
    module = importlib.import_module(module_name)
    lines = {"theory": _theory, "members": _members, "states": _states}[kind](module, member)
    return "\n".join([opening, *lines, "", closing])


def _theory(module: ModuleType, _: str) -> list[str]:
    """What a module says about itself, its first line aside; what is indented there is a picture."""
    _, _, text = (module.__doc__ or "").partition("\n")
    text = text.strip("\n").replace("Rules of this file", "Rules").replace("This file", "This module")
    lines: list[str] = []
    is_picture = False
    for line in text.splitlines():
        # A blank line belongs to what follows it: whether a picture goes on is known only there.
        begins_picture = line.startswith("    ")
        if line and begins_picture != is_picture:
            blanks = [lines.pop() for _ in range(bool(lines) and not lines[-1])]
            lines += ["```", *blanks] if is_picture else [*blanks, "```"]
            is_picture = begins_picture
        lines.append(line.removeprefix("    ") if is_picture else line)
    return [*lines, "```"] if is_picture else lines


def _members(module: ModuleType, name: str) -> list[str]:
    """The members of a union of events or effects."""
    rows = []
    for kind in typing.get_args(getattr(module, name)):
        fields = ", ".join(f"`{field}`" for field in kind.__struct_fields__)
        rows.append(f"| `{kind.__name__}` | {fields} | {_prose(kind.__doc__)} |")
    return ["| | carries | |", "|---|---|---|", *rows]


def _states(module: ModuleType, name: str) -> list[str]:
    """The members of an enum with the texts below them, or the public subclasses of a class in a module."""
    kind = getattr(module, name)
    if issubclass(kind, Enum):
        texts = texts_below_fields(kind)
        named = [(member.name, texts.get(member.name, "")) for member in kind]
    else:
        own = [k for k in vars(module).values() if inspect.isclass(k) and k.__module__ == module.__name__]
        named = [(k.__name__, _prose(k.__doc__)) for k in own if issubclass(k, kind) and not k.__name__.startswith("_")]
    return ["| state | |", "|---|---|", *(f"| `{state}` | {text} |" for state, text in named)]


# --- the interface ---------------------------------------------------------------------------------------------------

SECTION = re.compile(r"^(Args|Raises|Returns):$")


def api_page() -> str:
    """The text of api.md."""
    lines = [
        "# Interface",
        "",
        WRITTEN_BY.format(source="the docstrings of what is public"),
        "",
        "What a program may import. Everything else may change at any time. [Errors](errors.md) and",
        "[settings](settings.md) have pages of their own.",
    ]
    for name in _public_modules():
        module = importlib.import_module(name)
        lines += ["", f"## {name}", "", *_documented(module)]
        for public in sorted(getattr(module, "__all__", None) or _own_names(module)):
            lines += _member_lines(public, getattr(module, public))
    return "\n".join(lines) + "\n"


def _public_modules() -> list[str]:
    connectors = importlib.import_module("penstock.connectors")
    found = sorted(m.name for m in pkgutil.walk_packages(connectors.__path__, "penstock.connectors."))
    return ["penstock", "penstock.testing", *found]


def _own_names(module: ModuleType) -> list[str]:
    own = (name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__)
    return [name for name in own if not name.startswith("_")]


def _member_lines(name: str, value: Any) -> list[str]:
    if isinstance(value, ModuleType):
        return ["", f"### {name}", "", f"The module [{value.__name__}](#{value.__name__.replace('.', '')})."]
    if inspect.isclass(value):
        return _class_lines(name, value)
    if inspect.isfunction(value):
        return ["", f"### {name}", "", "```python", f"{name}{_signature(value)}", "```", "", *_documented(value)]
    return ["", f"### {name}", "", f"`{value!r}`" if isinstance(value, str | int) else "A type, for annotations."]


def _class_lines(name: str, kind: type) -> list[str]:
    lines = ["", f"### {name}", ""]
    if issubclass(kind, Enum):
        return [*lines, *_documented(kind), "", ", ".join(f"`{member.name}`" for member in kind)]
    if not issubclass(kind, BaseException) and kind.__init__ is not object.__init__:
        lines += ["```python", f"{name}{_signature(kind.__init__)}".removesuffix(" -> None"), "```", ""]
    lines += _documented(kind)
    bases = [base for base in kind.__mro__[1:] if base.__module__.startswith("penstock.")]
    public = importlib.import_module("penstock").__all__
    if named := [base.__name__ for base in bases if base.__name__ in public]:
        lines += ["", f"It has what {' and '.join(f'`{base}`' for base in named)} has, too."]
    members: dict[str, Any] = {}
    for owner in reversed([kind, *(base for base in bases if base.__name__ not in public)]):
        members |= {n: v for n, v in vars(owner).items() if not n.startswith("_")}
    for member in sorted(members):
        lines += _method_lines(f"{name}.{member}", member, members[member])
    return lines


def _method_lines(title: str, member: str, raw: Any) -> list[str]:
    if isinstance(raw, staticmethod | classmethod):
        raw = raw.__func__
    if isinstance(raw, property):
        return ["", f"#### {title}", "", *_documented(raw)]
    if inspect.isfunction(raw):
        return ["", f"#### {title}", "", "```python", f"{member}{_signature(raw)}", "```", "", *_documented(raw)]
    return []


def _documented(value: Any) -> list[str]:
    """A docstring as Markdown: arguments become a list, what is indented a picture."""
    lines: list[str] = []
    is_list = is_picture = False
    for line in inspect.cleandoc(value.__doc__ or "").splitlines():
        if heading := SECTION.match(line):
            is_list = True
            lines += [f"**{heading[1]}**", ""]
            continue
        is_list = is_list and (not line or line.startswith(" "))
        if is_list:
            entry = re.match(r"    (\w+): (.*)", line)
            lines.append(f"* `{entry[1]}`: {entry[2]}" if entry else f"  {line.strip()}".rstrip())
            continue
        # A blank line belongs to what follows it: whether a picture goes on is known only there.
        if line and line.startswith("    ") != is_picture:
            blanks = [lines.pop() for _ in range(bool(lines) and not lines[-1])]
            lines += ["```", *blanks] if is_picture else [*blanks, "```"]
            is_picture = not is_picture
        lines.append(line.removeprefix("    ") if is_picture else line)
    return [*lines, "```"] if is_picture else lines


def _signature(function: Any) -> str:
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    marks: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    parts: list[str] = []
    is_keyword = False
    for parameter in found.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not is_keyword:
            is_keyword = True
            parts.append("*")
        is_keyword = is_keyword or parameter.kind is inspect.Parameter.VAR_POSITIONAL
        text = f"{marks.get(parameter.kind, '')}{parameter.name}"
        if parameter.annotation is not inspect.Parameter.empty:
            text += f": {_annotation(parameter.annotation)}"
        if parameter.default is not inspect.Parameter.empty:
            text += f" = {_shown_default(parameter.default)}"
        parts.append(text)
    result = found.return_annotation
    return f"({', '.join(parts)})" + ("" if result is inspect.Signature.empty else f" -> {_annotation(result)}")


def _annotation(value: Any) -> str:
    return value if isinstance(value, str) else getattr(value, "__name__", str(value))


def _shown_default(value: Any) -> str:
    """A default that is the same in every process."""
    text = repr(value)
    return "..." if " at 0x" in text or text.startswith("<") else text


# --- both ------------------------------------------------------------------------------------------------------------


def _prose(text: str | None) -> str:
    """A docstring as one line that may stand in a table."""
    return " ".join((text or "").split()).replace("|", "\\|")


MAKERS: dict[str, Callable[[], str]] = {
    "reference/settings.md": settings_page,
    "reference/errors.md": errors_page,
    "reference/api.md": api_page,
    "reference/cli.md": cli_page,
    "reference/metrics.md": metrics_page,
    "protocol.md": protocol_page,
}


def stale_pages() -> list[str]:
    """Pages that are missing or say something else than the code."""
    return [name for name, make in MAKERS.items() if not _is_fresh(DOCS / name, make)]


def _is_fresh(page: Path, make: Callable[[], str]) -> bool:
    return page.exists() and page.read_text(encoding="utf-8") == make()


def main(arguments: list[str]) -> int:
    """Write the pages, or with `--check` only compare them."""
    if arguments == ["--check"]:
        stale = stale_pages()
        for name in stale:
            print(f"docs/{name} is stale: run `make docs`")
        return 1 if stale else 0
    if arguments:
        print("usage: python docs/generate.py [--check]")
        return 2
    (DOCS / "reference").mkdir(exist_ok=True)
    for name, make in MAKERS.items():
        (DOCS / name).write_text(make(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
