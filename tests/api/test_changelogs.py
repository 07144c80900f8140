"""Changelogs: what a program may do with changes of rows, and the table that they make."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.changelog import DELETE, INSERT, ROW_KINDS, UPDATE_AFTER, UPDATE_BEFORE, Changelog
from penstock.api.program import Program
from penstock.api.streams.data_stream import Stream
from penstock.api.table_of_changes import table_of_changes
from penstock.core.errors import UsageError
from penstock.testing import run

SCHEMA = "word string, n bigint, row_kind string"
CHANGES = [
    ("to", 1, INSERT),
    ("be", 1, INSERT),
    ("to", 1, UPDATE_BEFORE),
    ("to", 2, UPDATE_AFTER),
    ("or", 1, INSERT),
    ("be", 1, DELETE),
    ("to", 2, UPDATE_BEFORE),
    ("to", 3, UPDATE_AFTER),
]


def changelog(env, rows=CHANGES, *, keys=("word",), has_before=True):
    """A stream of changes that were made by hand."""
    stream = env.from_iterable(rows, schema=SCHEMA).global_()
    return Stream(replace(stream._state, changelog=Changelog(keys=keys, has_before=has_before)))


def collected(steps, rows=CHANGES, **how):
    """The sink behind `steps` of a changelog."""
    sink = ps.collect()
    run(lambda env: steps(changelog(env, rows, **how)).write(sink), parallelism=1)
    return sink


def changes_of(sink):
    return [tuple(row.values()) for row in sink.changes]


# --- the table of changes --------------------------------------------------------------------------------------------


def test_collect_has_the_rows_after_all_changes_and_the_changes_too():
    sink = collected(lambda stream: stream)
    assert sink.rows == [{"word": "to", "n": 3}, {"word": "or", "n": 1}]
    assert changes_of(sink) == CHANGES
    assert len(sink) == 2


@pytest.mark.parametrize("keys", [("word",), None])
def test_a_table_can_be_made_by_key_or_by_whole_rows(keys):
    changes = pa.table(dict(zip(("word", "n", "row_kind"), map(list, zip(*CHANGES, strict=True)), strict=True)))
    table = table_of_changes(changes, Changelog(keys=keys))
    assert sorted(table.to_pylist(), key=str) == [{"word": "or", "n": 1}, {"word": "to", "n": 3}]


@pytest.mark.parametrize("values", [[1, 1, None], [[1], [1], None], [float("nan"), float("nan"), None]])
def test_equal_rows_of_a_table_without_keys_are_counted(values):
    kinds = [INSERT, INSERT, INSERT]
    table = pa.table({"v": values, "row_kind": kinds})
    assert table_of_changes(table, Changelog(keys=None)).num_rows == 3
    taken = pa.table({"v": [*values, values[0], values[2]], "row_kind": [*kinds, DELETE, UPDATE_BEFORE]})
    assert repr(table_of_changes(taken, Changelog(keys=None)).column("v").to_pylist()) == repr(values[:1])


def test_a_table_of_at_most_one_row_has_the_newest_row():
    changes = pa.table({"n": [1, 1, 2], "row_kind": [INSERT, UPDATE_BEFORE, UPDATE_AFTER]})
    assert table_of_changes(changes, Changelog(keys=())).to_pylist() == [{"n": 2}]
    assert table_of_changes(changes.slice(0, 2), Changelog(keys=())).to_pylist() == []
    assert table_of_changes(changes.slice(0, 0), Changelog(keys=())).to_pylist() == []


def test_looking_at_a_changelog_shows_rows_and_changes_show_changes(capsys):
    found = {}

    def program(env):
        stream = changelog(env)
        found["collect"] = stream.collect()
        found["take"] = stream.take(1)
        found["changes"] = stream.changes().collect()
        stream.show()
        stream.print()

    run(program, parallelism=1)
    assert found["collect"] == [{"word": "to", "n": 3}, {"word": "or", "n": 1}]
    assert found["take"] == [{"word": "to", "n": 3}]
    assert [row["row_kind"] for row in found["changes"]] == [kind for _, _, kind in CHANGES]
    shown = capsys.readouterr().out
    assert "{word: to, n: 2, row_kind: update_before}" in shown
    assert "|  to|  3|" in shown


# --- steps that take changes -----------------------------------------------------------------------------------------


def test_an_update_of_which_one_half_meets_the_condition_becomes_an_insert_or_a_delete():
    rows = [
        ("a", 1, INSERT),
        ("a", 1, UPDATE_BEFORE),
        ("a", 5, UPDATE_AFTER),
        ("a", 5, UPDATE_BEFORE),
        ("a", 6, UPDATE_AFTER),
        ("a", 6, UPDATE_BEFORE),
        ("a", 2, UPDATE_AFTER),
        ("b", 9, INSERT),
        ("b", 9, DELETE),
    ]
    sink = collected(lambda stream: stream.where("n > 3"), rows)
    assert changes_of(sink) == [
        ("a", 5, INSERT),
        ("a", 5, UPDATE_BEFORE),
        ("a", 6, UPDATE_AFTER),
        ("a", 6, DELETE),
        ("b", 9, INSERT),
        ("b", 9, DELETE),
    ]
    assert sink.rows == []


def test_columns_are_computed_of_the_rows_before_and_after_alike():
    sink = collected(lambda stream: stream.select(w="upper(word)", twice="n * 2"))
    assert sorted(row["w"] for row in sink.rows) == ["OR", "TO"]
    assert changes_of(sink) == [(word.upper(), 2 * n, kind) for word, n, kind in CHANGES]


@pytest.mark.parametrize(
    ("steps", "keys", "names"),
    [
        (lambda s: s.select("n", "word"), ("word",), ["n", "word"]),
        (lambda s: s.select("n", w="word"), ("w",), ["n", "w"]),
        (lambda s: s.select("n"), None, ["n"]),
        (lambda s: s.select("n", word="upper(word)"), None, ["n", "word"]),
        (lambda s: s.with_columns(m="n + 1"), ("word",), ["word", "n", "m"]),
        (lambda s: s.with_columns(word="word"), ("word",), ["word", "n"]),
        (lambda s: s.with_columns(word="'x'"), None, ["word", "n"]),
        (lambda s: s.drop("n"), ("word",), ["word"]),
        (lambda s: s.drop("word"), None, ["n"]),
        (lambda s: s.rename({"word": "w"}), ("w",), ["w", "n"]),
        (lambda s: s.where("n > 1"), ("word",), ["word", "n"]),
        (lambda s: s.union(s.where("n > 1")), None, ["word", "n"]),
        (lambda s: s.global_(), ("word",), ["word", "n"]),
    ],
)
def test_the_kind_of_a_change_stays_the_last_column_and_keys_are_followed(steps, keys, names):
    env = Program()
    found = steps(changelog(env))
    assert found._state.changelog == Changelog(keys=keys)
    assert found.schema.names == [*names, "row_kind"]


def test_rows_without_their_keys_are_still_taken_away():
    assert collected(lambda stream: stream.select("n")).rows == [{"n": 1}, {"n": 3}]


def test_rows_of_several_changelogs_are_one_table():
    rows = collected(lambda stream: stream.union(stream.where("n > 2"))).rows
    assert sorted(row["n"] for row in rows) == [1, 3, 3]


def test_upserts_leave_out_rows_as_they_were():
    sink = collected(lambda stream: stream.upserts())
    assert changes_of(sink) == [change for change in CHANGES if change[2] != UPDATE_BEFORE]
    assert sink.rows == [{"word": "to", "n": 3}, {"word": "or", "n": 1}]


def test_changes_are_plain_records():
    sink = collected(lambda stream: stream.changes().where("row_kind = 'insert'").map(dict, schema=SCHEMA))
    assert [row["word"] for row in sink.rows] == ["to", "be", "or"]
    assert ROW_KINDS == ("insert", "update_before", "update_after", "delete")


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step",
    [
        lambda s: s.map(dict, schema=SCHEMA),
        lambda s: s.flat_map(lambda row: [row], schema=SCHEMA),
        lambda s: s.map_batches(lambda batch: batch),
        lambda s: s.filter(lambda row: True),
        lambda s: s.sample(0.5),
        lambda s: s.limit(3),
        lambda s: s.distinct("word"),
        lambda s: s.split(a="n > 1"),
        lambda s: s.rebalance(),
        lambda s: s.repartition("n"),
        lambda s: s.broadcast(),
        lambda s: s.partition(lambda batch, subtasks: [0] * batch.num_rows),
        lambda s: s.select("n", w="explode(array(word))"),
        lambda s: s.with_columns(w="explode(array(word))"),
        lambda s: s.key_by("word").reduce(lambda a, b: b),
        lambda s: s.key_by("word").window(ps.tumbling("1s")),
        lambda s: s.window(ps.tumbling("1s")),
        lambda s: s.write(ps.json("out")),
        lambda s: s.write(ps.csv("out")),
        lambda s: s.write(ps.parquet("out")),
    ],
)
def test_a_step_that_takes_no_changes_is_refused_with_a_way_out(step):
    env = Program()
    with pytest.raises(UsageError) as refused:
        step(changelog(env))
    assert ".changes()" in str(refused.value)
    assert "a changelog by word" in str(refused.value)


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (lambda s: s.drop("row_kind"), "stays with them by itself"),
        (lambda s: s.key_by("row_kind"), "stays with them by itself"),
        (lambda s: s.with_columns(row_kind="'x'"), "of their own"),
        (lambda s: s.rename({"n": "row_kind"}), "of their own"),
        (lambda s: s.union(s.changes()), "not both"),
        (lambda s: s.select("n").upserts(), "the columns that identify a row"),
        (lambda s: s.upserts().select("n"), "which row an update replaces"),
        (lambda s: s.upserts().where("n > 1"), "upserts\\(\\) has left that out"),
        (lambda s: s.upserts().union(s), "upserts\\(\\) has left that out"),
        (lambda s: s.changes().upserts(), "upserts is for changelogs"),
        (lambda s: s.changes().changes(), "changes is for changelogs"),
    ],
)
def test_what_would_make_wrong_tables_is_refused(step, told):
    env = Program()
    with pytest.raises(UsageError, match=told):
        step(changelog(env))


def test_changes_of_a_kind_that_does_not_exist_fail_the_job():
    with pytest.raises(Exception, match="'gone' is no kind of a change"):
        collected(lambda stream: stream.where("n > 1"), [("a", 1, "gone"), ("b", 2, INSERT)])
