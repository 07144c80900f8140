"""A Python Data Source of the user, and the boundary between Penstock and the code of the data source."""

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
    """For a block that calls `method` of data source `name`: an exception of the method is raised as `UserCodeRaised`,
    which names the method and the data source."""
    try:
        yield
    except (StreamError, UserCodeRaised, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise UserCodeRaised(f"{method} of data source {name!r}") from error


@dataclass(frozen=True, kw_only=True)
class GivenSource:
    """A data source with its options, and the schema of the records that are read or written."""

    source: DataSource
    struct: StructType

    @property
    def name(self) -> str:
        """The name that the data source gives itself."""
        return self.source.name()

    @property
    def schema(self) -> pa.Schema:
        """The columns of the schema as Arrow types; times are UTC."""
        return to_arrow_schema(self.struct)

    def make(self, method: str, **arguments: Any) -> Any:
        """Call a method of the data source that makes a reader or a writer, and return the reader or writer. Raises
        `PySparkNotImplementedError` if the data source does not have the method."""
        return getattr(self.source, method)(schema=self.struct, **arguments)


def pickled(value: Any, *, what: str) -> bytes:
    """The bytes of a value, for another process. Raises `UsageError` if the value cannot be pickled; `what` says, for
    people, what the value is."""
    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:
        raise UsageError(
            f"{what} cannot be pickled: {error}",
            hint="the object is sent to other processes; make connections and the like where they are used, in read or "
            "write",
        ) from error


def lacks(name: str, method: str, *, hint: str) -> UsageError:
    """The error for a method that a data source does not have."""
    return UsageError(f"data source {name!r} has no {method}", hint=hint)
