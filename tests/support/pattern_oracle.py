"""What the matches of a pattern are, by definition: every way to give records to steps is tried, and checked against
the words of the pattern. Nothing here goes from record to record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from penstock.api.pattern_steps import Contiguity, PatternShape, SkipKind

Prefix = tuple[tuple[int, int, int], ...]
"""Step, name and record of everything that is taken."""


@dataclass(frozen=True)
class Found:
    """A match, and when it is complete: behind a record, or at a time."""

    taken: Prefix
    time: int
    record: int
    """The last record that is needed; the number of all records if it is time that makes the match complete."""


class Oracle:
    """The matches of a pattern among the records of one key. `holds(condition, prefix, record)` says whether a
    condition is true; records are numbered in their order."""

    def __init__(self, shape: PatternShape, times: list[int], holds: Callable[[int, Prefix, int], bool]) -> None:
        self.shape = shape
        self.times = times
        self.holds = holds

    # --- words -------------------------------------------------------------------------------

    def name_of(self, step: int, prefix: Prefix, record: int) -> int | None:
        """The name by which a step would take a record: that of the first alternative that is true."""
        alternatives = self.shape.steps[step]
        for name, condition in zip(alternatives.names, alternatives.conditions, strict=True):
            if self.holds(condition, prefix, record):
                return name
        return None

    def candidates(self, prefix: Prefix) -> list[int]:
        """The steps that may take the next record, so far as counts and optional steps say."""
        steps = self.shape.steps
        last = prefix[-1][0] if prefix else -1
        found = []
        if prefix:
            count = sum(1 for step, _, _ in prefix if step == last)
            if steps[last].most is None or count < steps[last].most:
                found.append(last)
            if count < steps[last].least:
                return found
        for step in range(last + 1, len(steps)):
            found.append(step)
            if not steps[step].is_optional:
                break
        return found

    def refused(self, prefix: Prefix, step: int) -> Iterator[tuple[int, bool]]:
        """What must not lie between the last record and the step."""
        last = prefix[-1][0]
        for between in range(last + 1, step + 1):
            if between < len(self.shape.steps):
                for each in self.shape.steps[between].refused:
                    yield each.condition, each.only_next
        if step == len(self.shape.steps):
            for each in self.shape.refused_at_end:
                yield each.condition, each.only_next

    def may_pass(self, prefix: Prefix, step: int, passed: range) -> bool:
        """Whether the step may still take a record behind these records."""
        if not prefix:
            return True
        shape = self.shape.steps[step]
        again = step == prefix[-1][0]
        contiguity = shape.inner if again else shape.contiguity
        if contiguity is Contiguity.NEXT and len(passed):
            return False
        if contiguity is Contiguity.FOLLOWED_BY and any(
            self.name_of(step, prefix, each) is not None for each in passed
        ):
            return False
        return self.is_free(prefix, step, passed)

    def is_free(self, prefix: Prefix, step: int, records: range) -> bool:
        """Whether none of these records ends the step or is refused before the step."""
        if step < len(self.shape.steps):
            until = self.shape.steps[step].until
            if until is not None and any(self.holds(until, prefix, each) for each in records):
                return False
        if not prefix or step == prefix[-1][0]:
            return True
        for condition, only_next in self.refused(prefix, step):
            if any(self.holds(condition, prefix, each) for each in (records[:1] if only_next else records)):
                return False
        return True

    def may_take(self, prefix: Prefix, step: int, passed: range, record: int) -> bool:
        """Whether the step may take the record, were it not for greedy steps."""
        shape = self.shape.steps[step]
        if prefix:
            gap = self.times[record] - self.times[prefix[-1][2]]
            if shape.gap_us is not None and gap >= shape.gap_us:
                return False
        with_record = range(passed.start, record + 1) if prefix else range(record, record + 1)
        return (
            self.name_of(step, prefix, record) is not None
            and self.is_free(prefix, step, with_record)
            and self.may_pass(prefix, step, passed)
        )

    def is_blocked(self, prefix: Prefix, step: int, records: range) -> bool:
        """Whether a greedy step before this step takes one of the records."""
        for earlier in self.candidates(prefix):
            if earlier >= step or not self.shape.steps[earlier].is_greedy:
                continue
            for each in records:
                if self.may_take(prefix, earlier, range(records.start, each), each):
                    return True
        return False

    # --- matches -----------------------------------------------------------------------------

    def behind(self, prefix: Prefix) -> int:
        return prefix[-1][2] + 1 if prefix else 0

    def prefixes(self, prefix: Prefix = ()) -> Iterator[Prefix]:
        """Everything that is taken in a way that the words allow."""
        if prefix:
            yield prefix
        first = self.behind(prefix)
        for record in range(first, len(self.times)):
            within = self.shape.within_us
            if prefix and within is not None and self.times[record] - self.times[prefix[0][2]] >= within:
                break
            passed = range(first, record) if prefix else range(record, record)
            looked_at = range(first, record + 1) if prefix else range(record, record + 1)
            for step in self.candidates(prefix):
                if self.may_take(prefix, step, passed, record) and not self.is_blocked(prefix, step, looked_at):
                    name = self.name_of(step, prefix, record)
                    assert name is not None
                    yield from self.prefixes((*prefix, (step, name, record)))

    def is_enough(self, prefix: Prefix) -> bool:
        last = prefix[-1][0]
        count = sum(1 for step, _, _ in prefix if step == last)
        rest = self.shape.steps[last + 1 :]
        return count >= self.shape.steps[last].least and all(step.is_optional for step in rest)

    def end_of(self, prefix: Prefix) -> int | None:
        """When the time for more is over."""
        times = []
        if self.shape.within_us is not None:
            times.append(self.times[prefix[0][2]] + self.shape.within_us)
        if self.shape.end_gap_us is not None:
            times.append(self.times[prefix[-1][2]] + self.shape.end_gap_us)
        return min(times, default=None)

    def before(self, prefix: Prefix, time: int | None) -> range:
        first = self.behind(prefix)
        found = [n for n in range(first, len(self.times)) if time is None or self.times[n] < time]
        return range(first, first + len(found))

    def all_matches(self) -> list[Found]:
        found = []
        for prefix in self.prefixes():
            if not self.is_enough(prefix):
                continue
            if not self.shape.refused_at_end:
                found.append(Found(prefix, self.times[prefix[-1][2]], prefix[-1][2]))
                continue
            end = self.end_of(prefix)
            assert end is not None
            rest, target = self.before(prefix, end), len(self.shape.steps)
            if self.is_free(prefix, target, rest) and not self.is_blocked(prefix, target, rest):
                found.append(Found(prefix, end, len(self.times)))
        return sorted(found, key=_order)

    def matches(self) -> list[Prefix]:
        """The matches that are not skipped: those that begin earlier first, of those the ones that are complete
        earlier."""
        kind = self.shape.skip.kind
        everything = self.all_matches()
        if kind is SkipKind.NONE:
            return [found.taken for found in everything]
        beginning, shown = 0, []
        for found in sorted(everything, key=lambda each: each.taken[0][2]):
            if found.taken[0][2] < beginning:
                continue
            shown.append(found.taken)
            beginning = max(beginning, self.skipped_to(found.taken))
        return shown

    def skipped_to(self, taken: Prefix) -> int:
        skip = self.shape.skip
        if skip.kind is SkipKind.TO_NEXT:
            return taken[0][2] + 1
        if skip.kind is SkipKind.PAST_LAST:
            return taken[-1][2] + 1
        records = [record for _, name, record in taken if name == skip.name]
        if not records:
            return 0
        return records[0] if skip.kind is SkipKind.TO_FIRST else records[-1]

    def timed_out(self) -> list[Prefix]:
        """What is taken, no match, and given up because of time alone, in a pattern that skips nothing."""
        matches = {found.taken for found in self.all_matches()}
        return sorted(p for p in self.prefixes() if p not in matches and self.is_out_of_time(p))

    def is_out_of_time(self, prefix: Prefix) -> bool:
        if self.is_enough(prefix) and not self.shape.refused_at_end:
            return False
        deaths = []
        targets: list[int] = self.candidates(prefix)
        if self.is_enough(prefix) and self.shape.refused_at_end:
            targets.append(len(self.shape.steps))
        for target in targets:
            is_end = target == len(self.shape.steps)
            gap = self.shape.end_gap_us if is_end else self.shape.steps[target].gap_us
            ends = [] if gap is None else [self.times[prefix[-1][2]] + gap]
            if self.shape.within_us is not None:
                ends.append(self.times[prefix[0][2]] + self.shape.within_us)
            end = min(ends, default=None)
            records = self.before(prefix, end)
            closing = next((each for each in records if self.is_closed(prefix, target, each)), None)
            if closing is not None:
                # Time runs out before a record of the same time is looked at.
                deaths.append((self.times[closing], 1))
            elif end is not None:
                deaths.append((end, 0))
            else:
                return False
        return bool(deaths) and max(deaths)[1] == 0

    def is_closed(self, prefix: Prefix, target: int, record: int) -> bool:
        """Whether no later record can be taken by the target because of the records up to this one."""
        records = range(self.behind(prefix), record + 1)
        if self.is_blocked(prefix, target, records):
            return True
        if target == len(self.shape.steps):
            return not self.is_free(prefix, target, records)
        return not self.may_pass(prefix, target, records)


def _order(found: Found) -> tuple[object, ...]:
    taken = found.taken
    records, names = [record for *_, record in taken], [name for _, name, _ in taken]
    return found.time, found.record, taken[0][2], records, names
