"""How a user asks for checkpoints."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal, TypeVar

from penstock.api.durations import Duration, duration_ms_or_problem
from penstock.core.errors import SettingsError
from penstock.core.recovery import roots
from penstock.settings import CheckpointSettings, Mode, Retention

ChoiceT = TypeVar("ChoiceT", bound=Enum)

_DEFAULTS = CheckpointSettings()


@dataclass(frozen=True, kw_only=True)
class Checkpointing:
    """When checkpoints are taken, how, and where they are kept.

    Everything is checked when it is made; `SettingsError` lists all that is wrong.
    """

    directory: str | os.PathLike[str]
    """A folder that the driver and all executors have mounted, or the URI of one that they can reach:
    `s3://bucket/folder`, `gs://`, `hdfs://`. A relative path starts at the driver's current folder."""
    interval: Duration | None = "1s"
    """A checkpoint is triggered every so often. None: only on request and at the end."""
    timeout: Duration = "10 min"
    """A checkpoint that is not complete after this long is aborted."""
    min_pause: Duration = "0s"
    """Least time between the completion of one checkpoint and the next periodic trigger."""
    max_concurrent: int = 1
    """How many checkpoints may be under way at once."""
    tolerable_failures: int | None = 0
    """How many checkpoints in a row may fail before the job does. None: any number."""
    mode: Literal["exactly-once", "at-least-once"] = "exactly-once"
    """At least once never blocks a channel, and may count records twice after a failure."""
    unaligned: bool = False
    """Barriers overtake data, which is then saved with the checkpoint: fast under back-pressure."""
    aligned_timeout: Duration | None = None
    """With `unaligned`: start aligned and turn unaligned when a barrier is older than this."""
    retain: int = 1
    """How many completed checkpoints are kept while the job runs."""
    keep: Literal["delete", "keep-on-failure", "keep"] = "delete"
    """What happens to them when the job ends without having finished its data: they are deleted, kept if the job
    failed, or kept after a cancel too."""
    hook_timeout: Duration = "30s"
    """A checkpoint hook that has not returned after this long fails the checkpoint, or the attempt that waits for it to
    be restored."""
    local_copies_bytes: int = _DEFAULTS.local_copies_bytes
    """Each slot keeps copies of up to this much of what it writes, on its own machine, and reads its state from there
    when another slot has failed. 0: none."""

    def __post_init__(self) -> None:
        reading = _Reading()
        reading.location(self.directory)
        settings = self._read(reading)
        # The relations between values mean something only when each of them could be read.
        if not reading.problems:
            reading.problems += settings.problems()
        if reading.problems:
            raise SettingsError(reading.problems)

    @property
    def settings(self) -> CheckpointSettings:
        """The same in the form that a job carries."""
        return self._read(_Reading())

    @property
    def location(self) -> str:
        """The directory as an absolute path, or the URI that was given."""
        return _Reading().location(self.directory)

    def _read(self, reading: _Reading) -> CheckpointSettings:
        return CheckpointSettings(
            interval_ms=reading.optional_ms("interval", self.interval),
            timeout_ms=reading.ms("timeout", self.timeout, default=_DEFAULTS.timeout_ms),
            min_pause_ms=reading.ms("min_pause", self.min_pause, default=_DEFAULTS.min_pause_ms),
            max_concurrent=reading.whole("max_concurrent", self.max_concurrent, least=1),
            tolerable_failures=(
                None
                if self.tolerable_failures is None
                else reading.whole("tolerable_failures", self.tolerable_failures, least=0)
            ),
            mode=reading.choice("mode", self.mode, default=Mode.EXACTLY_ONCE),
            unaligned=reading.flag("unaligned", self.unaligned),
            aligned_timeout_ms=reading.optional_ms("aligned_timeout", self.aligned_timeout),
            num_retained=reading.whole("retain", self.retain, least=1),
            retention=reading.choice("keep", self.keep, default=Retention.DELETE),
            hook_timeout_ms=reading.ms("hook_timeout", self.hook_timeout, default=_DEFAULTS.hook_timeout_ms),
            local_copies_bytes=reading.whole("local_copies_bytes", self.local_copies_bytes, least=0),
        )


class _Reading:
    """Takes what the user gave, value by value, and gathers what is wrong instead of stopping at the first."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def location(self, given: object) -> str:
        path = os.fspath(given) if isinstance(given, os.PathLike) else given
        if not isinstance(path, str) or not path.strip():
            self.problems.append(f"directory is {given!r}; give the path of a folder, or its URI")
            return ""
        problem = roots.problem_with(path)
        if problem is not None:
            self.problems.append(f"directory: {problem}")
            return ""
        return path if roots.scheme_of(path) is not None else str(Path(path).expanduser().absolute())

    def ms(self, argument: str, given: Duration, *, default: int) -> int:
        found = duration_ms_or_problem(given, argument=argument, problems=self.problems)
        return default if found is None else found

    def optional_ms(self, argument: str, given: Duration | None) -> int | None:
        if given is None:
            return None
        return duration_ms_or_problem(given, argument=argument, problems=self.problems)

    def whole(self, argument: str, given: object, *, least: int) -> int:
        if isinstance(given, int) and not isinstance(given, bool) and given >= least:
            return given
        self.problems.append(f"{argument} is {given!r}; give a whole number from {least}")
        return least

    def flag(self, argument: str, given: object) -> bool:
        if isinstance(given, bool):
            return given
        self.problems.append(f"{argument} is {given!r}; give True or False")
        return False

    def choice(self, argument: str, given: object, *, default: ChoiceT) -> ChoiceT:
        for member in type(default):
            if member.value == given:
                return member
        values = ", ".join(repr(member.value) for member in type(default))
        self.problems.append(f"{argument} is {given!r}; choose one of {values}")
        return default
