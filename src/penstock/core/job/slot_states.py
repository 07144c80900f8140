"""What is known of the slots of a job.

    asked for ──► additional ──► member ──► departing ──► gone
        │             └── the rescale is given up after all ──┘
        └───────► standby ─────► member, in the place of a lost slot

* A *member* runs tasks, or will run them with the next attempt. A member has a *place*: the number of its subtasks. The
  number of a member is its place only as long as no spare slot has taken a place over.
* An *additional* slot is started for a higher parallelism, and becomes a member when the job is rescaled.
* A *standby* is a spare slot.
* A *departing* slot was told to leave while the job goes on.

A number that is used again gets the next incarnation, so that news of an earlier slot with that number changes nothing.
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
        """When the slot was first asked for, or was lost. A further incarnation that is asked for in its place does not
        change this time."""
        self.waits = False
        """The host is not asked for the slot before the pause is over, because the last start failed."""
        self.failed_starts = 0
        """How many times in a row the slot was gone before it had called in."""
        self.start_error = ""
        """Why the last start failed."""
        self.clean_up_to = Epoch(0)
        """No task of an epoch up to this epoch runs in the slot."""
        self.ready_for = Epoch(0)
        self.stuck = Stuckness()
        self.loading = Stuckness()
        """What the slot has said of tasks that take long to load."""

    def arrive(self, now: Instant) -> None:
        """The process of the slot has called in."""
        self.registered = True
        self.failed_starts, self.start_error = 0, ""
        self.heard = now

    def lose(self, error: str, now: Instant) -> None:
        """The process of the slot is gone, or could not be started."""
        if self.registered:
            self.missing_since = now
        else:
            self.failed_starts += 1
            self.start_error = error
        self.registered = False
        self.stuck.end()
        self.loading.end()
        self.heard = now

    @property
    def is_at_work(self) -> bool:
        """Whether the slot has said what it is doing: it loads tasks, or its loop is in user code."""
        return bool(self.stuck.where or self.loading.where)

    def begin_again(self, now: Instant) -> None:
        """Count the slot as missing only since `now`."""
        self.missing_since = now
        self.failed_starts, self.start_error = 0, ""


class SlotStates:
    """Every slot that the job knows of."""

    def __init__(self, first_incarnation: int, settings: SlotSettings) -> None:
        self._settings = settings
        self.members: dict[int, SlotState] = {}
        """The members, by place."""
        self.additional: dict[SlotIndex, SlotState] = {}
        """Slots that are asked for, for a parallelism that the job does not have yet; by number."""
        self.standbys: dict[SlotIndex, SlotState] = {}
        """Spare slots, which take the place of a lost member; by number."""
        self.departing: dict[SlotId, Instant] = {}
        """Slots that were told to leave while the job goes on, and the time by which each of these slots must have
        left."""
        self._incarnations: dict[SlotIndex, int] = {}
        self._first_incarnation = first_incarnation
        self._numbers: dict[SlotIndex, SlotState] = {}
        """Members, additional slots and standbys, by number."""

    @property
    def in_order(self) -> list[SlotState]:
        """The members, by place."""
        return [self.members[i] for i in sorted(self.members)]

    @property
    def watched(self) -> list[SlotState]:
        """Every slot that must be heard of: the members by place, then additional slots and standbys by number."""
        others = {**self.additional, **self.standbys}
        return [*self.in_order, *(others[i] for i in sorted(others))]

    @property
    def missing(self) -> list[SlotState]:
        """The members that are not up."""
        return [known for known in self.in_order if not known.registered]

    @property
    def deadlines(self) -> list[Instant]:
        """The times by which a slot must have been heard of, must be up, or must have left."""
        heard = [Instant(s.heard + self._settings.heartbeat_timeout_ms) for s in self.watched if s.registered]
        return [*heard, *(self._start_deadline(known) for known in self.missing), *self.departing.values()]

    def _start_deadline(self, known: SlotState) -> Instant:
        return Instant(known.missing_since + self._settings.start_timeout_ms)

    @property
    def is_empty(self) -> bool:
        """Whether no slot is left."""
        others = (self.additional, self.standbys, self.departing)
        return all(known.left for known in self.members.values()) and not any(others)

    def of(self, number: SlotIndex) -> SlotState | None:
        """The slot with this number, whatever its incarnation; None if no slot has the number."""
        return self._numbers.get(number)

    def current(self, slot: SlotId) -> SlotState | None:
        """The slot with exactly this id; None if the slot with this number is another incarnation, or another process
        of the same incarnation."""
        known = self.of(slot.number)
        return known if known is not None and known.slot == slot else None

    def hosted(self, slot: SlotId) -> SlotState | None:
        """The slot with this number and incarnation, as the host knows slots. The host does not say how often the
        cluster has started an incarnation again."""
        known = self.of(slot.number)
        return known if known is not None and known.slot[:2] == slot[:2] else None

    def place_of(self, member: SlotState) -> int:
        """The place of a member; -1 if the slot is no member."""
        return next((place for place, known in self.members.items() if known is member), -1)

    def is_additional(self, known: SlotState) -> bool:
        """Whether the slot is an additional slot."""
        return self.additional.get(known.slot.number) is known

    def is_standby(self, known: SlotState) -> bool:
        """Whether the slot is a standby."""
        return self.standbys.get(known.slot.number) is known

    def next_of(self, number: SlotIndex) -> SlotId:
        """The id of the next slot with this number."""
        self._incarnations[number] = self._incarnations.get(number, self._first_incarnation - 1) + 1
        return SlotId(number, self._incarnations[number])

    def ask_for(self, known: SlotState) -> list[StartSlot]:
        """Ask for the next incarnation of a member. If the slot has to wait, the host is asked later."""
        known.slot = self.next_of(known.slot.number)
        return [] if known.waits else [StartSlot(slot=known.slot)]

    def ask_for_waiting(self) -> list[StartSlot]:
        """Ask for the members whose start had to wait."""
        waiting = [known for known in self.missing if known.waits]
        for known in waiting:
            known.waits = False
        return [StartSlot(slot=known.slot) for known in waiting]

    def late_to_start(self, now: Instant) -> list[SlotState]:
        """The members that are not up, and whose start time-out is over."""
        return [known for known in self.missing if now >= self._start_deadline(known)]

    def why_missing(self) -> FailureCause:
        """The failure that too few slots came up: how many came up, which slots are missing, and a known reason."""
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
        """Add the slots that the job starts with. Returns these slots."""
        for place in range(count):
            self.members[place] = self._new(now)
        return self.in_order

    def add_additional(self, count: int, now: Instant) -> list[SlotState]:
        """Add as many additional slots as are missing for `count` members. Returns these slots."""
        added = [self._new(now) for _ in range(len(self.members), count)]
        self.additional = {known.slot.number: known for known in added}
        return added

    def add_standby(self, now: Instant) -> SlotState:
        """Add a standby."""
        known = self._new(now)
        self.standbys[known.slot.number] = known
        return known

    def take_additional_in(self) -> None:
        """The additional slots become members."""
        for number in sorted(self.additional):
            self.members[len(self.members)] = self.additional[number]
        self.additional = {}

    def take_standby_in(self, lost: SlotState) -> SlotState | None:
        """A standby that is up gets the place of a lost member, and the number of the lost member becomes free. Returns
        the standby; None if no standby is up."""
        ready = [self.standbys[i] for i in sorted(self.standbys) if self.standbys[i].registered]
        if not ready:
            return None
        self._replace(lost, ready[0])
        self._forget(lost)
        return ready[0]

    def exchange(self, standby: SlotState) -> None:
        """A standby that is up gets the place of a missing member, if a member is missing. The missing member becomes a
        standby."""
        for lost in self.missing[:1]:
            self._replace(lost, standby)
            if lost.waits:
                # The host was not asked for the missing member, so no slot will come up that could stand by.
                self._forget(lost)
            else:
                self.standbys[lost.slot.number] = lost

    def _replace(self, member: SlotState, standby: SlotState) -> None:
        self.members[self.place_of(member)] = self.standbys.pop(standby.slot.number)

    def take_out(self, count: int) -> list[SlotState]:
        """The slots from place `count` on are members no more. Returns these slots."""
        taken = [self.members.pop(place) for place in sorted(self.members) if place >= count]
        return self._forget(*taken)

    def take_additional_out(self) -> list[SlotState]:
        """The additional slots are not needed any more. Returns these slots."""
        taken = [self.additional[i] for i in sorted(self.additional)]
        self.additional = {}
        return self._forget(*taken)

    def take_standbys_out(self) -> list[SlotState]:
        """Standbys are not needed any more. Returns these slots."""
        taken = [self.standbys[i] for i in sorted(self.standbys)]
        self.standbys = {}
        return self._forget(*taken)

    def dismiss(self, unneeded: list[SlotState], now: Instant) -> list[TellLeave | StopSlot]:
        """Let slots go that the job does not need, while the job goes on."""
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
            # A slot that has not called in cannot be told to leave: the slot is stopped. If the slot calls in all the
            # same, it is told to leave then.
            if not known.waits:
                effects.append(TellLeave(slot=known.slot) if known.registered else StopSlot(slot=known.slot))
            known.left = not known.registered
        return effects

    def stop_all(self) -> list[StopSlot]:
        """Stop every slot that has not left, and wait for no slot any more."""
        late = [known.slot for known in self.in_order if not known.left] + list(self.departing)
        for known in self.in_order:
            known.left = True
        self.departing.clear()
        return [StopSlot(slot=slot) for slot in late]

    def depart(self, slot: SlotId) -> None:
        """A slot is gone. If the slot was departing, it has left."""
        self.departing = {other: until for other, until in self.departing.items() if other[:2] != slot[:2]}

    def take_late_out(self, now: Instant) -> list[SlotId]:
        """The departing slots that should have left by `now`. These slots are not waited for any more."""
        late = [slot for slot, until in self.departing.items() if now >= until]
        for slot in late:
            del self.departing[slot]
        return late

    def lose(self, known: SlotState) -> None:
        """An additional slot or a standby is gone."""
        self.additional.pop(known.slot.number, None)
        self.standbys.pop(known.slot.number, None)
        self._forget(known)

    def _new(self, now: Instant) -> SlotState:
        """A slot with the lowest free number."""
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
