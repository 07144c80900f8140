"""What is known of the slots of a job: those that run it, those that are to run it, those that stand by, and those on
their way out.

    asked for ──► additional ──► member ──► departing ──► gone
        │             └── the job does not need it after all ──┘
        └───────► standby ─────► member, in the place of one that died

A member has a *place*: the subtasks that it runs. Its number says who it is, and is the place only as long as no
standby has come in. A number that is used again gets the next incarnation, so that news of who had it before changes
nothing.
"""

from __future__ import annotations

from penstock.core.ids import Epoch, Instant, SlotId, SlotIndex
from penstock.core.job.events import FailureCause, StartSlot, StopSlot, TellLeave
from penstock.core.job.stuck import Stuckness
from penstock.settings import SlotSettings

LEAVE_TIMEOUT_MS = 5_000


class SlotState:
    """What is known of one slot."""

    def __init__(self, slot: SlotId, now: Instant) -> None:
        self.slot = slot
        self.registered = False
        self.left = False
        self.heard: Instant = now
        self.missing_since: Instant = now
        """When it was first asked for, or lost, if it is not there: who has its number next is as late."""
        self.waits = False
        """It is not asked for yet, as the one before it could not be started."""
        self.failed_starts = 0
        """How many times in a row it was gone before it called in."""
        self.start_error = ""
        """Why, the last time."""
        self.clean_up_to = Epoch(0)
        """No task of an epoch up to this one runs there."""
        self.ready_for = Epoch(0)
        self.stuck = Stuckness()

    def arrive(self, now: Instant) -> None:
        """Its process has called in."""
        self.registered = True
        self.failed_starts, self.start_error = 0, ""
        self.heard = now

    def lose(self, error: str, now: Instant) -> None:
        """Its process is gone, or could not be started."""
        if self.registered:
            self.missing_since = now
        else:
            self.failed_starts += 1
            self.start_error = error
        self.registered = False
        self.stuck.end()
        self.heard = now

    def begin_again(self, now: Instant) -> None:
        """As if it had been missing only since now."""
        self.missing_since = now
        self.failed_starts, self.start_error = 0, ""


class SlotStates:
    """Every slot that the job knows of."""

    def __init__(self, first_incarnation: int, settings: SlotSettings) -> None:
        self._settings = settings
        self.members: dict[int, SlotState] = {}
        """By their places."""
        self.additional: dict[SlotIndex, SlotState] = {}
        """Asked for, for a parallelism that the job does not have yet. By their numbers, as all below."""
        self.standbys: dict[SlotIndex, SlotState] = {}
        """There to take the place of a member that dies."""
        self.departing: dict[SlotId, Instant] = {}
        """Told to leave, while the job goes on; until when they may."""
        self._incarnations: dict[SlotIndex, int] = {}
        self._first_incarnation = first_incarnation
        self._numbers: dict[SlotIndex, SlotState] = {}
        """Members, additional ones and standbys."""

    @property
    def in_order(self) -> list[SlotState]:
        """The members, by place."""
        return [self.members[i] for i in sorted(self.members)]

    @property
    def watched(self) -> list[SlotState]:
        """Everybody who must be heard of: members, then the others."""
        others = {**self.additional, **self.standbys}
        return [*self.in_order, *(others[i] for i in sorted(others))]

    @property
    def missing(self) -> list[SlotState]:
        """The members that are not there."""
        return [known for known in self.in_order if not known.registered]

    @property
    def deadlines(self) -> list[Instant]:
        """When somebody must have been heard of, be there, or be gone."""
        heard = [Instant(s.heard + self._settings.heartbeat_timeout_ms) for s in self.watched if s.registered]
        return [*heard, *(self._start_deadline(known) for known in self.missing), *self.departing.values()]

    def _start_deadline(self, known: SlotState) -> Instant:
        return Instant(known.missing_since + self._settings.start_timeout_ms)

    @property
    def is_empty(self) -> bool:
        """Whether nobody is there any more."""
        others = (self.additional, self.standbys, self.departing)
        return all(known.left for known in self.members.values()) and not any(others)

    def of(self, number: SlotIndex) -> SlotState | None:
        """Whoever has that number."""
        return self._numbers.get(number)

    def current(self, slot: SlotId) -> SlotState | None:
        """The one that is just this one, and not an earlier or later one of its number."""
        known = self.of(slot.number)
        return known if known is not None and known.slot == slot else None

    def hosted(self, slot: SlotId) -> SlotState | None:
        """The one that the host means by this: it does not tell attempts of an incarnation from each other."""
        known = self.of(slot.number)
        return known if known is not None and known.slot[:2] == slot[:2] else None

    def place_of(self, member: SlotState) -> int:
        """The place of a member; -1 for who is none."""
        return next((place for place, known in self.members.items() if known is member), -1)

    def is_additional(self, known: SlotState) -> bool:
        """Whether the job is to run there, and does not yet."""
        return self.additional.get(known.slot.number) is known

    def is_standby(self, known: SlotState) -> bool:
        """Whether it only stands by."""
        return self.standbys.get(known.slot.number) is known

    def next_of(self, number: SlotIndex) -> SlotId:
        """The next incarnation of a number."""
        self._incarnations[number] = self._incarnations.get(number, self._first_incarnation - 1) + 1
        return SlotId(number, self._incarnations[number])

    def ask_for(self, known: SlotState) -> list[StartSlot]:
        """Ask for the next one of a member's number; later, if it is to wait."""
        known.slot = self.next_of(known.slot.number)
        return [] if known.waits else [StartSlot(slot=known.slot)]

    def ask_for_waiting(self) -> list[StartSlot]:
        """Those that were not asked for yet are, now."""
        waiting = [known for known in self.missing if known.waits]
        for known in waiting:
            known.waits = False
        return [StartSlot(slot=known.slot) for known in waiting]

    def late_to_start(self, now: Instant) -> list[SlotState]:
        """The members that should be there by now."""
        return [known for known in self.missing if now >= self._start_deadline(known)]

    def why_missing(self) -> FailureCause:
        """Too few slots are there: how many, which are not, and what is known of the reason."""
        missing, count = self.missing, len(self.members)
        names = ", ".join(str(known.slot.number) for known in missing)
        came, timeout_ms = count - len(missing), self._settings.start_timeout_ms
        text = f"only {came} of {count} slots came up in {timeout_ms} ms (missing: {names})"
        errors = [
            f"slot {known.slot.number} could not be started: {known.start_error}"
            for known in missing
            if known.start_error
        ]
        return FailureCause(text="; ".join([text, *errors[:1]]), lacks_room=not errors)

    def add_members(self, count: int, now: Instant) -> list[SlotState]:
        """The slots that the job starts with."""
        for place in range(count):
            self.members[place] = self._new(now)
        return self.in_order

    def add_additional(self, count: int, now: Instant) -> list[SlotState]:
        """As many as are missing for `count` members; those that are new."""
        added = [self._new(now) for _ in range(len(self.members), count)]
        self.additional = {known.slot.number: known for known in added}
        return added

    def add_standby(self, now: Instant) -> SlotState:
        """One more that stands by."""
        known = self._new(now)
        self.standbys[known.slot.number] = known
        return known

    def take_additional_in(self) -> None:
        """The additional ones become members."""
        for number in sorted(self.additional):
            self.members[len(self.members)] = self.additional[number]
        self.additional = {}

    def take_standby_in(self, lost: SlotState) -> SlotState | None:
        """A standby that is up gets the place of a member, whose number is free then; None if there is none."""
        ready = [self.standbys[i] for i in sorted(self.standbys) if self.standbys[i].registered]
        if not ready:
            return None
        self._replace(lost, ready[0])
        self._forget(lost)
        return ready[0]

    def exchange(self, standby: SlotState) -> None:
        """A standby that is up gets the place of a member that is not, which stands by when it comes up; if any."""
        for lost in self.missing[:1]:
            self._replace(lost, standby)
            if lost.waits:
                # It was not even asked for.
                self._forget(lost)
            else:
                self.standbys[lost.slot.number] = lost

    def _replace(self, member: SlotState, standby: SlotState) -> None:
        self.members[self.place_of(member)] = self.standbys.pop(standby.slot.number)

    def take_out(self, count: int) -> list[SlotState]:
        """Members from place `count` on are members no more."""
        taken = [self.members.pop(place) for place in sorted(self.members) if place >= count]
        return self._forget(*taken)

    def take_additional_out(self) -> list[SlotState]:
        """The additional ones are not needed."""
        taken = [self.additional[i] for i in sorted(self.additional)]
        self.additional = {}
        return self._forget(*taken)

    def take_standbys_out(self) -> list[SlotState]:
        """Nobody needs to stand by any more."""
        taken = [self.standbys[i] for i in sorted(self.standbys)]
        self.standbys = {}
        return self._forget(*taken)

    def dismiss(self, unneeded: list[SlotState], now: Instant) -> list[TellLeave | StopSlot]:
        """Let slots go that the job does not need, while it goes on."""
        effects: list[TellLeave | StopSlot] = []
        for known in unneeded:
            if known.registered:
                self.departing[known.slot] = Instant(now + LEAVE_TIMEOUT_MS)
                effects.append(TellLeave(slot=known.slot))
            else:
                effects.append(StopSlot(slot=known.slot))
        return effects

    def dismiss_all(self) -> list[TellLeave | StopSlot]:
        """Let all members go: the job ends."""
        effects: list[TellLeave | StopSlot] = []
        for known in self.in_order:
            # A slot that never called in cannot be told: it is stopped, and told again should it still call.
            if not known.waits:
                effects.append(TellLeave(slot=known.slot) if known.registered else StopSlot(slot=known.slot))
            known.left = not known.registered
        return effects

    def stop_all(self) -> list[StopSlot]:
        """Nobody is waited for any more."""
        late = [known.slot for known in self.in_order if not known.left] + list(self.departing)
        for known in self.in_order:
            known.left = True
        self.departing.clear()
        return [StopSlot(slot=slot) for slot in late]

    def depart(self, slot: SlotId) -> None:
        """The host says that one is gone, which may have been on its way out."""
        self.departing = {other: until for other, until in self.departing.items() if other[:2] != slot[:2]}

    def take_late_out(self, now: Instant) -> list[SlotId]:
        """Those on their way out that should be gone by now, and are not waited for any more."""
        late = [slot for slot, until in self.departing.items() if now >= until]
        for slot in late:
            del self.departing[slot]
        return late

    def lose(self, known: SlotState) -> None:
        """An additional one or a standby is gone."""
        self.additional.pop(known.slot.number, None)
        self.standbys.pop(known.slot.number, None)
        self._forget(known)

    def _new(self, now: Instant) -> SlotState:
        """With the lowest number that nobody has."""
        number = SlotIndex(0)
        while number in self._numbers:
            number = SlotIndex(number + 1)
        known = SlotState(self.next_of(number), now)
        self._numbers[number] = known
        return known

    def _forget(self, *gone: SlotState) -> list[SlotState]:
        for known in gone:
            del self._numbers[known.slot.number]
        return list(gone)
