"""The functions of `penstock bench operators --only rows`: the same function as a generator and with a list, and a
function that counts the records of each key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import penstock as ps

COUNTED = "key string, n bigint"
PRICED = "number bigint, price bigint"


def prices_in_list(row: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each row, in a list."""
    return [{"number": row["number"], "price": row["price"] + 1}]


def prices_yielded(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One row for each row, yielded."""
    yield {"number": row["number"], "price": row["price"] + 1}


class CountRecords(ps.KeyedFunction):
    """Counts the records of each key."""

    seen = ps.value_state("seen", "bigint", default=0)

    def on_row(self, row: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002
        """Yields the key, and how many records of the key there have been."""
        count = self.seen.get() + 1
        self.seen.set(count)
        yield {"key": context.key, "n": count}
