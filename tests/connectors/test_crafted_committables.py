"""Prepared files that a snapshot names are moved only from where the sink prepares files into the sink's folder."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from penstock.api.connector import WriterContext
from penstock.connectors import parquet, prepared_files
from penstock.connectors.prepared_files import publish_files
from penstock.core.errors import CorruptFile, StorageError, UsageError
from penstock.descents import make_folders

STAGED = "_penstock/job/s0-p1-e1-0.parquet"


@pytest.mark.parametrize(
    ("staged", "final"),
    [
        ("VICTIM", "part.parquet"),
        ("../private/victim", "part.parquet"),
        ("_penstock/../../private/victim", "part.parquet"),
        ("part-other.parquet", "part.parquet"),
        (STAGED, "NEW"),
        (STAGED, "../private/new"),
        (STAGED, "a/../../private/new"),
        (STAGED, "_penstock/other/x.parquet"),
        (STAGED, ""),
        (STAGED, "a\0b"),
    ],
)
def test_a_name_that_leads_elsewhere_is_refused_and_nothing_moves(tmp_path, staged, final):
    folder, private = tmp_path / "out", tmp_path / "private"
    (folder / "_penstock" / "job").mkdir(parents=True)
    (folder / STAGED).write_bytes(b"rows")
    (folder / "part-other.parquet").write_bytes(b"rows")
    private.mkdir()
    (private / "victim").write_bytes(b"mine")
    names = {"VICTIM": str(private / "victim"), "NEW": str(private / "new")}
    crafted = msgspec.msgpack.encode((names.get(staged, staged), names.get(final, final)))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CorruptFile, match="no sink has prepared such a file"):
        publish_files(folder, [crafted])
    assert sorted(tmp_path.rglob("*")) == before


def test_another_folder_that_a_snapshot_names_must_be_that_of_a_sink(tmp_path):
    """With the full place in a snapshot, files of any folder could be moved within that folder."""
    folder, private = tmp_path / "out", tmp_path / "private"
    (folder / "_penstock").mkdir(parents=True)
    private.mkdir()
    (private / "victim").write_bytes(b"mine")
    for place in (str(private), "private", f"{folder}/../private", f"{private}\0"):
        with pytest.raises(CorruptFile, match="no sink has prepared such a file"):
            publish_files(folder, [msgspec.msgpack.encode(("victim", "part.parquet", place))])
    assert [path.name for path in private.iterdir()] == ["victim"]


@pytest.mark.parametrize("way", ["staged", "final"])
@pytest.mark.parametrize("place", ["named", "of then"])
def test_a_link_out_of_the_folder_is_not_followed(tmp_path, way, place):
    folder, private = tmp_path / "out", tmp_path / "private"
    (folder / "_penstock" / "job").mkdir(parents=True)
    (folder / STAGED).write_bytes(b"rows")
    private.mkdir()
    (private / "victim.parquet").write_bytes(b"mine")
    (folder / "_penstock" / "link").symlink_to(private)
    (folder / "day=1").symlink_to(private)
    crafted = ("_penstock/link/victim.parquet", "part.parquet") if way == "staged" else (STAGED, "day=1/part.parquet")
    now = folder if place == "named" else tmp_path / "now"
    with pytest.raises(CorruptFile, match="no sink has prepared such a file"):
        publish_files(now, [msgspec.msgpack.encode((*crafted, "" if place == "named" else str(folder)))])
    assert [path.name for path in private.iterdir()] == ["victim.parquet"]
    assert (folder / STAGED).exists()


def test_a_folder_that_is_reached_by_a_link_is_the_folder_of_the_sink(tmp_path):
    (tmp_path / "real" / "_penstock" / "job").mkdir(parents=True)
    (tmp_path / "real" / STAGED).write_bytes(b"rows")
    (tmp_path / "out").symlink_to(tmp_path / "real")
    publish_files(tmp_path / "out", [msgspec.msgpack.encode((STAGED, "part.parquet", str(tmp_path / "out")))])
    assert (tmp_path / "real" / "part.parquet").read_bytes() == b"rows"


def test_what_a_sink_has_prepared_gets_its_name(tmp_path):
    (tmp_path / "_penstock" / "job").mkdir(parents=True)
    (tmp_path / STAGED).write_bytes(b"rows")
    publish_files(tmp_path, [msgspec.msgpack.encode((STAGED, "day=1/part.parquet"))])
    assert (tmp_path / "day=1" / "part.parquet").read_bytes() == b"rows"


# --- links that somebody puts into the folder while the sink uses it -------------------------------------------------


@pytest.mark.parametrize("swapped", ["_penstock/job", "day=1"])
def test_a_folder_that_is_swapped_for_a_link_after_the_look_at_it_is_not_followed(tmp_path, monkeypatch, swapped):
    folder, private = tmp_path / "out", tmp_path / "private"
    (folder / "_penstock" / "job").mkdir(parents=True)
    (folder / "day=1").mkdir()
    private.mkdir()
    for place in (folder / "_penstock" / "job", private):
        (place / "s0-p1-e1-0.parquet").write_bytes(b"rows")

    def swap_and_make(root, names):
        (folder / swapped).rename(folder / "aside")
        (folder / swapped).symlink_to(private)
        make_folders(root, names)

    monkeypatch.setattr(prepared_files, "make_folders", swap_and_make)
    with pytest.raises(CorruptFile, match="no sink has prepared such a file"):
        publish_files(folder, [msgspec.msgpack.encode((STAGED, "day=1/part.parquet"))])
    assert [path.name for path in private.iterdir()] == ["s0-p1-e1-0.parquet"]


@pytest.mark.parametrize("way", ["link", "hard link"])
def test_a_slot_writes_into_no_file_that_was_there(tmp_path, way):
    victim, planted = tmp_path / "victim", tmp_path / "out" / STAGED
    victim.write_bytes(b"mine")
    planted.parent.mkdir(parents=True)
    (planted.symlink_to if way == "link" else planted.hardlink_to)(victim)
    writer = parquet.parquet(tmp_path / "out").writer(WriterContext(job="job", subtask=0, parallelism=1, epoch=1))
    writer.write(pa.record_batch({"n": [1]}))
    assert len(writer.prepare(7)()) == 1
    assert victim.read_bytes() == b"mine"
    assert planted.is_file()
    assert not planted.is_symlink()


def test_no_use_of_a_staging_folder_that_is_a_link_touches_what_is_behind_it(tmp_path):
    private, sink = tmp_path / "private", parquet.parquet(tmp_path / "out")
    private.mkdir()
    (private / "s0-p1-e1-0.parquet").write_bytes(b"mine")
    (tmp_path / "out" / "_penstock").mkdir(parents=True)
    (tmp_path / "out" / "_penstock" / "job").symlink_to(private)
    context = WriterContext(job="job", subtask=0, parallelism=1, epoch=2)
    with pytest.raises(UsageError, match="symbolic link"):
        sink.start("job")
    writer = sink.writer(context)
    writer.write(pa.record_batch({"n": [1]}))
    with pytest.raises(StorageError, match="symbolic link"):
        writer.prepare(7)()
    sink.clean(context, [])
    sink.end("job")
    assert [path.name for path in private.iterdir()] == ["s0-p1-e1-0.parquet"]
