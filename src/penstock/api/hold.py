"""A driver's hold on its job, as enumerators and committers see it.

A driver that slept may have lost the job to another one without knowing. So whoever is about to do on the driver what
only the driver that has the job may do, asks first, right before. What has begun when the driver falls asleep cannot be
called back: that is why commits have ids.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.errors import JobTakenOver, StorageError

ASK_AGAIN_MS = 500
"""When it could not be found out whether this driver has the job, it is asked again after this time."""


class HoldUnknown(Exception):
    """Whether this driver still has the job could not be found out. Nothing was done; it is asked again later."""


class Hold:
    """Says whether this driver has the job. May be used from any thread."""

    def __init__(self, look: Callable[[], None] = lambda: None) -> None:
        """`look` raises `JobTakenOver` if another driver has the job, `StorageError` if it cannot tell. A job that ends
        with its driver needs none."""
        self.is_lost = False
        """Whether it is known that another driver has the job. Once lost, it stays lost."""
        self.has_let_go = False
        """Whether the driver has drawn its conclusions."""
        self._look = look

    def check(self) -> None:
        """Return if this driver has the job. Blocks. Raises `JobTakenOver` if it does not, `HoldUnknown` if nobody
        knows: both must be let through."""
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
        """Return unless another driver has the job for certain: for writing down what has been done already."""
        try:
            self.check()
        except HoldUnknown:
            return

    def let_go(self) -> None:
        """Have every `check` raise from here on."""
        self.is_lost = self.has_let_go = True


class Held:
    """Code of a connector, or of a user, that the driver calls only while it has the job."""

    hold: Hold = Hold()
    """Whether this driver still has the job. The driver looks before every call. A call that takes time first, and
    then does what only one driver may do, says `self.hold.check()` right before that, and lets through what `check`
    raises."""

    def bind_hold(self, hold: Hold) -> None:
        """The driver is about to use the object, and hands over its hold on the job. Called once, before any other
        call."""
        # The object may be a frozen dataclass.
        object.__setattr__(self, "hold", hold)
