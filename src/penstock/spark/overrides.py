"""What `penstock run` puts in the place of the arguments of an environment: `--parallelism`, and `--set key=value`.

A key is the name of an argument of `ps.Environment`; with a dot, a field of such an argument: `checkpointing.interval`,
`slots.heartbeat_timeout_ms`. Keys that begin with `spark.` are settings of Spark.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from penstock.api.checkpointing import Checkpointing
from penstock.core.errors import SettingsError, UsageError
from penstock.settings import NetworkSettings, NoRestart, SlotSettings

SPARK = "spark."
_GROUPS: Mapping[str, type] = {"checkpointing": Checkpointing, "network": NetworkSettings, "slots": SlotSettings}
_WHOLE: Mapping[str, Any] = {
    "parallelism": int,
    "max_parallelism": int,
    "spare_slots": int,
    "source_batch_rows": int,
    "state_backend": str,
    "landing": str,
    "restart": Literal["none"],
}


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """Values that go before the arguments of an environment."""

    whole: Mapping[str, Any] = field(default_factory=dict)
    """By argument."""
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By argument, then by field of the argument."""
    spark: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark."""

    def put_into(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of an environment, with these values instead of the given values. Raises `SettingsError` or
        `UsageError`."""
        chosen = {**given, **self.whole}
        for name, values in self.parts.items():
            made = chosen[name]
            if made is not None:
                chosen[name] = replace(made, **values)
            elif name == "checkpointing" and "directory" not in values:
                raise UsageError(
                    f"checkpointing.{next(iter(values))} was set, and the program takes no checkpoints",
                    hint="set checkpointing.directory, too",
                )
            else:
                chosen[name] = _GROUPS[name](**values)
        return chosen


_RUNNING: ContextVar[Overrides | None] = ContextVar("penstock_overrides", default=None)


@contextmanager
def in_place_of_arguments(overrides: Overrides) -> Iterator[None]:
    """Environments that are made in this block have these values instead of their arguments."""
    before = _RUNNING.set(overrides)
    try:
        yield
    finally:
        _RUNNING.reset(before)


def overridden(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of an environment that is being made, with what `penstock run` was given instead."""
    overrides = _RUNNING.get()
    return given if overrides is None else overrides.put_into(given)


def known_keys() -> list[str]:
    """All keys that `read_overrides` takes, but for those of Spark."""
    return sorted([*_WHOLE, *(f"{group}.{name}" for group, kind in _GROUPS.items() for name in _types_of(kind))])


def read_overrides(assignments: Sequence[str], **whole: Any) -> Overrides:
    """Read `key=value` texts. Values of `whole` that are None are left out. Raises `SettingsError`, with all problems
    at once."""
    problems: list[str] = []
    found: dict[str, Any] = {name: value for name, value in whole.items() if value is not None}
    parts: dict[str, dict[str, Any]] = {}
    spark: dict[str, str] = {}
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        group, _, name = key.partition(".")
        if not separator or not key:
            problems.append(f"{assignment!r} is no setting; write key=value")
        elif key.startswith(SPARK):
            spark[key] = text
        elif key in _WHOLE:
            found[key] = _read(key, text, _WHOLE[key], problems)
        elif group in _GROUPS and name in (known := _types_of(_GROUPS[group])):
            parts.setdefault(group, {})[name] = _read(key, text, known[name], problems)
        else:
            problems.append(f"no setting is called {key!r}{_near(key)}")
    if problems:
        raise SettingsError(problems)
    if found.get("restart") == "none":
        found["restart"] = NoRestart()
    return Overrides(whole=found, parts=parts, spark=spark)


def _near(key: str) -> str:
    keys = known_keys()
    ends = {known.rpartition(".")[2]: known for known in reversed(keys)}
    near = get_close_matches(key, keys, n=1, cutoff=0.7)
    near = near or [ends[end] for end in get_close_matches(key.rpartition(".")[2], list(ends), n=1, cutoff=0.7)]
    return f"; did you mean {near[0]!r}?" if near else f"; the settings are {', '.join(keys)}"


def _types_of(kind: type) -> dict[str, Any]:
    if not is_dataclass(kind):
        return {}
    hints = get_type_hints(kind)
    # A key in the command would be seen by all users of the host.
    return {one.name: hints[one.name] for one in fields(kind) if one.name != "seal"}


def _read(key: str, text: str, kind: Any, problems: list[str]) -> Any:
    kinds = _flat(kind)
    if text.lower() == "none" and types.NoneType in kinds:
        return None
    choices = [value for each in kinds if get_origin(each) is Literal for value in get_args(each)]
    if bool in kinds:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        problems.append(f"{key} is {text!r}; give true or false")
    elif int in kinds and str not in kinds:
        try:
            return int(text.replace("_", ""))
        except ValueError:
            problems.append(f"{key} is {text!r}; give a whole number")
    elif choices and str not in kinds and text not in choices:
        problems.append(f"{key} is {text!r}; choose one of {', '.join(map(repr, choices))}")
    return text


def _flat(kind: Any) -> list[Any]:
    if get_origin(kind) in (Union, types.UnionType):
        return [inner for each in get_args(kind) for inner in _flat(each)]
    return [kind]
