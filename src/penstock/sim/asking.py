"""A step of a world that calls an async function, as a simulated service would answer: late, out of order, not at the
first time, or never."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa

from penstock.core.task.requests import RequestPolicy
from penstock.plan.graph import Partitioning


@dataclass(frozen=True, kw_only=True)
class Asks:
    """How the async function of a world is called, and how it behaves."""

    ordered: bool = True
    concurrency: int = 4
    partitioning: Partitioning = Partitioning.HASH
    """How the records reach the step."""
    batch: bool = False
    """Whether the function takes batches."""
    longest_ms: int = 10
    """The longest time that an answer takes."""
    refuses: int = 0
    """Of so many records, one record is refused at its first try; 0: no record."""
    hangs: int = 0
    """Of so many records, one record gets no answer at its first try; 0: no record."""

    @property
    def policy(self) -> RequestPolicy:
        """Clocks that are set and processes that stand still make many tries too long, so there are many tries."""
        return RequestPolicy(
            concurrency=self.concurrency, timeout_ms=60, ordered=self.ordered, retries=1_000, pause_ms=1
        )


def draw_asks(random: Random) -> Asks:
    """How the async function of a world is called."""
    ways = (Partitioning.HASH, Partitioning.HASH, Partitioning.FORWARD, Partitioning.REBALANCE)
    return Asks(
        ordered=random.random() < 0.5,
        concurrency=random.choice((1, 2, 5, 20)),
        partitioning=random.choice(ways),
        batch=random.random() < 0.2,
        longest_ms=random.choice((0, 2, 10)),
        refuses=random.choice((0, 7)),
        hangs=random.choice((0, 0, 50)),
    )


class Service:
    """What an async function of a world asks. Each answer takes its own time. A record that was refused, or got no
    answer, is answered the second time."""

    def __init__(self, asks: Asks, factor: int) -> None:
        self._asks = asks
        self._factor = factor
        self._asked: dict[int, None] = {}

    async def __call__(self, given: Any) -> Any:
        """The record, or the batch, with its values multiplied."""
        if isinstance(given, dict):
            await self._answer(given["key"] * 1_009 + given["seq"])
            return {**given, "value": given["value"] * self._factor}
        await self._answer(given.column("key")[0].as_py() * 1_009 + given.column("seq")[0].as_py())
        values = [value * self._factor for value in given.column("value").to_pylist()]
        return given.set_column(2, "value", pa.array(values, pa.int64()))

    async def _answer(self, number: int) -> None:
        asks, is_first = self._asks, number not in self._asked
        self._asked[number] = None
        await asyncio.sleep(number * 7 % (asks.longest_ms + 1) / 1_000)
        if is_first and asks.hangs and number % asks.hangs == 0:
            await asyncio.Event().wait()
        if is_first and asks.refuses and number % asks.refuses == 0:
            raise ConnectionError(f"the service refused {number}")
