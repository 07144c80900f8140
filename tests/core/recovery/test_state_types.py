"""State of another type than the program declares is refused before anything starts, as far as the snapshot says."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from snapshot_rig import graph_of, operator, snapshot_of, vertex

from penstock.core.errors import UsageError
from penstock.core.graph import CheckpointGraph, DeclaredState, OperatorLabel
from penstock.core.ids import OperatorId
from penstock.core.messages import OperatorState, StateFile
from penstock.core.recovery.assign import assign
from penstock.core.recovery.metadata import CheckpointMetadata, MatchingRules
from penstock.core.recovery.restore_plan import plan_restore

COUNT = OperatorId("count")


def value(kind: str, **more: str) -> dict[str, DeclaredState]:
    return {"seen": DeclaredState(kind="value", type=kind, **more)}


def snapshot(states: dict[str, DeclaredState], *, keys: tuple[str, ...] = (), **state: Any) -> CheckpointMetadata:
    keyed = StateFile(path=None, size=1, checksum=0, inline=b"x")
    saved = OperatorState(operator=COUNT, **({"keyed": (keyed,), "key_groups": (0, 127)} | state))
    label = OperatorLabel(name="count", kind="keyedprocess", states=states, keys=keys)
    return snapshot_of(operator("count", parallelism=1, subtasks={0: saved}, label=label))


def program(states: dict[str, DeclaredState], *, keys: tuple[str, ...] = ()) -> CheckpointGraph:
    label = OperatorLabel(name="count", kind="keyedprocess", states=states, keys=keys)
    return graph_of(msgspec.structs.replace(vertex("count", parallelism=1), labels={COUNT: label}))


def test_a_state_of_another_type_is_refused_with_both_types_before_anything_starts():
    with pytest.raises(UsageError) as caught:
        plan_restore(snapshot(value("int64")), program(value("string")))
    text = str(caught.value)
    assert "state 'seen' of count (keyedprocess) was value<int64>, the program declares value<string>" in text
    assert "another name" in text


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (value("int64"), value("int64")),
        (value("int32"), value("int64")),
        (value("float"), value("double")),
        (value("int64"), {"other": DeclaredState(kind="list", type="string")}),
        ({}, value("string")),
    ],
    ids=["same", "wider whole number", "wider number", "another name", "a snapshot that says nothing"],
)
def test_a_state_that_fits_goes_on(was: dict[str, DeclaredState], now: dict[str, DeclaredState]):
    assert assign(snapshot(was), program(now)).matched.restored == (COUNT,)


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (value("int64"), value("int32")),
        (value("int32"), value("double")),
        (value("int64"), {"seen": DeclaredState(kind="list", type="int64")}),
        (
            {"seen": DeclaredState(kind="map", type="int64", map_key="string")},
            {"seen": DeclaredState(kind="map", type="int64", map_key="int64")},
        ),
    ],
    ids=["narrower", "another kind of number", "another kind", "another key of a map"],
)
def test_a_state_that_does_not_fit_is_refused(was: dict[str, DeclaredState], now: dict[str, DeclaredState]):
    with pytest.raises(UsageError, match="does not fit the program: state 'seen' of count"):
        assign(snapshot(was), program(now))


def test_keys_of_another_type_are_refused_and_another_name_of_their_column_is_not():
    known = snapshot({}, keys=("user: string", "day: int64"))
    assert assign(known, program({}, keys=("name: string", "day: int64"))).matched.restored == (COUNT,)
    with pytest.raises(UsageError, match="is keyed by user: string, day: int64, the program has user: int64"):
        assign(known, program({}, keys=("user: int64",)))


def test_a_declared_state_of_which_nothing_was_saved_may_change():
    empty = snapshot(value("int64"), keys=("user: string",), keyed=(), split_lists={"other": (b"x",)})
    assert assign(empty, program(value("string"), keys=("user: int64",))).matched.restored == (COUNT,)


@pytest.mark.parametrize(
    ("saved", "kind"),
    [
        ({"split_lists": {"seen": (b"x",)}}, "split-list"),
        ({"union_lists": {"seen": (b"x",)}}, "union-list"),
        ({"broadcast": {"seen": b"x"}}, "broadcast"),
    ],
)
def test_state_of_a_subtask_keeps_its_kind_and_may_have_another_type(saved: dict[str, Any], kind: str):
    known = snapshot({}, keyed=(), **saved)
    same = {"seen": DeclaredState(kind=kind, type="string")}
    assert assign(known, program(same)).matched.restored == (COUNT,)
    with pytest.raises(UsageError, match=f"was {kind}, the program declares value<int64>"):
        assign(known, program(value("int64")))


@pytest.mark.parametrize("kind", ["split-list", "union-list"])
def test_a_list_does_not_become_raw_nor_a_raw_list_an_object(kind: str):
    saved: dict[str, Any] = {
        "split_lists" if kind == "split-list" else "union_lists": {"held": (b"part",)},
        "keyed": (),
    }
    raw, pickled = ({"held": DeclaredState(kind=kind, type=text)} for text in ("raw", "object"))
    with pytest.raises(UsageError, match=f"'held' .* was {kind}<raw>, the program declares {kind}<object>"):
        assign(snapshot(raw, **saved), program(pickled))
    with pytest.raises(UsageError, match=f"'held' .* was {kind}<object>, the program declares {kind}<raw>"):
        assign(snapshot(pickled, **saved), program(raw))
    for was in (raw, {}):
        assert assign(snapshot(was, **saved), program(raw)).matched.restored == (COUNT,)


def test_raw_keyed_state_does_not_become_another_one():
    raw = {"seen": DeclaredState(kind="raw-keyed", type="raw")}
    file = StateFile(path=None, size=1, checksum=0, inline=b"x")
    with pytest.raises(UsageError, match="was raw-keyed<raw>, the program declares value<int64>"):
        assign(snapshot(raw, keyed=(), raw=(file,)), program(value("int64")))
    assert assign(snapshot(raw, keyed=(), raw=(file,)), program(raw)).matched.restored == (COUNT,)


def test_all_that_does_not_fit_is_named_at_once():
    was = value("int64") | {"last": DeclaredState(kind="list", type="string")}
    now = value("string") | {"last": DeclaredState(kind="list", type="int64")}
    with pytest.raises(UsageError, match=r"state 'seen' .*; state 'last' "):
        assign(snapshot(was), program(now))


def test_what_is_dropped_need_not_fit():
    rules = MatchingRules(drop=("count",))
    assert assign(snapshot(value("int64")), program(value("string")), rules).matched.dropped == (COUNT,)


def read_by(connector: str) -> OperatorLabel:
    return OperatorLabel(name="count", kind="read", connector=connector)


def snapshot_read_by(connector: str, *, coordinator: bytes | None = None, **state: Any) -> CheckpointMetadata:
    saved = OperatorState(operator=COUNT, **state)
    found = snapshot_of(operator("count", parallelism=1, subtasks={0: saved}, label=read_by(connector)))
    return found if coordinator is None else msgspec.structs.replace(found, coordinators={COUNT: coordinator})


def program_read_by(connector: str) -> CheckpointGraph:
    of_count = msgspec.structs.replace(vertex("count", parallelism=1), labels={COUNT: read_by(connector)})
    return graph_of(msgspec.structs.replace(of_count, coordinators=(COUNT,)))


@pytest.mark.parametrize("saved", [{"split_lists": {"splits": (b"x",)}}, {"coordinator": b"x"}])
def test_the_splits_of_another_source_are_refused_before_anything_starts(saved: dict[str, Any]):
    with pytest.raises(UsageError) as caught:
        plan_restore(snapshot_read_by("files", **saved), program_read_by("generated rows"))
    assert "count (read) has the state of files, and in the program it is generated rows" in str(caught.value)
    assert "source or sink have changed" in str(caught.value)


@pytest.mark.parametrize(("was", "now"), [("files", "files"), ("", "files"), ("files", "")])
def test_a_source_that_is_the_same_or_not_known_goes_on(was: str, now: str):
    found = snapshot_read_by(was, split_lists={"splits": (b"x",)})
    assert assign(found, program_read_by(now)).matched.restored == (COUNT,)


def test_a_source_without_state_may_become_another_source():
    assert assign(snapshot_read_by("files"), program_read_by("generated rows")).matched.restored == (COUNT,)


def rows(columns: str) -> dict[str, DeclaredState]:
    return {"penstock.requests": DeclaredState(kind="rows", type=columns)}


NO_KEYS: dict[str, Any] = {"keyed": (), "key_groups": None}


@pytest.mark.parametrize("lists", ["split_lists", "union_lists"])
def test_rows_that_a_step_keeps_with_other_columns_are_refused_before_anything_starts(lists: str):
    kept: dict[str, Any] = {lists: {"penstock.requests": (b"", b"rows")}}
    taken = snapshot(rows("n: int64"), **NO_KEYS, **kept)
    with pytest.raises(UsageError, match="keeps rows with the columns n: int64, and its rows have n: string in the"):
        plan_restore(taken, program(rows("n: string")))
    assert assign(taken, program(rows("n: int64"))).matched.restored == (COUNT,)


@pytest.mark.parametrize(
    ("was", "parts"),
    [(rows("n: int64"), (b"",)), ({}, (b"rows",))],
    ids=["no row is kept", "a snapshot that says nothing"],
)
def test_columns_that_mean_nothing_for_the_snapshot_may_change(was: dict[str, DeclaredState], parts: tuple[bytes, ...]):
    taken = snapshot(was, **NO_KEYS, union_lists={"penstock.requests": parts})
    assert assign(taken, program(rows("n: string"))).matched.restored == (COUNT,)
