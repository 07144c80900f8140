"""Numbers the deletions, and counts the checkpoints among them: too many at once hold back new checkpoints."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.coordinator.effects import DeleteFiles


class Cleaner:
    """Deletions that are under way."""

    def __init__(self) -> None:
        self._next_number = 1
        self._checkpoints: set[int] = set()
        self._leftovers: set[int] = set()

    def clean_checkpoint(self, paths: Iterable[str], folder: str | None, root: str | None = None) -> list[DeleteFiles]:
        """Delete what belongs to one checkpoint; paths begin at `root`. Counts until it has ended."""
        return self._delete(self._checkpoints, paths, folder, root)

    def clean_leftovers(self, paths: Iterable[str], root: str | None = None) -> list[DeleteFiles]:
        """Delete single files; paths begin at `root`. Does not count."""
        return self._delete(self._leftovers, paths, None, root)

    def _delete(
        self, ongoing: set[int], given: Iterable[str], folder: str | None, root: str | None
    ) -> list[DeleteFiles]:
        paths = tuple(dict.fromkeys(given))
        if not paths and folder is None:
            return []
        number = self._next_number
        self._next_number += 1
        ongoing.add(number)
        return [DeleteFiles(cleaning=number, paths=paths, folder=folder, root=root)]

    def ended(self, cleaning: int) -> None:
        """A deletion has ended, in success or not. Saying it twice does no harm."""
        self._checkpoints.discard(cleaning)
        self._leftovers.discard(cleaning)

    @property
    def num_checkpoints(self) -> int:
        """How many checkpoints are being deleted."""
        return len(self._checkpoints)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being deleted."""
        return not self._checkpoints and not self._leftovers
