"""The partial matches of one key: how they grow, run out of time, and are given up when a match is found.

The records of a key come in the order of event time. Partial matches share what they have taken: each holds the *link*
of its last record, and a link knows the link before. In the state links and records stand in lists, each once, however
many partial matches share them.

A condition that refers to earlier records is not computed here. `KeyMatches.run` is a generator: it hands out the
questions that a record raises, and is sent the answers. So the questions of many keys are answered together.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.api.pattern_steps import PatternShape, SkipKind
from penstock.core.errors import CorruptFile
from penstock.runtime.task.operators.pattern_automaton import START, Automaton

Row = dict[str, Any]
Record = tuple[int, Row | None]
"""The truths of a record, and the record; None if it fulfils no condition."""
Moment = tuple[int, Sequence[Record]]
"""A time, and the records of this time in the order in which they came."""


class Link:
    """A record that is taken, behind the records that were taken before."""

    __slots__ = ("before", "first", "first_time", "name", "number", "row", "time")

    def __init__(self, before: Link | None, name: int, record: tuple[int, int, Row]) -> None:
        self.before = before
        self.name = name
        self.number, self.time, self.row = record
        """The number of the record among the records of the key, its time and the record."""
        self.first: int = self.number if before is None else before.first
        """The number of the first record."""
        self.first_time: int = self.time if before is None else before.first_time

    def links(self) -> list[Link]:
        """All links from the first record to this record."""
        found, link = [self], self.before
        while link is not None:
            found.append(link)
            link = link.before
        found.reverse()
        return found


Partial = tuple[int, int, Link]
"""The place of a partial match, its open options and its last link."""
Question = tuple[int, Link | None]
"""The number of a condition, and the records that the condition may refer to."""
Asked = Generator[tuple[Row | None, list[Question]], list[bool], None]
"""Hands out a record with questions about the record, and takes the answers in the same order. There may be no
question: then the caller may look for other work."""

_HINT = "restore the job from another checkpoint or savepoint"
_MANY = 256
"""A key with more partial matches stops for other work at every record, and every key does so after so many records."""


@dataclass(frozen=True)
class Outcome:
    """A match, or a partial match that ran out of time."""

    moment: int
    """The number of the moment, among those that were given, at which this was certain."""
    last: Link
    is_match: bool = True


class KeyMatches:
    """The partial matches of a key, and the matches that wait for them."""

    def __init__(self, shape: PatternShape, automaton: Automaton, *, referring: int) -> None:
        """`referring` has the bits of the conditions that refer to earlier records."""
        self._shape = shape
        self._automaton = automaton
        self._referring = referring
        self._next = 0
        self._partials: list[Partial] = []
        self._found: list[Link] = []
        """Matches that wait: whether they are given up depends on partial matches that began before them."""
        self.outcomes: list[Outcome] = []
        self.deadlines: set[int] = set()
        """The times at which time runs out for what was taken."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be kept."""
        return not self._partials and not self._found

    def run(self, moments: Sequence[Moment]) -> Asked:
        """Take in the records of some moments, in the order of their times."""
        taken = 0
        for moment, (time, records) in enumerate(moments):
            self._run_out(moment, time)
            for record in records:
                truths, row = record
                taken += 1
                questions = self._questions(truths) if truths & self._referring else []
                if questions or len(self._partials) > _MANY or taken % _MANY == 0:
                    answers = yield row, [each for each, _ in questions]
                    self._take(moment, time, record, self._answered(truths, questions, answers))
                else:
                    self._take(moment, time, (truths & ~self._referring, row), None)

    def _questions(self, truths: int) -> list[tuple[Question, int]]:
        """The questions that a record with these truths raises, each with the number of the partial match that depends
        on the answer."""
        found: list[tuple[Question, int]] = []
        for number, (place, still_open, last) in enumerate([*self._partials, _start(self._automaton)]):
            asked = truths & self._referring & self._automaton.asked(place, still_open)
            while asked:
                bit = asked & -asked
                found.append(((bit.bit_length() - 1, last), number))
                asked ^= bit
        return found

    def _answered(self, truths: int, questions: list[tuple[Question, int]], answers: list[bool]) -> list[int]:
        """Which conditions the record fulfils, as bits: for each partial match, because conditions may refer to what
        the partial match has taken, and at last for a match that begins with the record."""
        found = [truths & ~self._referring] * (len(self._partials) + 1)
        for ((condition, _), number), answer in zip(questions, answers, strict=True):
            if answer:
                found[number] |= 1 << condition
        return found

    def _take(self, moment: int, time: int, record: Record, answered: list[int] | None) -> None:
        truths, row = record
        number, self._next = self._next, self._next + 1
        automaton, places = self._automaton, self._automaton.places
        kept, longer, complete = list[Partial](), list[Partial](), list[Link]()
        begins = _start(automaton)
        for index, (place, still_open, last) in enumerate((*self._partials, begins)):
            true = truths if answered is None else answered[index]
            stays, taken = automaton.step(place, still_open, true)
            if stays and place != START:
                kept.append((place, stays, last))
            for each in taken:
                assert row is not None
                link = Link(None if place == START else last, each.name, (number, time, row))
                stands = places[each.place]
                if stands.is_complete:
                    complete.append(link)
                if stands.options:
                    longer.append((each.place, stands.all_open, link))
                    self._note_deadlines(each.place, link)
        self._partials = kept + longer
        if complete:
            self._add(complete)
        self._release(moment)

    def _note_deadlines(self, place: int, link: Link) -> None:
        if self._shape.within_us is not None and link.before is None:
            self.deadlines.add(link.time + self._shape.within_us)
        self.deadlines.update(link.time + gap for gap in self._automaton.gaps(place))

    # --- time ------------------------------------------------------------------------------

    def _run_out(self, moment: int, time: int) -> None:
        """Give up what cannot become a match any more because it is `time`, or make a match of it."""
        automaton, within_us = self._automaton, self._shape.within_us
        kept, complete, given_up = list[Partial](), list[Link](), list[Link]()
        for place, still_open, last in self._partials:
            if within_us is not None and time - last.first_time >= within_us:
                stays, is_complete = 0, automaton.ends(place, still_open)
            else:
                stays, is_complete = automaton.after_gap(place, still_open, time - last.time)
            if is_complete:
                complete.append(last)
            elif not stays and not automaton.is_match(place, still_open):
                given_up.append(last)
            if stays:
                kept.append((place, stays, last))
        self._partials = kept
        self.outcomes += [Outcome(moment, last, is_match=False) for last in sorted(given_up, key=_order)]
        self._add(complete)
        self._release(moment)

    # --- what is found ---------------------------------------------------------------------

    def _add(self, complete: list[Link]) -> None:
        self._found += sorted(complete, key=_order)
        # Of matches that begin with the same record, those that were found earlier come first.
        self._found.sort(key=lambda last: last.first)

    def _release(self, moment: int) -> None:
        """Hand on the matches that no earlier match can skip any more, and skip."""
        skip = self._shape.skip
        while self._found:
            found = self._found[0]
            if skip.waits and any(last.first < found.first for _, _, last in self._partials):
                return
            del self._found[0]
            self.outcomes.append(Outcome(moment, found))
            if skip.kind is not SkipKind.NONE:
                self._partials = [each for each in self._partials if not self._is_skipped(each[2], found)]
                self._found = [last for last in self._found if not self._is_skipped(last, found)]

    def _is_skipped(self, last: Link, found: Link) -> bool:
        """Whether something that began with the first record of `last` is given up because of a match."""
        skip = self._shape.skip
        match skip.kind:
            case SkipKind.TO_NEXT:
                return last.first == found.first
            case SkipKind.PAST_LAST:
                return last.first <= found.number
            case _:
                numbers = [link.number for link in found.links() if link.name == skip.name]
                return bool(numbers) and last.first < numbers[0 if skip.kind is SkipKind.TO_FIRST else -1]

    # --- state -----------------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        """All of this as one value of the state."""
        places: dict[int, int] = {}
        records: dict[int, int] = {}
        rows: list[dict[str, Any]] = []
        taken: list[dict[str, int]] = []

        def place_of(last: Link) -> int:
            waiting, link = [], last
            while id(link) not in places:
                waiting.append(link)
                if link.before is None:
                    break
                link = link.before
            for each in reversed(waiting):
                if each.number not in records:
                    records[each.number] = len(rows)
                    rows.append({"number": each.number, "time": each.time, "record": each.row})
                places[id(each)] = len(taken)
                before = -1 if each.before is None else places[id(each.before)]
                taken.append({"before": before, "name": each.name, "record": records[each.number]})
            return places[id(last)]

        partials = [{"place": p, "open": still_open, "last": place_of(last)} for p, still_open, last in self._partials]
        found = [{"last": place_of(last)} for last in self._found]
        return {"next": self._next, "records": rows, "taken": taken, "partials": partials, "found": found}

    def load(self, saved: dict[str, Any]) -> None:
        """Go on from a value of the state. Raises `CorruptFile`: the value may come from a snapshot that anybody
        wrote."""
        try:
            self._load(saved)
        except (IndexError, TypeError) as error:
            raise CorruptFile(f"partial matches of a pattern cannot be read: {error}", hint=_HINT) from error

    def _load(self, saved: dict[str, Any]) -> None:
        records = [(each["number"], each["time"], each["record"]) for each in saved["records"]]
        links: list[Link] = []
        for each in saved["taken"]:
            before, name, record = each["before"], each["name"], each["record"]
            if name not in self._automaton.taking_names or record < 0 or records[record][2] is None:
                raise IndexError(f"name {name} takes record {record}, and there is no such name or record")
            links.append(Link(None if before < 0 else links[before], name, records[record]))
        self._next = saved["next"]
        self._partials = [(each["place"], each["open"], links[each["last"]]) for each in saved["partials"]]
        self._found = [links[each["last"]] for each in saved["found"]]
        places = self._automaton.places
        for place, still_open, _ in self._partials:
            if not START < place < len(places) or not 0 <= still_open <= places[place].most_open:
                raise IndexError(f"there is no place {place} with the open options {still_open}")


def rows_by_name(last: Link, names: int) -> list[list[Row]]:
    """The records of a match for each number of a name, in their order."""
    found: list[list[Row]] = [[] for _ in range(names)]
    for link in last.links():
        found[link.name].append(link.row)
    return found


def rows_taken(last: Link | None, name: int) -> Iterator[Row]:
    """The records that were taken by a name, the last record first."""
    while last is not None:
        if last.name == name:
            yield last.row
        last = last.before


_NOTHING: Any = None


def _start(automaton: Automaton) -> Partial:
    """What stands for a match that begins."""
    return START, automaton.places[START].all_open, _NOTHING


def _order(last: Link) -> tuple[int, list[int], list[int]]:
    """Matches that are found together come in the order of their first records; then that match comes first that takes
    an earlier record, or takes the same record by an earlier step."""
    links = last.links()
    return last.first, [link.number for link in links], [link.name for link in links]
