"""Table files of RocksDB are checked before RocksDB unpacks them, and entries are read in bounded pieces."""

from __future__ import annotations

import tracemalloc

import pyarrow as pa
import pytest
import rocksdict
from state_rig import GROUPS, Files, Step, close_steps

import penstock as ps
from penstock.core.errors import CorruptFile
from penstock.savepoints.tables import read_files
from penstock.settings import StateSettings
from penstock.state.rocksdb import database, table_bounds
from penstock.state.rocksdb.table_bounds import check_table

ZEROS = "\0" * 4_000_000
FEW_BYTES = 160 * 1024 * 1024
"""More than one piece needs, and less than all values below have together."""
METHODS = rocksdict.DBCompressionType


class Text:
    v = ps.value_state("v", "string")


@pytest.fixture(autouse=True)
def _closed():
    yield
    close_steps()


def compressed_by(method, monkeypatch):
    """What an attacker's program does: the same databases, compressed by another method."""
    real = database._options

    def options(settings, cache, buffers):
        made = real(settings, cache, buffers)
        made.set_compression_type(method)
        return made

    monkeypatch.setattr(database, "_options", options)


def table(folder, rows):
    """The table file of a database with these rows."""
    settings = StateSettings()
    db = database.Database(folder / "db", settings)
    db.write(rows)
    db.link_files(folder / "copy")
    db.close()
    (path,) = (folder / "copy").glob("*.sst")
    return path


MANY = [(number.to_bytes(8, "big"), b"value" * 20) for number in range(5_000)]


@pytest.mark.parametrize(
    "rows", [MANY[:1], MANY, [(b"key", ZEROS.encode())], [(b"k" * 100_000, b"")]], ids=["one", "many", "zeros", "key"]
)
def test_a_table_file_that_this_package_writes_passes(rows, tmp_path):
    check_table(table(tmp_path, rows))


def test_a_table_file_with_deleted_ranges_passes(tmp_path):
    db = database.Database(tmp_path / "db", StateSettings())
    db.write(MANY)
    db.remove_range(MANY[10][0], MANY[20][0])
    db.link_files(tmp_path / "copy")
    db.close()
    for path in (tmp_path / "copy").glob("*.sst"):
        check_table(path)


@pytest.mark.parametrize("method", [METHODS.zstd(), METHODS.snappy()], ids=["zstd", "snappy"])
def test_a_block_that_is_compressed_by_another_method_is_refused(method, tmp_path, monkeypatch):
    compressed_by(method, monkeypatch)
    with pytest.raises(ValueError, match=r"is compressed by method [0-9], and not by LZ4"):
        check_table(table(tmp_path, MANY))


def test_a_block_that_claims_more_bytes_than_lz4_can_make_is_refused(tmp_path):
    path = table(tmp_path, [(b"key", b"\0" * 30_000)])
    data = bytearray(path.read_bytes())
    # The first block begins with its unpacked size: three bytes of seven bits.
    assert data[0] & 0x80
    assert data[1] & 0x80
    assert data[2] < 0x80
    data[2] = 0x7F
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"unpacks to \d+ bytes; at most \d+ bytes are possible"):
        check_table(path)


def test_a_damaged_table_file_passes_or_is_refused_and_nothing_else(tmp_path):
    data = table(tmp_path, MANY).read_bytes()
    mutant = tmp_path / "mutant"
    for place in range(1, 400):
        changed = bytearray(data)
        changed[-place] ^= 0xFF
        for content in (bytes(changed), data[:-place]):
            mutant.write_bytes(content)
            try:
                check_table(mutant)
            except ValueError:
                continue


def test_a_snapshot_with_other_compression_is_neither_restored_nor_read(monkeypatch):
    store = Files()
    with monkeypatch.context() as attacker:
        compressed_by(METHODS.zstd(), attacker)
        step = Step("rocksdb", Text, store=store)
        for key in range(3):
            step.at(key)["v"].set(ZEROS)
        (files,) = step.save()
        step.close()
    for parallelism in (1, 4):
        with pytest.raises(CorruptFile, match="is compressed by method 7"):
            Step("rocksdb", Text, store=store, restored=[files], parallelism=parallelism)
    with pytest.raises(CorruptFile, match=rf"{files[1].path}.*is compressed by method 7"):
        read_files(files, store, what="the file").tables  # noqa: B018  # to read is to check


class Counting:
    """A writer that keeps nothing. It counts the files and knows the largest."""

    def __init__(self):
        self.sizes = []

    def put(self, data):
        self.sizes.append(memoryview(data).nbytes)


def test_a_canonical_file_has_few_bytes_however_large_the_values_are():
    step = Step("rocksdb", Text)
    for key in range(80):
        step.at(key)["v"].set(ZEROS)
    written = Counting()
    step.snapshot(canonical=True).run(written)
    assert max(written.sizes) < FEW_BYTES < sum(written.sizes)


def test_large_values_in_small_files_are_listed_and_read_in_little_memory():
    store = Files()
    step = Step("rocksdb", Text, store=store)
    for key in range(80):
        step.at(key)["v"].set(ZEROS)
    (files,) = step.save()
    step.close()
    assert sum(file.size for file in files) < FEW_BYTES / 50
    tracemalloc.start()
    try:
        content = read_files(files, store, what="the file")
        (found,) = content.tables
        assert (found.rows, found.size_bytes > 80 * len(ZEROS)) == (80, True)
        rows = 0
        for piece in content.row_tables("v", "value"):
            assert piece.nbytes < FEW_BYTES
            rows += piece.num_rows
        assert rows == 80
        assert tracemalloc.get_traced_memory()[1] < FEW_BYTES
    finally:
        tracemalloc.stop()


def test_rows_of_a_range_of_key_groups_are_read_alone():
    store = Files()
    step = Step("rocksdb", Text, store=store)
    for key in range(100):
        step.at(key)["v"].set(str(key))
    (files,) = step.save()
    content = read_files(files, store, what="the file")
    for groups in [(0, GROUPS - 1), (3, 5), (7, 7), (GROUPS - 1, GROUPS + 5), (GROUPS, GROUPS)]:
        tables = list(content.row_tables("v", "value", groups))
        found = {row["k"] for one in tables for row in one.to_pylist()}
        assert found == {key for key in range(100) if groups[0] <= step.group_of(key) <= groups[1]}
    assert content.row_tables("w", "value") is None


def test_entries_with_more_bytes_than_honest_files_can_have_are_not_read(monkeypatch):
    """Keys with many bytes in common take few bytes in a block. Blocks of this package are too small for many such
    keys; an attacker's blocks are not."""
    store = Files()
    with monkeypatch.context() as attacker:
        attacker.setattr(database, "_BLOCK_BYTES", 1 << 30)
        step = Step("rocksdb", Text, store=store, keys=pa.schema([pa.field("k", pa.string())]))
        for number in range(400):
            step.at("k" * 100_000 + f"{number:04}")["v"].set("")
        (files,) = step.save()
        step.close()
    monkeypatch.setattr(table_bounds, "_ALWAYS_ALLOWED", 0)
    content = read_files(files, store, what="the file")
    with pytest.raises(
        CorruptFile, match=r"the file has table files of \d+ bytes, .* at most \d+ bytes are read"
    ) as refused:
        content.tables  # noqa: B018  # to count is to read
    assert "take a canonical savepoint" in refused.value.hint
    with pytest.raises(CorruptFile, match="at most"):
        list(content.row_tables("v", "value"))
