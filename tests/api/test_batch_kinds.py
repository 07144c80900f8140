"""What a batch function takes is told by the annotation of its parameter, or by an argument."""

# Without `from __future__ import annotations`: some annotations here are classes, and others are texts.

import functools
import subprocess
import sys

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from penstock.api.inference import batch_kind
from penstock.core.errors import UsageError
from penstock.testing import collect, run


def of_batches(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def of_tables(batch: pa.Table) -> pa.Table:
    return batch


def of_polars(batch: pl.DataFrame) -> pl.DataFrame:
    return batch


def of_pandas(batch: pd.DataFrame) -> pd.DataFrame:
    return batch


def in_quotes(batch: "pl.DataFrame"):
    return batch


def not_imported(batch: "polars.DataFrame"):  # noqa: F821  # a name for type checkers only
    return batch


def unknown_here(batch: "Frame"):  # noqa: F821  # a name for type checkers only
    return batch


def of_other_frames(batch: pl.LazyFrame):
    return batch


def without(batch):
    return batch


def scaled(factor: int, batch: pl.DataFrame) -> pl.DataFrame:
    return batch.with_columns(pl.col("n") * factor)


class Model:
    def __call__(self, batch: pd.DataFrame) -> pd.DataFrame:
        return batch

    def predict(self, batch: pa.Table) -> pa.Table:
        return batch


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (of_batches, "arrow"),
        (of_tables, "table"),
        (of_polars, "polars"),
        (of_pandas, "pandas"),
        (in_quotes, "polars"),
        (not_imported, "polars"),
        (unknown_here, "arrow"),
        (of_other_frames, "arrow"),
        (without, "arrow"),
        (functools.partial(scaled, 2), "polars"),
        (Model(), "pandas"),
        (Model().predict, "table"),
        (len, "arrow"),
        (lambda: None, "arrow"),
    ],
)
def test_the_annotation_says_what_a_function_takes(function, kind):
    assert batch_kind(function, None) == kind


def test_an_argument_says_it_for_a_function_without_an_annotation():
    assert batch_kind(without, "pandas") == "pandas"
    assert batch_kind(unknown_here, "polars") == "polars"
    assert batch_kind(of_polars, "polars") == "polars"


def test_an_argument_that_contradicts_the_annotation_is_refused():
    with pytest.raises(UsageError, match="kind is 'pandas', and the annotation of the function says 'polars'"):
        batch_kind(of_polars, "pandas")


def test_pandas_that_is_not_installed_is_said_when_the_program_is_built(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pandas is not installed"):
        batch_kind(of_pandas, None)


SEEN = {
    "arrow": pa.RecordBatch,
    "table": pa.Table,
    "polars": pl.DataFrame,
    "pandas": pd.DataFrame,
}


def checked(batch, kind):
    assert isinstance(batch, SEEN[kind]), f"expected {kind}; got {type(batch)}"
    return batch


def batches(batch: pa.RecordBatch):
    return checked(batch, "arrow")


def tables(batch: pa.Table):
    return checked(batch, "table")


def polars_frames(batch: pl.DataFrame):
    return checked(batch, "polars")


def pandas_frames(batch: pd.DataFrame):
    return checked(batch, "pandas")


COLUMNS = "n bigint, text string"


@pytest.mark.parametrize(
    ("function", "schema"),
    [
        (batches, None),
        (batches, COLUMNS),
        (tables, None),
        (tables, COLUMNS),
        (polars_frames, None),
        (polars_frames, COLUMNS),
        (pandas_frames, COLUMNS),
    ],
)
def test_a_function_is_handed_what_its_annotation_says_and_gives_the_same_back(function, schema):
    rows = [{"n": n, "text": str(n)} for n in range(20)]

    def program(env):
        env.from_iterable(rows).map_batches(function, schema=schema).write(collect())

    assert sorted(run(program, crashes=1), key=lambda row: row["n"]) == rows


def test_a_result_of_another_kind_is_refused():
    def mixed(batch: pl.DataFrame):
        return batch.to_arrow()

    def program(env):
        env.from_iterable([{"n": 1}]).map_batches(mixed, schema="n bigint").write(collect())

    with pytest.raises(Exception, match=r"expected a polars DataFrame; got pyarrow\.lib\.Table"):
        run(program)


def test_a_slot_imports_pandas_and_polars_only_if_they_are_used():
    code = (
        "import sys\n"
        "from penstock.api.steps import MapBatchesStep\n"
        "from penstock.runtime.task.operators.build import build_operator\n"
        "import pyarrow as pa\n"
        "schema = pa.schema([('n', pa.int64())])\n"
        "for kind in ('arrow', 'table'):\n"
        "    build_operator(MapBatchesStep(function=len, kind=kind, schema=schema))\n"
        "print([name for name in ('polars', 'pandas') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
