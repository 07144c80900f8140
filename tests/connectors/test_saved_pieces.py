"""What connectors find in a snapshot in the place of their own splits and committables."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.program import Program
from penstock.connectors.parquet_files import ParquetFiles
from penstock.connectors.prepared_files import publish_files
from penstock.core.errors import CorruptFile
from penstock.plan.checkpoint_graph import checkpoint_graph
from penstock.settings import JobSettings
from penstock.testing import collect

SCHEMA = pa.schema([("n", pa.int64())])


def made(first, count):
    return {"n": list(range(first, first + count))}


def numbers():
    yield {"n": 1}


def source_of(build):
    """The source of a program that reads it and nothing else."""
    env = Program(JobSettings())
    build(env).write(collect())
    return next(o.step.source for v in env.plan().vertices for o in v.operators if hasattr(o.step, "source"))


@pytest.fixture
def sources(tmp_path):
    (tmp_path / "a.json").write_text('{"n": 1}')
    given = {
        "list": lambda env: env.from_iterable([{"n": 1}]),
        "function": lambda env: env.from_iterable(numbers, schema="n bigint"),
        "generate": lambda env: env.read(ps.generate(made, schema="n bigint")),
        "files": lambda env: env.read(ps.files(str(tmp_path), schema="n bigint", format="json")),
        "socket": lambda env: env.read(ps.socket("localhost", 1)),
        "bids": lambda env: env.read(ps.nexmark.bids(events=100)),
    }
    found = {name: source_of(build) for name, build in given.items()}
    return {**found, "parquet": ParquetFiles(files=("/a",), columns=SCHEMA)}


@pytest.mark.parametrize("name", ["list", "function", "generate", "files", "socket", "bids", "parquet"])
@pytest.mark.parametrize("data", [b"", b"no splits", msgspec.msgpack.encode(["no", ["split"]]), b"\x91" * 5_000])
def test_splits_of_something_else_are_a_corrupt_file(sources, name, data):
    with pytest.raises(CorruptFile, match="in the snapshot cannot be read"):
        sources[name].open([data])


@pytest.mark.parametrize("data", [b"", b"no committable", msgspec.msgpack.encode([1, 2])])
def test_committables_of_something_else_are_a_corrupt_file(tmp_path, data):
    with pytest.raises(CorruptFile, match="a prepared file in the snapshot cannot be read"):
        publish_files(Path(tmp_path), [data])


def test_every_source_has_a_form_of_its_own_for_its_splits(sources):
    forms = [source.saved_as for source in sources.values()]
    assert all(forms)
    assert len(dict.fromkeys(forms)) == len(forms)


def test_the_plan_says_which_source_and_sink_a_step_has():
    env = Program(JobSettings())
    env.from_iterable([{"n": 1}], name="numbers").write(ps.json("out"), name="results")
    (vertex,) = checkpoint_graph(env.plan()).vertices
    assert {label.name: label.connector for label in vertex.labels.values()} == {
        "numbers": "a list of rows",
        "results": "a sink of files",
    }
