"""The canonical format: readable as tables, read only where it is needed, and refused if it is not whole."""

from __future__ import annotations

import json
from collections import Counter

import pyarrow as pa
import pytest
from state_rig import EVENT_TIME, GROUPS, PROCESSING_TIME, Files, Step

import penstock as ps
from penstock.core.errors import CorruptFile, UsageError
from penstock.state import format as state_format
from penstock.state.format import MAGIC, VERSION, CanonicalFile


class Mixed:
    count = ps.value_state("count", "bigint")
    tags = ps.list_state("tags", "string")
    scores = ps.map_state("scores", key="string", value="double", ttl=ps.ttl("1h"))
    thing = ps.value_state("thing", object)


@pytest.fixture
def data():
    step = Step("memory", Mixed)
    for key in range(20):
        handles = step.at(key)
        handles["count"].set(key)
        handles["tags"].extend(["a", "b"])
        handles["scores"].set("x", key / 2)
        handles["thing"].set({key})
        step.timers(key).add(EVENT_TIME, key)
        step.timers(key).add(PROCESSING_TIME, key + 1)
    ((file,),) = step.save()
    return step.store.get(file)


def entry_of(file, name):
    return next(entry for entry in file.header.tables if entry.name == name)


def everything(file, entry):
    return file.table(entry, (0, GROUPS - 1))


def test_a_file_describes_itself(data):
    assert data[:4] == MAGIC
    size = int.from_bytes(data[6:10], "big")
    header = json.loads(data[10 : 10 + size])
    assert header["operator"] == "step"
    assert header["key_columns"] == ["k"]
    assert [(table["name"], table["kind"], table["rows"]) for table in header["tables"]] == [
        ("count", "value", 20),
        ("tags", "list", 40),
        ("scores", "map", 20),
        ("thing", "value", 20),
        ("", "timers", 40),
    ]


def test_every_state_can_be_read_as_a_table(data):
    file = CanonicalFile(data, what="it")
    table = everything(file, entry_of(file, "scores"))
    assert table.schema.names == ["__key_group", "k", "__map_key", "__value", "__written_ms"]
    assert table.schema.field("__value").type == pa.float64()
    rows = sorted(table.to_pylist(), key=lambda row: row["k"])
    assert [(row["k"], row["__map_key"], row["__value"], row["__written_ms"]) for row in rows[:2]] == [
        (0, "x", 0.0, 1_000_000),
        (1, "x", 0.5, 1_000_000),
    ]
    timers = everything(file, entry_of(file, ""))
    assert timers.schema.names == ["__key_group", "k", "__kind", "__time_us"]
    assert set(timers.column("__kind").to_pylist()) == {"event-time", "processing-time"}


def test_rows_are_ordered_by_key_group_and_only_batches_of_the_own_are_decoded(data, monkeypatch):
    monkeypatch.setattr(state_format, "BATCH_ROWS", 3)
    step = Step("memory", Mixed)
    for key in range(60):
        step.at(key)["count"].set(key)
    ((path,),) = step.save()
    file = CanonicalFile(step.store.get(path), what="it")
    (entry,) = file.header.tables
    whole = everything(file, entry)
    groups = whole.column("__key_group").to_pylist()
    assert groups == sorted(groups)
    assert groups == [step.group_of(key) for key in whole.column("k").to_pylist()]
    assert len(entry.batches) == 20
    own = file.table(entry, (3, 5))
    assert own.column("__key_group").to_pylist() == [group for group in groups if 3 <= group <= 5]
    meeting = [span for span in entry.batches if span[0] <= 5 and span[1] >= 3]
    assert len(meeting) < 10


def read_all(data):
    file = CanonicalFile(data, what="the file")
    for entry in file.header.tables:
        everything(file, entry)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda d: d[:5], "is cut short: it has 5 bytes, and its prefix alone has 10"),
        (lambda d: d[:50], "is cut short: it has 50 bytes, and its header alone ends at"),
        (lambda d: d[:-400], "is cut short: the table of 'timers' is not complete"),
        (lambda d: b"PAR1" + d[4:], "is not keyed state in the canonical format"),
        (lambda d: d[:10] + b"x" + d[11:], "has a header that cannot be read"),
        (lambda d: d[:-200] + bytes(200), "has a table of 'timers' that cannot be read"),
    ],
)
def test_a_file_that_is_not_whole_is_refused_by_name(data, damage, text):
    with pytest.raises(CorruptFile, match=f"^the file {text}") as caught:
        read_all(damage(data))
    assert caught.value.hint


def test_a_newer_file_is_refused(data):
    newer = data[:4] + (VERSION + 1).to_bytes(2, "big") + data[6:]
    with pytest.raises(CorruptFile, match=f"has format version {VERSION + 1}; this program reads up to {VERSION}"):
        CanonicalFile(newer, what="the file")


def test_files_of_another_back_ends_own_format_are_refused():
    store = Files()
    files = (store.put(b"PKRX and more"), store.put(b"a table"))
    with pytest.raises(UsageError, match="saved by another back end in its own format"):
        Step("memory", Mixed, store=store, restored=[files])


def test_an_object_whose_class_is_gone_names_the_state():
    step = Step("memory", Mixed)
    step.at(1)["thing"].set(Counter("a"))
    ((file,),) = step.save()
    content = step.store.contents[file.path]
    assert b"collections" in content
    step.store.contents[file.path] = content.replace(b"collections", b"nowhere_now")
    step.store.get = lambda found: step.store.contents[found.path]
    with pytest.raises(CorruptFile, match=f"an object in the state of 'a step' in {file.path} cannot be unpickled"):
        Step("memory", Mixed, store=step.store, restored=[(file,)])
