"""A source for jobs in this process: its splits are JSON, and a file is the gate that it waits for."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.api.connector import Source, SourceReader


class SplitReader(SourceReader):
    """What is left of its splits is its state; `poll` changes it."""

    def __init__(self, splits: list[Any], gate: Path) -> None:
        self._splits = splits
        self._gate = gate

    def snapshot(self) -> list[bytes]:
        return [json.dumps(split).encode() for split in self._splits]


class SplitSource(Source):
    """The records that `reader` makes of the splits, which are these at their beginnings."""

    def __init__(
        self, columns: pa.Schema, splits: Sequence[Any], reader: Callable[[list[Any], Path], SourceReader], gate: Path
    ) -> None:
        self._columns = columns
        self._splits = [json.dumps(split).encode() for split in splits]
        self._reader = reader
        self._gate = gate

    @property
    def schema(self) -> pa.Schema:
        return self._columns

    def splits(self, parallelism: int) -> list[bytes]:
        return self._splits

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        return self._reader([json.loads(split) for split in splits], self._gate)
