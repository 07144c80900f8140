"""A crafted snapshot stands for no more rows than its files hold."""

from __future__ import annotations

import json
import struct

import msgspec
import pyarrow as pa
import pytest
from state_rig import Step

import penstock as ps
from penstock.api.arrow_bounds import check_size
from penstock.core.errors import CorruptFile, Fault, fault_of
from penstock.state.restore_bounds import check_apart

EACH_ROW_ONCE = "a restore takes in at most the rows that the files on disk hold, each row once"


class Counts:
    count = ps.value_state("count", "bigint")


def saved(kind, *, parallelism=1):
    """A step with state of some keys, and its snapshot."""
    step = Step(kind, Counts, parallelism=parallelism)
    for key in range(40):
        step.at(key)["count"].set(key)
    return step, step.save()


def with_header(data, change):
    """A canonical file whose header was changed."""
    (size,) = struct.unpack_from(">I", data, 6)
    header = json.loads(data[10 : 10 + size])
    change(header)
    changed = json.dumps(header).encode()
    return data[:6] + struct.pack(">I", len(changed)) + changed + data[10 + size :]


def named_many_times(header):
    (table,) = header["tables"]
    header["tables"] = [{**table, "name": f"count-{number}"} for number in range(1_000)]


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_a_header_that_names_one_table_many_times_is_refused(kind):
    step, snapshot = saved("memory")
    crafted = step.store.put(with_header(step.store.get(snapshot[0][0]), named_many_times))
    with pytest.raises(CorruptFile, match=EACH_ROW_ONCE) as caught:
        Step(kind, Counts, store=step.store, restored=[(crafted,)])
    assert fault_of(caught.value) is Fault.PERMANENT
    assert "restore from another checkpoint or savepoint" in caught.value.hint


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
@pytest.mark.parametrize("shared", [None, "key"])
@pytest.mark.parametrize("by_one", [True, False])
def test_a_canonical_file_that_is_named_twice_is_refused(kind, shared, by_one):
    """By one old subtask, or by two; with a key as if several checkpoints shared the file, or without."""
    step, ((file,),) = saved("memory")
    file = msgspec.structs.replace(file, shared_key=shared)
    restored = [(file, file)] if by_one else [(file,), (file,)]
    with pytest.raises(CorruptFile, match=f"the state of 'a step' names the file file-0 twice; {EACH_ROW_ONCE}"):
        Step(kind, Counts, store=step.store, restored=restored)


def test_native_snapshots_that_claim_the_same_key_groups_are_refused():
    step, (files,) = saved("rocksdb")
    with pytest.raises(CorruptFile, match="the key groups of the snapshots of the state of 'a step' overlap at 0"):
        Step("rocksdb", Counts, store=step.store, restored=[files, files])


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_snapshots_of_honest_jobs_are_restored(kind, parallelism):
    step, snapshot = saved(kind, parallelism=4)
    after = Step(kind, Counts, parallelism=parallelism, store=step.store, restored=snapshot)
    assert [after.at(key)["count"].get() for key in range(40)] == list(range(40))


FIELDS, ROWS = 200, 64


class Wide:
    wide = ps.value_state("wide", "struct<" + ", ".join(f"f{number}: bigint" for number in range(FIELDS)) + ">")


def with_shared_columns(data):
    """A canonical file of `Wide` in which all columns of the value are the same bytes, and are there once.

    In the metadata of an Arrow batch a buffer is its offset in the body and its length. The bytes of the first field
    stand for all fields, and the body ends behind them.
    """
    (size,) = struct.unpack_from(">I", data, 6)
    header, body = json.loads(data[10 : 10 + size]), data[10 + size :]
    (entry,) = header["tables"]
    arrow = body[entry["offset"] : entry["offset"] + entry["length"]]
    reader = pa.ipc.open_file(pa.py_buffer(arrow))
    batch = reader.get_batch(0)
    (footer_size,) = struct.unpack_from("<i", arrow, len(arrow) - 10)
    footer = arrow[len(arrow) - 10 - footer_size : len(arrow) - 10]
    length = batch.num_rows * 8
    start = next(at for at in range(0, len(footer), 4) if is_block(footer, at, arrow))
    place, message_size, body_size = struct.unpack_from("<qi4xq", footer, start)
    message = bytearray(arrow[place : place + message_size])
    found = [at for at in range(0, len(message) - 15, 4) if struct.unpack_from("<qq", message, at)[1] == length]
    buffers = [at for at in found if 0 < struct.unpack_from("<q", message, at)[0] < body_size][-FIELDS:]
    (kept,) = struct.unpack_from("<q", message, buffers[0])
    for at in buffers:
        struct.pack_into("<q", message, at, kept)
    message = message.replace(struct.pack("<q", body_size), struct.pack("<q", kept + length))
    footer = footer.replace(struct.pack("<q", body_size), struct.pack("<q", kept + length))
    parts = [arrow[:place], message, arrow[place + message_size : place + message_size + kept + length], bytes(8)]
    crafted = b"".join([*parts, footer, struct.pack("<i", footer_size), b"ARROW1"])
    entry["offset"], entry["length"] = 0, len(crafted)
    changed = json.dumps(header).encode()
    return data[:6] + struct.pack(">I", len(changed)) + changed + crafted


def is_block(footer, at, arrow):
    """Whether the place of a batch is at this offset of a footer."""
    if at + 24 > len(footer):
        return False
    place, message, body = struct.unpack_from("<qi4xq", footer, at)
    return 0 < place < len(arrow) and 0 < message < len(arrow) and FIELDS * ROWS * 8 < body < len(arrow)


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_columns_that_share_bytes_of_a_file_are_refused(kind):
    step = Step("memory", Wide)
    for key in range(ROWS):
        step.at(key)["wide"].set({f"f{number}": number for number in range(FIELDS)})
    ((file,),) = step.save()
    data = step.store.get(file)
    small = with_shared_columns(data)
    assert len(small) < len(data) / 2
    crafted = step.store.put(small)
    with pytest.raises(CorruptFile, match=r"cannot be read: the columns have \d+ bytes, and the file holds only"):
        Step(kind, Wide, store=step.store, restored=[(crafted,)])


def test_columns_with_bytes_of_their_own_are_accepted_whatever_their_types_are():
    table = pa.table(
        {
            "n": pa.array([1, None, 3], pa.int64()),
            "b": pa.array([True, False, None]),
            "s": ["", "long" * 100, None],
            "l": [[1, 2], [], None],
            "nothing": pa.nulls(3),
            "st": [{"a": 1, "b": "x"}, None, {"a": None, "b": ""}],
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue()
    check_size(pa.ipc.open_file(data).read_all(), data.size)


@pytest.mark.parametrize("spans", [[(0, 5), (4, 9)], [(0, 5), (0, 5)], [(-1, 2)], [(5, 3)], [(0, 9), (2, 3)]])
def test_spans_with_something_in_common_are_refused_in_any_order(spans):
    for given in (spans, spans[::-1]):
        with pytest.raises(CorruptFile, match=f"the spans overlap at .*; {EACH_ROW_ONCE}"):
            check_apart(given, what="the spans")


def test_spans_that_touch_or_are_empty_are_accepted():
    check_apart([(5, 9), (0, 5), (5, 5), (12, 12)], what="the spans")
