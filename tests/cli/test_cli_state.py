"""`penstock state`: what it says, how it ends, and what it writes."""

from __future__ import annotations

import json
import shutil

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from golden_content import KEYS, Every, expected
from golden_snapshots import CHECKPOINT_FOLDER, JOB_FOLDER, SAVEPOINT
from state_rig import GROUPS
from table_rows import TableRows

from penstock.cli import main
from penstock.core.ids import Instant, OperatorId
from penstock.savepoints.catalog import SnapshotData
from penstock.savepoints.rows import GivenState
from penstock.savepoints.writing import Draft


def run(*arguments, code=0):
    result = CliRunner().invoke(main, ["state", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def answer(*arguments, code=0):
    return json.loads(run(*arguments, "--json", code=code).stdout)


@pytest.mark.parametrize("path", [SAVEPOINT, CHECKPOINT_FOLDER, JOB_FOLDER])
def test_list_shows_operators_and_states(path):
    text = run("list", path).output
    for part in ("every", "process", "windows", "by thing", "map<string, double>", "ttl 7200000 ms", "split-list"):
        assert part in text
    assert ("in flight on edge 0 (source to every, hash): 2 batches" in text) == (path != SAVEPOINT)


def test_list_as_json():
    found = answer("list", SAVEPOINT)
    assert (found["kind"], found["job"], found["checkpoint"], found["in_flight"]) == ("savepoint", "job-1", 7, [])
    assert [operator["id"] for operator in found["operators"]] == ["every", "pairs", "windows", "lists", "source"]
    every = found["operators"][0]
    assert (every["parallelism"], every["max_parallelism"], every["problem"]) == (2, GROUPS, None)
    assert {state["name"] for state in every["states"]} >= {"big", "scores", "timers"}


def test_list_goes_on_when_the_files_of_one_operator_cannot_be_read(tmp_path):
    shutil.copytree(SAVEPOINT, tmp_path / "it")
    (tmp_path / "it" / "pairs-0-0").write_bytes(b"gone")
    assert "states of pairs: state file" in run("list", tmp_path / "it").output
    found = {o["id"]: o for o in answer("list", tmp_path / "it")["operators"]}
    assert found["pairs"]["problem"]
    assert found["every"]["states"]


def test_show_prints_rows_up_to_a_limit():
    text = run("show", SAVEPOINT, "every", "text", "--limit", 3).output
    assert text.count("schlüssel") == 3
    assert f"the first 3 of {len(KEYS)} rows" in text


def test_show_without_a_state_shows_all():
    found = answer("show", SAVEPOINT, "every", "--limit", 1)
    assert len(found["states"]) == 24
    assert all(len(state["rows"]) == 1 for state in found["states"])


def test_show_one_key():
    found = answer("show", SAVEPOINT, "every", "events", "--key", "3")
    assert [row["value"] for row in found["states"][0]["rows"]] == expected(3)["events"]
    assert answer("show", SAVEPOINT, "every", "events", "--key", "k=4711")["states"][0]["rows"] == []
    pair = answer("show", SAVEPOINT, "pairs", "--key", "name=b", "--key", "at=2026-03-29T01:59:59.123456Z")
    assert [row["value"] for row in pair["states"][0]["rows"]] == [1]


@pytest.mark.parametrize("keys", [["--key", "x"], ["--key", "k=x"], ["--key", "1", "--key", "2"], ["--key", "q=1"]])
def test_show_refuses_what_is_no_key(keys):
    result = run("show", SAVEPOINT, "every", "big", *keys, code=2)
    assert result.stderr.startswith("penstock: ")
    assert len(result.stderr.splitlines()) == 1


def test_objects_are_not_unpickled_unless_that_is_asked_for():
    (state,) = answer("show", SAVEPOINT, "every", "by thing", "--key", "3")["states"]
    assert "frozenset" not in str(state["rows"])
    (state,) = answer("show", SAVEPOINT, "every", "by thing", "--key", "3", "--unpickle")["states"]
    assert {row["map_key"]: row["value"] for row in state["rows"]} == {"(1, 'x')": "[3]", "'y'": "None"}
    (lists,) = answer("show", SAVEPOINT, "lists", "split", "--unpickle")["states"]
    assert [row["value"] for row in lists["rows"]] == ["'a'", "'b'", "'c'"]


def test_diff_of_the_same_ends_with_0():
    assert "the same: 30 states compared" in run("diff", SAVEPOINT, CHECKPOINT_FOLDER).output
    assert answer("diff", SAVEPOINT, SAVEPOINT, "every", "big")["same"] is True


def test_diff_shows_what_differs_and_ends_with_1(tmp_path):
    made = Draft(base=SnapshotData(SAVEPOINT), max_parallelism=GROUPS, parallelism=2).without(OperatorId("pairs"))
    made.write(tmp_path / "new", now=Instant(0))
    text = run("diff", SAVEPOINT, tmp_path / "new", "--limit", 1, code=1).output
    assert "pairs count (value): 0 added, 4 removed, 0 changed, 0 the same" in text
    assert "  - name=" in text
    assert "and 3 more" in text
    found = answer("diff", SAVEPOINT, tmp_path / "new", code=1)
    (state,) = [state for state in found["states"] if state["differs"]]
    assert (state["removed"], len(state["first"])) == (4, 4)


def test_export_writes_parquet_csv_and_json(tmp_path):
    for suffix in ("parquet", "csv", "json"):
        out = tmp_path / f"out.{suffix}"
        assert answer("export", SAVEPOINT, "every", "tags", out) == {"out": str(out), "rows": len(KEYS)}
    table = pq.read_table(tmp_path / "out.parquet")
    assert {row["k"]: row["value"] for row in table.to_pylist()} == {key: expected(key)["tags"] for key in KEYS}
    lines = [json.loads(line) for line in (tmp_path / "out.json").read_text().splitlines()]
    assert {row["k"]: row["value"] for row in lines} == {key: expected(key)["tags"] for key in KEYS}
    assert arrow_csv.read_csv(tmp_path / "out.csv").num_rows == len(KEYS)


def test_export_writes_over_nothing_and_leaves_nothing_half_done(tmp_path):
    out = tmp_path / "out.parquet"
    run("export", SAVEPOINT, "every", "nothing", out, code=2)
    assert not out.exists()
    out.write_text("mine")
    assert "exists already" in run("export", SAVEPOINT, "every", "big", out, code=2).stderr
    assert out.read_text() == "mine"
    assert "does not show its format" in run("export", SAVEPOINT, "every", "big", tmp_path / "o", code=2).stderr
    shutil.copytree(SAVEPOINT, tmp_path / "it")
    run("export", tmp_path / "it", "lists", "split", tmp_path / "split.csv")
    assert (tmp_path / "split.csv").read_text().count("\n") == 4


@pytest.mark.parametrize(
    "arguments", [("list", "nowhere"), ("show", SAVEPOINT, "nobody"), ("diff", SAVEPOINT, "nowhere")]
)
def test_what_is_not_there_is_one_line_and_2(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*arguments, code=2)
    assert result.stderr.startswith("penstock: ")
    assert len(result.stderr.splitlines()) == 1


def test_show_and_export_have_a_text_for_a_time_that_python_does_not_have(tmp_path):
    schema = pa.schema([pa.field("k", pa.int64()), pa.field("value", pa.timestamp("us", "UTC"))])
    keys = pa.schema([schema.field(0)])
    rows = pa.table([pa.array([7]), pa.array([253_402_300_800_000_000]).cast(schema.field(1).type)], schema=schema)
    given = GivenState(spec=Every.moment.spec, keys=keys, rows=TableRows(rows, keys, GROUPS))
    draft = Draft(base=SnapshotData(SAVEPOINT), max_parallelism=GROUPS, parallelism=2)
    draft.with_keyed(OperatorId("every"), given).write(tmp_path / "new", now=Instant(0))
    assert "+10000-01-01 00:00:00" in run("show", tmp_path / "new", "every", "moment").output
    run("export", tmp_path / "new", "every", "moment", tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text())["value"] == "+10000-01-01 00:00:00"
