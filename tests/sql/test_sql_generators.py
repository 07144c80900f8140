"""Generators make the records that Spark makes: every select of the stored table, its columns and its rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.core.errors import UsageError
from penstock.testing import collect, run, scripted

TABLE = json.loads((Path(__file__).parent / "spark_generators.json").read_text(encoding="utf-8"))
MADE = [case for case in TABLE["cases"] if "rows" in case]
REFUSED = [case for case in TABLE["cases"] if "fails" in case]


def text_of(case):
    return ", ".join(case["select"])


def selected(select, **run_options):
    """The columns and rows of a select over the rows of the table."""
    columns: list[str] = []

    def program(env):
        rows = [{**row, "m": list((row["m"] or {}).items())} for row in TABLE["rows"]]
        made = select(env.read(scripted(rows, schema=TABLE["columns"])))
        columns.append(", ".join(f"{field.name} {field.type}" for field in made.schema))
        made.write(collect())

    rows = run(program, parallelism=1, **run_options)
    return columns[0], [list(row.values()) for row in rows]


@pytest.mark.parametrize("case", MADE, ids=text_of)
def test_columns_and_rows_are_those_of_spark(case):
    assert selected(lambda rows: rows.select(*case["select"])) == (case["columns"], case["rows"])


@pytest.mark.parametrize("case", REFUSED, ids=text_of)
def test_what_spark_refuses_is_refused_when_the_program_is_built(case):
    with pytest.raises(UsageError):
        selected(lambda rows: rows.select(*case["select"]))


def test_a_keyword_names_the_elements():
    columns, rows = selected(lambda rows: rows.select("id", word="explode(ss)"))
    assert columns == "id int64, word string"
    assert rows == [[1, "a"], [1, "b"], [4, None], [4, ""], [5, "x"]]


def test_with_columns_keeps_the_other_columns():
    columns, rows = selected(lambda rows: rows.select("id", "xs").with_columns(xs="explode(xs)"))
    assert columns == "id int64, xs int32"
    assert rows == [[1, 3], [1, None], [1, 1], [4, 7], [5, 2], [5, 2]]


def test_explode_puts_the_element_in_the_place_of_the_array():
    columns, rows = selected(lambda rows: rows.select("xs", "id").explode("xs", as_="x"))
    assert columns == "x int32, id int64"
    assert rows == [[3, 1], [None, 1], [1, 1], [7, 4], [2, 5], [2, 5]]
    columns, rows = selected(lambda rows: rows.select("id", "xs").explode("xs", outer=True))
    assert columns == "id int64, xs int32"
    assert rows == [[1, 3], [1, None], [1, 1], [2, None], [3, None], [4, 7], [5, 2], [5, 2]]


def test_records_are_made_once_whatever_dies():
    calm = selected(lambda rows: rows.select("id", word="explode(split(line, ' '))"))
    assert selected(lambda rows: rows.select("id", word="explode(split(line, ' '))"), crashes=3) == calm


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("select", "text"),
    [
        (lambda s: s.select(a="explode(xs)", b="explode(ss)"), "2 generators, for the columns 'a', 'b', and only one"),
        (lambda s: s.select(a="posexplode(xs)"), r"gives 2 columns, so 'a' cannot be its name"),
        (lambda s: s.select("posexplode(xs) AS a"), "gives 2 columns, the number and the element, and AS names 1"),
        (lambda s: s.select(a="explode(m)"), "map<string, int32.*> is no array"),
        (lambda s: s.select(a="explode(line)"), "string is no array"),
        (lambda s: s.select(a="explode(upper(line))"), r"'UPPER\(line\)'.* is string where an array is needed"),
        (lambda s: s.select(a="explode(xs) + 1"), "cannot be a part of another expression"),
        (lambda s: s.select("id", "explode(ss) AS id"), "2 columns named 'id'"),
        (lambda s: s.where("explode(xs)"), "makes several records of one record, and a condition cannot"),
        (lambda s: s.explode("words"), "words"),
        (lambda s: s.explode("line"), "column 'line' is of type string, which is no array"),
        (lambda s: s.explode("xs", as_="id"), "as_ is 'id'; give a name that no other column has"),
        (lambda s: s.select(a="explode(split(line, ''))"), "can match between two characters"),
        (lambda s: s.select(a="explode(split(line, ' *'))"), "can match between two characters"),
        (lambda s: s.select(a="explode(split(line, '^a'))"), "can match between two characters"),
        (lambda s: s.select(a=r"explode(split(line, r'\b'))"), "can match between two characters"),
        (lambda s: s.select(a="explode(split(line, '(?=a)'))"), "has a pattern that cannot be read"),
        (lambda s: s.select(a="explode(split(line, ss))"), "pattern of split"),
        (lambda s: s.select(a="explode(array())"), "has no elements"),
        (lambda s: s.select(a="explode(array(xs))"), "is not supported"),
    ],
)
def test_a_generator_that_cannot_be_is_refused_when_the_program_is_built(select, text):
    with pytest.raises(UsageError, match=text):
        selected(select)


def test_brackets_hide_what_would_match_between_characters():
    _, rows = selected(lambda rows: rows.where("id = 4").select(w="explode(split(line, '[^a-z$]'))"))
    assert rows == [["a"], ["b"], ["c"]]
