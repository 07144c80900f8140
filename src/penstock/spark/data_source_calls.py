"""A Python Data Source of the user's, and the boundary to its code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cloudpickle
import pyarrow as pa
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from penstock.api.connector import UserCodeRaised
from penstock.core.errors import StreamError, UsageError
from penstock.spark.arrow_types import to_arrow_schema


@contextmanager
def calling(name: str, method: str) -> Iterator[None]:
    """Run code of data source `name`; what it raises is said to come from its `method`."""
    try:
        yield
    except (StreamError, UserCodeRaised, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise UserCodeRaised(f"{method} of data source {name!r}") from error


@dataclass(frozen=True, kw_only=True)
class GivenSource:
    """A data source with its options, and the schema that is to be read."""

    source: DataSource
    struct: StructType

    @property
    def name(self) -> str:
        """What users call it."""
        return self.source.name()

    @property
    def schema(self) -> pa.Schema:
        """The columns, as Arrow types; times are UTC."""
        return to_arrow_schema(self.struct)

    def make(self, method: str, **arguments: Any) -> Any:
        """What one of the methods that make readers and writers returns. Raises `PySparkNotImplementedError` if the
        source has none."""
        return getattr(self.source, method)(schema=self.struct, **arguments)


def pickled(value: Any, *, what: str) -> bytes:
    """For another process. Raises `UsageError` if it cannot be."""
    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:
        raise UsageError(
            f"{what} cannot be pickled: {error}",
            hint="it goes to other processes; make connections and the like where they are used, in read or write",
        ) from error


def lacks(name: str, method: str, *, hint: str) -> UsageError:
    """The error for a method that a data source does not have."""
    return UsageError(f"data source {name!r} has no {method}", hint=hint)
