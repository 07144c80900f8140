"""What is known of the slots of a job: those that run it, those that are to run it, and those on their way out.

    asked for ──► spare ──► member ──► departing ──► gone
                    └─── the job does not need it after all ───┘

A number that is used again gets the next incarnation, so that news of who had it before changes nothing.
"""

from __future__ import annotations

from penstock.core.ids import Epoch, Instant, SlotId, SlotIndex


class SlotState:
    """What is known of one slot."""

    def __init__(self, slot: SlotId, now: Instant) -> None:
        self.slot = slot
        self.registered = False
        self.left = False
        self.heard: Instant = now
        self.failed_starts = 0
        """How many times in a row it was gone before it called in."""
        self.clean_up_to = Epoch(0)
        """No task of an epoch up to this one runs there."""
        self.ready_for = Epoch(0)


class SlotStates:
    """Every slot that the job knows of, by its number."""

    def __init__(self, first_incarnation: int) -> None:
        self.members: dict[SlotIndex, SlotState] = {}
        self.spares: dict[SlotIndex, SlotState] = {}
        """Asked for, for a parallelism that the job does not have yet."""
        self.departing: dict[SlotId, Instant] = {}
        """Told to leave, while the job goes on; until when they may."""
        self._incarnations: dict[SlotIndex, int] = {}
        self._first_incarnation = first_incarnation

    @property
    def in_order(self) -> list[SlotState]:
        """The members, by number."""
        return [self.members[i] for i in sorted(self.members)]

    @property
    def watched(self) -> list[SlotState]:
        """Everybody who must be heard of: members, then spares."""
        return [*self.in_order, *(self.spares[i] for i in sorted(self.spares))]

    @property
    def is_empty(self) -> bool:
        """Whether nobody is there any more."""
        return all(known.left for known in self.members.values()) and not self.spares and not self.departing

    def of(self, number: SlotIndex) -> SlotState | None:
        """The member or spare of that number."""
        return self.members.get(number) or self.spares.get(number)

    def current(self, slot: SlotId) -> SlotState | None:
        """The member or spare that is just this one, and not an earlier or later one of its number."""
        known = self.of(slot.number)
        return known if known is not None and known.slot == slot else None

    def is_spare(self, known: SlotState) -> bool:
        """Whether the job does not run there yet."""
        return self.spares.get(known.slot.number) is known

    def next_of(self, number: SlotIndex) -> SlotId:
        """The next incarnation of a number."""
        self._incarnations[number] = self._incarnations.get(number, self._first_incarnation - 1) + 1
        return SlotId(number, self._incarnations[number])

    def add_members(self, count: int, now: Instant) -> list[SlotState]:
        """The slots that the job starts with."""
        self.members = {SlotIndex(i): SlotState(self.next_of(SlotIndex(i)), now) for i in range(count)}
        return self.in_order

    def add_spares(self, count: int, now: Instant) -> list[SlotState]:
        """As many spares as there must be for `count` members; those that are new."""
        numbers = [SlotIndex(i) for i in range(len(self.members), count)]
        self.spares = {number: SlotState(self.next_of(number), now) for number in numbers}
        return [self.spares[number] for number in numbers]

    def take_spares_in(self) -> None:
        """The spares become members."""
        self.members.update(self.spares)
        self.spares = {}

    def take_out(self, count: int) -> list[SlotState]:
        """Members from number `count` on are members no more."""
        numbers = [i for i in sorted(self.members) if i >= count]
        return [self.members.pop(number) for number in numbers]

    def take_spares_out(self) -> list[SlotState]:
        """The spares are not needed."""
        taken = [self.spares[i] for i in sorted(self.spares)]
        self.spares = {}
        return taken
