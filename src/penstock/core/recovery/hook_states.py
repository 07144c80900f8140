"""The restore of hooks: which hook gets which state, and whether all hooks are restored before tasks are deployed.

    begin ── every hook has answered ──► tasks are deployed
       └──── a hook fails, or the time is over ──► the attempt fails

If the attempt ends meanwhile, the hooks are not waited for: a later answer carries the epoch of the ended attempt and
does not count.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.errors import UsageError
from penstock.core.graph import CheckpointGraph
from penstock.core.ids import Epoch, Instant
from penstock.core.recovery.metadata import CheckpointMetadata, MatchingRules, Unmatched


def hook_states(metadata: CheckpointMetadata, graph: CheckpointGraph, rules: MatchingRules) -> dict[str, bytes]:
    """The state that each hook of the graph starts from. Hooks without state are left out. Raises `UsageError` for the
    state of a hook that the graph does not have, if the rules refuse such state."""
    kept = {hook: state for hook, state in metadata.hooks.items() if hook not in rules.drop}
    unwanted = [hook for hook in kept if hook not in graph.hooks]
    if unwanted and rules.unmatched is Unmatched.REFUSE:
        raise UsageError(
            f"{metadata.title} has state of hooks that the program does not have: {', '.join(unwanted)}",
            hint="add the hooks under these names; or drop their state, by ps.restore(..., drop=[...]); or leave the "
            "state unread, by ps.restore(..., unmatched='ignore')",
        )
    return {hook: kept[hook] for hook in graph.hooks if hook in kept}


class HookRestores:
    """The hooks that have not answered yet."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._epoch: Epoch | None = None
        self._missing: dict[str, None] = {}
        self._until: Instant | None = None

    def begin(self, hooks: Iterable[str], epoch: Epoch, now: Instant) -> None:
        """These hooks were told to restore their state, for the attempt of this epoch."""
        self._epoch = epoch
        self._missing = dict.fromkeys(hooks)
        self._until = Instant(now + self._timeout_ms)

    def is_wanted(self, hook: str, epoch: Epoch) -> bool:
        """Whether an answer of this hook is waited for."""
        return epoch == self._epoch and hook in self._missing

    def restored(self, hook: str) -> bool:
        """A hook whose answer is waited for has restored its state. Returns whether all hooks have."""
        del self._missing[hook]
        if not self._missing:
            self.give_up()
        return self._epoch is None

    def late(self, now: Instant) -> list[str]:
        """The hooks whose time is over. No hook is waited for any more after that."""
        if self._until is None or now < self._until:
            return []
        late = list(self._missing)
        self.give_up()
        return late

    def give_up(self) -> None:
        """No hook is waited for any more."""
        self._epoch, self._until = None, None
        self._missing = {}

    def next_deadline(self) -> Instant | None:
        """When `late` must be called; None if no hook is waited for."""
        return self._until
