"""Rows as Spark shows them."""

from __future__ import annotations

import doctest
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

import penstock as ps
from penstock.api import showing
from penstock.api.showing import as_shown, as_text
from penstock.api.streams import looking
from penstock.testing import run, scripted


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        (True, "true"),
        (1.5, "1.5"),
        (Decimal("1.50"), "1.50"),
        (date(2026, 1, 1), "2026-01-01"),
        (datetime(2026, 1, 1, 12, 30, tzinfo=UTC), "2026-01-01 12:30:00"),
        (datetime(2026, 1, 1, 12, 30, 0, 5), "2026-01-01 12:30:00.000005"),  # noqa: DTZ001  # of no zone
        (b"\x00\xff", "[00 FF]"),
        ([1, None], "[1, NULL]"),
        ({"a": 1, "b": "x"}, "{1, x}"),
        ([("k", 1), ("l", None)], "{k -> 1, l -> NULL}"),
        ("a\nb", "a\\nb"),
    ],
)
def test_a_value_is_shown_as_spark_shows_it(value, text):
    assert as_text(value) == text


def test_long_values_are_cut_and_without_cutting_values_are_on_the_left():
    table = pa.table({"text": ["x" * 30, "y"]})
    assert as_shown(table, truncate=6, more=False).splitlines()[3:5] == ["|xxx...|", "|     y|"]
    assert as_shown(table, truncate=None, more=False).splitlines()[4] == f"|y{' ' * 29}|"


def test_a_table_without_rows_has_its_columns():
    assert as_shown(pa.table({"n": pa.array([], pa.int64())}), truncate=20, more=False) == (
        "+---+\n|  n|\n+---+\n+---+\n"
    )


@pytest.mark.parametrize("module", [showing, looking])
def test_the_examples_are_true(module):
    assert doctest.testmod(module).failed == 0


# --- in the testing kit ----------------------------------------------------------------------------------------------


def looked_at(ask, **options):
    """What `ask` makes of a stream of the kit."""
    found = []

    def program(env):
        stream = env.read(scripted([{"n": n} for n in range(30)], schema="n bigint", **options)).where("n >= 10")
        found.append(ask(stream))
        stream.write(ps.collect())

    rows = run(program)
    assert len(rows) == 20
    return found[0]


def test_streams_of_the_kit_can_be_collected_in_every_shape():
    assert sorted(row["n"] for row in looked_at(lambda s: s.collect())) == list(range(10, 30))
    assert looked_at(lambda s: s.collect("arrow")).num_rows == 20
    assert looked_at(lambda s: s.collect("polars")).height == 20
    assert len(looked_at(lambda s: s.collect("pandas"))) == 20
    with pytest.raises(ps.UsageError, match="no Spark here"):
        looked_at(lambda s: s.collect("spark"))


def test_streams_of_the_kit_can_be_looked_at(capsys):
    assert len(looked_at(lambda s: s.take(3))) == 3
    assert len(looked_at(lambda s: s.take(50, timeout="1s"), end=False)) == 20
    looked_at(lambda s: s.show(1))
    assert "only showing top 1 row" in capsys.readouterr().out


def test_too_many_rows_to_collect_are_told():
    with pytest.raises(ps.JobFailed, match="at most 5 rows"):
        looked_at(lambda s: s.collect(limit=5))
