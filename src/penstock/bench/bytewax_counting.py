"""Keyed counting by bytewax, as a script for the interpreter of an environment that has bytewax.

    python bytewax_counting.py ROWS KEYS WARMUP_SHARE

Prints the rows per second of one worker. The rows are made before the clock starts. The script imports nothing of
Penstock.
"""

from __future__ import annotations

import sys
import time
from typing import Any

ROWS_PER_BATCH = 4_096


def counted(state: int | None, _: Any) -> tuple[int, int]:
    """How many records of the key there have been, twice: as the next state and as the result."""
    count = (state or 0) + 1
    return count, count


def rows_per_second(rows: int, keys: int, warmup_share: float) -> float:
    """Count rows by key. The first `warmup_share` of the rows does not count."""
    import bytewax.operators as op  # type: ignore[import-not-found]
    from bytewax.dataflow import Dataflow  # type: ignore[import-not-found]
    from bytewax.inputs import DynamicSource, StatelessSourcePartition  # type: ignore[import-not-found]
    from bytewax.outputs import DynamicSink, StatelessSinkPartition  # type: ignore[import-not-found]
    from bytewax.testing import run_main  # type: ignore[import-not-found]

    made = [(str(n * 2_654_435_761 % keys), n) for n in range(rows)]
    begun: list[tuple[int, float]] = []

    class Made(StatelessSourcePartition):  # type: ignore[misc]
        def __init__(self) -> None:
            self._next = 0

        def next_batch(self) -> list[tuple[str, int]]:
            first = self._next
            if first >= rows:
                raise StopIteration
            if not begun and first >= rows * warmup_share:
                begun.append((first, time.perf_counter()))
            self._next += ROWS_PER_BATCH
            return made[first : self._next]

    class Nowhere(StatelessSinkPartition):  # type: ignore[misc]
        def write_batch(self, items: list[Any]) -> None:
            pass

    class Source(DynamicSource):  # type: ignore[misc]
        def build(self, *_: Any) -> Made:
            return Made()

    class Sink(DynamicSink):  # type: ignore[misc]
        def build(self, *_: Any) -> Nowhere:
            return Nowhere()

    flow = Dataflow("counting")
    op.output("out", op.stateful_map("count", op.input("in", flow, Source()), counted), Sink())
    run_main(flow)
    first, start = begun[0]
    return (rows - first) / (time.perf_counter() - start)


if __name__ == "__main__":
    print(rows_per_second(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))  # noqa: T201
