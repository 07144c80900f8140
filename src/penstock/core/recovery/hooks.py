"""Hooks on their way back: whose state is whose, and whether all have come back before tasks are deployed.

    begin ── every hook has answered ──► tasks are deployed
       └──── one fails, or the time is over ──► the attempt fails

An attempt that ends meanwhile leaves its hooks to themselves: what they answer then is of another epoch.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.errors import UsageError
from penstock.core.graph import CheckpointGraph
from penstock.core.ids import Epoch, Instant
from penstock.core.recovery.metadata import CheckpointMetadata, MatchingRules, Unmatched


def hook_states(metadata: CheckpointMetadata, graph: CheckpointGraph, rules: MatchingRules) -> dict[str, bytes]:
    """What each hook of the graph starts from; those without state are left out. Raises `UsageError` for state of a
    hook that the graph does not have, if the rules say so."""
    kept = {hook: state for hook, state in metadata.hooks.items() if hook not in rules.drop}
    unwanted = [hook for hook in kept if hook not in graph.hooks]
    if unwanted and rules.unmatched is Unmatched.REFUSE:
        raise UsageError(
            f"{metadata.title} has state of hooks that the program does not have: {', '.join(unwanted)}",
            hint="add the hooks, by the names they had; or drop their state, or allow state that nobody wants",
        )
    return {hook: kept[hook] for hook in graph.hooks if hook in kept}


class HookRestores:
    """Who is still missing."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._epoch: Epoch | None = None
        self._missing: dict[str, None] = {}
        self._until: Instant | None = None

    def begin(self, hooks: Iterable[str], epoch: Epoch, now: Instant) -> None:
        """These were told to come back, for an attempt."""
        self._epoch = epoch
        self._missing = dict.fromkeys(hooks)
        self._until = Instant(now + self._timeout_ms)

    def is_wanted(self, hook: str, epoch: Epoch) -> bool:
        """Whether an answer of this hook is waited for."""
        return epoch == self._epoch and hook in self._missing

    def restored(self, hook: str) -> bool:
        """A hook whose answer is wanted has come back; whether all have."""
        del self._missing[hook]
        if not self._missing:
            self.give_up()
        return self._epoch is None

    def late(self, now: Instant) -> list[str]:
        """Those whose time is over. They are not waited for any more."""
        if self._until is None or now < self._until:
            return []
        late = list(self._missing)
        self.give_up()
        return late

    def give_up(self) -> None:
        """Nobody is waited for any more."""
        self._epoch, self._until = None, None
        self._missing = {}

    def next_deadline(self) -> Instant | None:
        """When `late` must be looked at."""
        return self._until
