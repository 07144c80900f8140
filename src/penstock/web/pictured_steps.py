"""What each operator runs, for people: the SQL as it was written, the name of a function, what a window computes."""

from __future__ import annotations

from typing import Any

from penstock.core.view_texts import duration_text
from penstock.plan.graph import Plan

LONGEST = 2_000


def runs_of(plan: Plan) -> dict[str, str]:
    """What each operator of a plan runs, by the id of the operator. Operators of which there is nothing to say are left
    out."""
    found = {str(o.operator): _runs(o.step) for vertex in plan.vertices for o in vertex.operators}
    return {operator: text for operator, text in found.items() if text}


def _runs(step: Any) -> str:
    text = _text(step)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _text(step: Any) -> str:
    shown = str(getattr(step, "shown", ""))
    if written := getattr(step, "written", ""):
        return str(written)
    if (function := getattr(step, "function", None)) is not None:
        return _function(function)
    if aggregates := getattr(step, "aggregates", ()):
        made = ", ".join(_aggregate(each) for each in aggregates)
        window = shown or str(getattr(step, "window", ""))
        keys = ", ".join(getattr(step, "keys", ()))
        return f"{made}{f' by {keys}' if keys else ''}{f', windows: {window}' if window else ''}"
    if shown:
        return shown
    if (delay_us := getattr(step, "delay_us", None)) is not None:
        return f"event time is {step.column}; records are late by up to {duration_text(delay_us / 1_000)}"
    for end in ("source", "sink"):
        if (found := getattr(step, end, None)) is not None:
            return type(found).__name__
    return ""


def _function(function: Any) -> str:
    """A function by its name and its place; an object with functions by its class."""
    code = getattr(function, "__code__", None)
    if code is None:
        return f"{type(function).__module__}.{type(function).__qualname__}"
    return f"{function.__module__}.{function.__qualname__}, {code.co_filename}:{code.co_firstlineno}"


def _aggregate(aggregate: Any) -> str:
    column = "" if aggregate.column is None else aggregate.column
    return f"{aggregate.name} = {aggregate.kind}({column})"
