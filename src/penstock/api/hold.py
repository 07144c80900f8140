"""A driver's hold on its job, as enumerators and committers see it.

A driver that slept may have lost the job to another driver without knowing. So code on the driver checks the hold right
before work that only the driver of the job may do. Work that has begun when the driver falls asleep cannot be called
back: that is why commits have ids.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.errors import JobTakenOver, StorageError

ASK_AGAIN_MS = 500
"""The pause before the hold is checked again, if a check could not find out whether this driver has the job."""


class HoldUnknown(Exception):
    """A check could not find out whether this driver still has the job. The work behind the check was not done; the
    hold is checked again later."""


class Hold:
    """Says whether this driver has the job. May be used from any thread."""

    def __init__(self, look: Callable[[], None] = lambda: None) -> None:
        """`look` raises `JobTakenOver` if another driver has the job, and `StorageError` if that could not be found
        out. A job that ends with its driver needs no `look`."""
        self.is_lost = False
        """Whether it is known that another driver has the job. A lost hold stays lost."""
        self.has_let_go = False
        """Whether the driver has let go of the job, after the hold was lost."""
        self._look = look

    def check(self) -> None:
        """Return if this driver has the job. Blocks. Raises `JobTakenOver` if another driver has the job, and
        `HoldUnknown` if that could not be found out. The caller must let both errors through."""
        if self.is_lost:
            raise JobTakenOver("another driver has taken the job over")
        try:
            self._look()
        except JobTakenOver:
            self.is_lost = True
            raise
        except StorageError as error:
            raise HoldUnknown(error.message) from error

    def check_unless_unknown(self) -> None:
        """Raise `JobTakenOver` only if another driver has the job for certain: for code that records work which is
        already done."""
        try:
            self.check()
        except HoldUnknown:
            return

    def let_go(self) -> None:
        """From this call on every `check` raises `JobTakenOver`."""
        self.is_lost = self.has_let_go = True


class Held:
    """Code of a connector, or of a user, that the driver calls only while the driver has the job."""

    hold: Hold = Hold()
    """Whether this driver still has the job. The driver checks the hold before every call. A method that takes time,
    and then does work that only one driver may do, calls `self.hold.check()` right before that work, and lets through
    what `check` raises."""

    def bind_hold(self, hold: Hold) -> None:
        """The driver is about to use the object, and hands over its hold on the job. Called once, before any other
        call."""
        # The object may be a frozen dataclass.
        object.__setattr__(self, "hold", hold)
