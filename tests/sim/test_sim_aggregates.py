"""Worlds with many aggregates find what is wrong with an aggregate: each test puts a bug into a kind of aggregate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from planted_bugs import found, worlds

from penstock.api.aggregate_kinds.base import Groups
from penstock.api.aggregate_kinds.collected import ListPartials
from penstock.api.aggregate_kinds.custom import MergeStates
from penstock.api.aggregate_kinds.moments import OfMoments
from penstock.api.aggregate_kinds.picks import PickPartials, TopPartials
from penstock.runtime.task.operators import windows
from penstock.runtime.task.operators.record_values import record_values
from penstock.sim.jobs import Shape
from penstock.sim.rules import Rule


def rich(make: Any) -> list[Any]:
    def salted(scenario: Any) -> Any:
        return replace(scenario, workload=replace(scenario.workload, salt=scenario.workload.salt | 256))

    return worlds(make, 1, make.steady, lambda s: make.shape(s, Shape.WINDOW), salted)


def test_worlds_with_many_aggregates_are_sound(make: Any):
    assert all(scenario.workload.has_rich_windows for scenario in rich(make))
    assert found(rich(make)) == []


@pytest.mark.parametrize("fold", [ListPartials, OfMoments, PickPartials, TopPartials, MergeStates])
def test_a_fold_that_loses_partials_is_found(make: Any, monkeypatch: pytest.MonkeyPatch, fold: Any):
    honest = fold.__call__

    def lossy(self: Any, table: pa.Table, groups: Any) -> Any:
        firsts = groups.order[groups.starts]
        return honest(self, table.take(pa.array(firsts)), Groups(np.arange(len(groups)), np.arange(len(groups))))

    monkeypatch.setattr(fold, "__call__", lossy)
    assert found(rich(make)) == [Rule.EXACTLY_ONCE]


def test_a_condition_that_is_not_asked_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    def careless(batch: pa.RecordBatch, aggregates: Any) -> dict[str, Any]:
        values = record_values(batch, aggregates)
        rows = pa.array([True] * batch.num_rows)
        return {name: rows if column.type == pa.bool_() else column for name, column in values.items()}

    monkeypatch.setattr(windows, "record_values", careless)
    assert found(rich(make)) == [Rule.EXACTLY_ONCE]
