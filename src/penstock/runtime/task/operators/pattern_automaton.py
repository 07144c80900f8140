"""Which records a partial match may take next, as a table of places and options.

A partial match that has taken something stands in a *place*: the step that took the last record, and how many records
the step has taken. A place has *options*: to take another record by the same step, to take a record by a later step, or
to end when time is over. Each option is open at first. A record that comes may be taken by an open option, which makes
a longer partial match in another place; and it may close options of the shorter partial match, which stays. A partial
match without an open option is given up. So a record is taken exactly as the words of the pattern say:

* an option that must be `next` is closed by every record;
* an option that is `followed_by` is closed by a record that it takes, since no later record may be taken in its place;
* an option that is `followed_by_any` stays open;
* a record that is refused, and a record that ends a step by `until`, closes an option and is not taken by it;
* a record that a greedy step takes closes the options of all later steps, and is not taken by them.

Nothing here depends on records: what a record does follows from its truths. So transitions are remembered.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.api.pattern_steps import Contiguity, PatternShape, Refusal, StepShape

START = 0
"""The place before the first record."""

_REMEMBERED = 65_536


@dataclass(frozen=True, kw_only=True)
class Option:
    """One way to go on from a place."""

    target: int
    """The place behind the record that is taken; `START` if the option only waits for time to be over."""
    contiguity: Contiguity
    conditions: tuple[int, ...] = ()
    """The numbers of the conditions of the alternatives. Without conditions nothing is taken."""
    names: tuple[int, ...] = ()
    until: int | None = None
    refused: tuple[Refusal, ...] = ()
    is_greedy: bool = False
    gap_us: int | None = None

    @property
    def is_end(self) -> bool:
        """Whether the match is complete when time is over."""
        return not self.conditions


@dataclass(frozen=True)
class Taken:
    """A record is taken by a name."""

    place: int
    name: int


@dataclass(frozen=True)
class Place:
    """What a partial match may do."""

    options: tuple[Option, ...]
    is_complete: bool
    """Whether the records that are taken are a match."""

    @property
    def all_open(self) -> int:
        """All options are open, and no record has come since."""
        return self.is_next | self.is_next - 1

    @property
    def is_next(self) -> int:
        """The bit behind the bits of the options: no record has come since."""
        return 1 << len(self.options)

    @property
    def was_complete(self) -> int:
        """The bit that says that the records that are taken became a match when time was over."""
        return 2 << len(self.options)

    @property
    def most_open(self) -> int:
        """The greatest number that these bits make."""
        return (4 << len(self.options)) - 1


class Automaton:
    """The places of a pattern, and what a record does in a place."""

    def __init__(self, shape: PatternShape) -> None:
        self._shape = shape
        self.taking_names = frozenset(name for step in shape.steps for name in step.names)
        """The numbers of the names by which records are taken."""
        self._first_place: list[int] = []
        number = START + 1
        for step in shape.steps:
            self._first_place.append(number)
            number += _counts(step)
        self.places = (self._start(), *self._places())
        self._gaps = tuple(
            frozenset(each.gap_us for each in place.options if each.gap_us is not None) for place in self.places
        )
        self._steps: dict[tuple[int, int, int], tuple[int, tuple[Taken, ...]]] = {}
        self._asked: dict[tuple[int, int], int] = {}

    # --- the table -------------------------------------------------------------------------

    def _start(self) -> Place:
        return Place(tuple(self._options_behind(-1)), is_complete=False)

    def _places(self) -> list[Place]:
        found = []
        for number, step in enumerate(self._shape.steps):
            for count in range(1, _counts(step) + 1):
                options = []
                if step.most is None or count < step.most:
                    options.append(self._again(number, count))
                enough = count >= step.least
                options += self._options_behind(number) if enough else []
                is_last = all(later.is_optional for later in self._shape.steps[number + 1 :])
                found.append(Place(tuple(options), is_complete=enough and is_last and not self._shape.refused_at_end))
        return found

    def _again(self, number: int, count: int) -> Option:
        step = self._shape.steps[number]
        return Option(
            target=self._first_place[number] + min(count, _counts(step) - 1),
            contiguity=step.inner,
            conditions=step.conditions,
            names=step.names,
            until=step.until,
            is_greedy=step.is_greedy,
            gap_us=step.gap_us,
        )

    def _options_behind(self, number: int) -> list[Option]:
        """The options to go on with a later step than this; -1 stands for the start, where every record may be the
        first."""
        found, refused = [], tuple[Refusal, ...]()
        for later in range(number + 1, len(self._shape.steps)):
            step = self._shape.steps[later]
            refused += step.refused
            found.append(
                Option(
                    target=self._first_place[later],
                    contiguity=step.contiguity if number >= 0 else Contiguity.FOLLOWED_BY_ANY,
                    conditions=step.conditions,
                    names=step.names,
                    until=step.until,
                    refused=refused if number >= 0 else (),
                    is_greedy=step.is_greedy,
                    gap_us=step.gap_us if number >= 0 else None,
                )
            )
            if not step.is_optional:
                return found
        if self._shape.refused_at_end and number >= 0:
            end = Option(
                target=START,
                contiguity=Contiguity.FOLLOWED_BY_ANY,
                refused=refused + self._shape.refused_at_end,
                gap_us=self._shape.end_gap_us,
            )
            found.append(end)
        return found

    # --- what a record does ----------------------------------------------------------------

    def asked(self, place: int, still_open: int) -> int:
        """The conditions that matter to a partial match in a place with these open options, as bits."""
        found = self._asked.get((place, still_open))
        if found is None:
            found = 0
            for number, option in enumerate(self.places[place].options):
                if still_open >> number & 1:
                    for condition in (*option.conditions, *(each.condition for each in option.refused)):
                        found |= 1 << condition
                    found |= 0 if option.until is None else 1 << option.until
            self._asked[place, still_open] = found
        return found

    def step(self, place: int, still_open: int, truths: int) -> tuple[int, tuple[Taken, ...]]:
        """What a record with these truths does to a partial match in a place with these open options: the options that
        stay open, 0 if none, and how the record is taken."""
        found = self._steps.get((place, still_open, truths))
        if found is None:
            if len(self._steps) >= _REMEMBERED:
                self._steps.clear()
            found = self._steps[place, still_open, truths] = self._computed(place, still_open, truths)
        return found

    def _computed(self, place: int, still_open: int, truths: int) -> tuple[int, tuple[Taken, ...]]:
        stands = self.places[place]
        is_next = bool(still_open & stands.is_next)
        stays, taken, is_taken_greedily = 0, list[Taken](), False
        for number, option in enumerate(stands.options):
            if not still_open >> number & 1 or is_taken_greedily or _is_closed(option, truths, is_next=is_next):
                continue
            names = (name for name, each in zip(option.names, option.conditions, strict=True) if truths >> each & 1)
            name = next(names, None)
            if name is not None:
                taken.append(Taken(option.target, name))
                is_taken_greedily = option.is_greedy
            if option.contiguity is Contiguity.FOLLOWED_BY_ANY or (
                option.contiguity is Contiguity.FOLLOWED_BY and name is None
            ):
                stays |= 1 << number
        return (stays | still_open & stands.was_complete if stays else 0), tuple(taken)

    # --- what time does --------------------------------------------------------------------

    def gaps(self, place: int) -> frozenset[int]:
        """How long after the last record options of a place run out of time."""
        return self._gaps[place]

    def after_gap(self, place: int, still_open: int, elapsed_us: int) -> tuple[int, bool]:
        """The options that stay open so long after the last record, 0 if none, and whether the match is complete by
        that."""
        stands, stays, is_complete = self.places[place], still_open, False
        for number, option in enumerate(stands.options):
            if still_open >> number & 1 and option.gap_us is not None and elapsed_us >= option.gap_us:
                stays &= ~(1 << number)
                is_complete = is_complete or option.is_end
        if not stays & (stands.is_next - 1):
            return 0, is_complete
        return stays | (stands.was_complete if is_complete else 0), is_complete

    def is_match(self, place: int, still_open: int) -> bool:
        """Whether the records that are taken have been a match."""
        stands = self.places[place]
        return stands.is_complete or bool(still_open & stands.was_complete)

    def ends(self, place: int, still_open: int) -> bool:
        """Whether the match is complete when the time for all of it is over."""
        options = self.places[place].options
        return any(option.is_end and still_open >> number & 1 for number, option in enumerate(options))


def _counts(step: StepShape) -> int:
    """How many places a step has. How many records beyond the least number are taken does not matter if any number may
    be taken."""
    return step.least if step.most is None else step.most


def _is_closed(option: Option, truths: int, *, is_next: bool) -> bool:
    """Whether a record closes an option by being there."""
    if option.until is not None and truths >> option.until & 1:
        return True
    return any(truths >> each.condition & 1 and (is_next or not each.only_next) for each in option.refused)
