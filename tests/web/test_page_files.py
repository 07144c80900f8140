"""The files of the page: nothing is asked of another server, what comes from others is listed, all of it is small."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from web_rig import Rig

import penstock.web

PAGE = Path(penstock.web.__file__).parent / "page"
VENDOR = PAGE / "vendor"
LISTED = json.loads((VENDOR / "vendored.json").read_text())["parts"]
MOST_COMPRESSED_BYTES = 300_000
OWN = sorted(file for file in PAGE.rglob("*.*") if VENDOR not in file.parents)
MODULES = [file for file in OWN if file.suffix == ".js"]
# A name for a kind of drawing, which no browser asks for.
NAMESPACE = "http://www.w3.org/2000/svg"


def digest(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


# --- what comes from others ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", LISTED, ids=lambda part: part["file"])
def test_a_file_of_others_is_as_it_was_published(part):
    assert digest(VENDOR / part["file"]) == part["sha256"]
    assert digest(VENDOR / part["licence_file"]) == part["licence_sha256"]
    assert part["version"]


@pytest.mark.parametrize("part", LISTED, ids=lambda part: part["file"])
def test_the_licence_of_a_file_of_others_is_beside_it(part):
    words = {"MIT": "The MIT License", "Apache-2.0": "Apache License"}[part["licence"]]
    assert words in (VENDOR / part["licence_file"]).read_text()


def test_every_file_of_others_is_listed():
    listed = {part[name] for part in LISTED for name in ("file", "licence_file")}
    assert {file.name for file in VENDOR.iterdir()} == {*listed, "vendored.json"}


# --- what the browser is given ---------------------------------------------------------------------------------------


def test_the_page_is_small():
    sizes = {file.name: len(gzip.compress(file.read_bytes(), mtime=0)) for file in PAGE.rglob("*.*") if file.is_file()}
    assert sum(sizes.values()) < MOST_COMPRESSED_BYTES, sizes


@pytest.mark.parametrize("file", OWN, ids=lambda file: file.name)
def test_a_file_of_the_page_names_no_other_server(file):
    assert re.findall(r"(?:https?|wss?):?//[^\s\"'`]+", file.read_text().replace(NAMESPACE, "")) == []


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.name)
def test_a_module_imports_files_that_are_there(file):
    imported = re.findall(r"""^import\b[^";]*"([^"]+)";""", file.read_text(), re.MULTILINE)
    assert [name for name in imported if not name.startswith(".") or not (file.parent / name).is_file()] == []


def test_every_module_is_imported():
    imported = {
        (file.parent / name).resolve()
        for file in MODULES
        for name in re.findall(r"""^import\b[^";]*"([^"]+)";""", file.read_text(), re.MULTILINE)
    }
    assert [file.name for file in MODULES if file.resolve() not in imported] == ["main.js"]


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.name)
def test_no_text_becomes_markup_or_code(file):
    dangerous = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|dangerouslySet|javascript:"
    )
    assert re.findall(dangerous, file.read_text()) == []


class Markup(HTMLParser):
    """What would need an exception from the rule that everything comes from this server."""

    def __init__(self):
        super().__init__()
        self.inline = []
        self.files = []
        self._is_code = False

    def handle_starttag(self, tag, attrs):
        known = dict(attrs)
        self.inline += [name for name in known if name == "style" or name.startswith("on")]
        self.files += [known[name] for name in ("src", "href") if name in known]
        self._is_code = tag in ("script", "style")

    def handle_data(self, data):
        if self._is_code and data.strip():
            self.inline.append(data)

    def handle_endtag(self, tag):
        self._is_code = False


def test_the_markup_has_no_code_and_names_files_of_this_server():
    markup = Markup()
    markup.feed((PAGE / "index.html").read_text())
    assert markup.inline == []
    assert markup.files
    assert [name for name in markup.files if not (PAGE / name).is_file()] == []


@pytest.mark.parametrize(
    "text", ['<p style="x">', "<script>alert(1)</script>", '<p onclick="x">', "<style>p{}</style>"], ids=str
)
def test_code_in_markup_is_caught(text):
    markup = Markup()
    markup.feed(text)
    assert markup.inline != []


# --- what the server does with them ----------------------------------------------------------------------------------


@pytest.fixture
def rig():
    made = Rig()
    yield made
    made.close()


@pytest.mark.parametrize(
    "file", [file for file in PAGE.rglob("*.*") if file.is_file()], ids=lambda file: file.relative_to(PAGE).as_posix()
)
def test_every_file_is_served_with_its_type(rig, file):
    answer = rig.ask("GET", f"/{file.relative_to(PAGE).as_posix()}")
    assert answer.status_code == 200
    assert answer.content == file.read_bytes()
    kinds = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
    assert answer.headers["content-type"].startswith(kinds.get(file.suffix, ""))
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    assert answer.headers["x-content-type-options"] == "nosniff"
