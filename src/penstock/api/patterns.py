"""Patterns: which records of a key, in which order, make a match.

A pattern is made of parts. A part takes records, by its condition; or it refuses records between the parts around it.
Every method of a pattern makes another pattern, and leaves the pattern as it is. What can be wrong with the words alone
is found when a pattern is made; the conditions are read where the pattern meets a stream, by `KeyedStream.match`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import NoReturn

from penstock.api.boundary import at_user_line
from penstock.api.expressions import ExpressionLike
from penstock.api.pattern_steps import Contiguity, SkipKind
from penstock.core.durations import Duration, duration_us
from penstock.core.errors import UsageError

Alternatives = tuple[tuple[str, ExpressionLike | None], ...]


@dataclass(frozen=True, kw_only=True)
class AnyOf:
    """Alternatives of one step of a pattern. Made by `any_of`."""

    alternatives: Alternatives


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a pattern, as its user wrote it."""

    alternatives: Alternatives
    """Names and conditions. A condition that is None is true for every record."""
    contiguity: Contiguity
    """How the first record follows the record before; for a refused part, whether only the next record is meant
    (`NEXT`)."""
    is_refused: bool = False
    least: int = 1
    most: int | None = 1
    has_count: bool = False
    is_optional: bool = False
    is_greedy: bool = False
    inner: Contiguity = Contiguity.FOLLOWED_BY
    has_inner: bool = False
    until: ExpressionLike | None = None
    gap_us: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the alternatives."""
        return tuple(name for name, _ in self.alternatives)

    @property
    def shown(self) -> str:
        """The names, for people."""
        return " | ".join(self.names)

    @property
    def word(self) -> str:
        """The word that made the part."""
        if self.is_refused:
            return "not_next" if self.contiguity is Contiguity.NEXT else "not_followed_by"
        return self.contiguity.value

    def __str__(self) -> str:
        words = [self.shown]
        if self.has_count:
            exact = f"{self.least} times" if self.least == self.most else f"{self.least} to {self.most} times"
            words.append(f"{self.least} or more" if self.most is None else exact)
        words += ["optional"] if self.is_optional else []
        words += ["greedy"] if self.is_greedy else []
        if self.has_inner:
            words.append("consecutive" if self.inner is Contiguity.NEXT else "combinations")
        words += ["until"] if self.until is not None else []
        return " ".join(words)


@dataclass(frozen=True, kw_only=True)
class Within:
    """How long a match may take."""

    time_us: int | None
    """None: for ever, as its user asked."""


@at_user_line
@dataclass(frozen=True, kw_only=True, repr=False)
class Pattern:
    """Which records of a key make a match, and in which order. Made by `pattern`, given to `KeyedStream.match`.

    >>> import penstock as ps
    >>> ps.pattern("small", where="amount < 1").followed_by("large", where="amount > 500").within("10 min")
    <Pattern small, followed_by large, within 600s>
    """

    parts: tuple[Part, ...] = field(default=())
    time: Within | None = None
    skip: SkipKind = SkipKind.NONE
    skip_name: str | None = None

    # --- parts -------------------------------------------------------------------------------

    def next(
        self, name: str | AnyOf, *, where: ExpressionLike | None = None, within: Duration | None = None
    ) -> Pattern:
        """Then a record that comes **directly** behind the record before: no other record of the key lies between.

        >>> import penstock as ps
        >>> ps.pattern("a", where="v < 1").next("b", where="v > 1")
        <Pattern a, next b>
        """
        return self._taking(Contiguity.NEXT, name, where, within)

    def followed_by(
        self, name: str | AnyOf, *, where: ExpressionLike | None = None, within: Duration | None = None
    ) -> Pattern:
        """Then the **first** record behind the record before for which the condition is true. With `within` it comes
        less than this after the record before.

        >>> import penstock as ps
        >>> ps.pattern("a", where="v < 1").followed_by("b", where="v > 1", within="5s")
        <Pattern a, followed_by b>
        """
        return self._taking(Contiguity.FOLLOWED_BY, name, where, within)

    def followed_by_any(
        self, name: str | AnyOf, *, where: ExpressionLike | None = None, within: Duration | None = None
    ) -> Pattern:
        """Then **any** record behind the record before for which the condition is true: a match for each of them.

        >>> import penstock as ps
        >>> ps.pattern("a", where="v < 1").followed_by_any("b", where="v > 1")
        <Pattern a, followed_by_any b>
        """
        return self._taking(Contiguity.FOLLOWED_BY_ANY, name, where, within)

    def not_next(self, name: str, *, where: ExpressionLike | None = None) -> Pattern:
        """The record directly behind the record before must **not** fulfil the condition.

        >>> import penstock as ps
        >>> ps.pattern("a", where="v < 1").not_next("x", where="v = 5").followed_by("b")
        <Pattern a, not_next x, followed_by b>
        """
        return self._refusing(Contiguity.NEXT, name, where, None)

    def not_followed_by(
        self, name: str, *, where: ExpressionLike | None = None, within: Duration | None = None
    ) -> Pattern:
        """**No** record between the record before and the next record of the match may fulfil the condition.

        At the end of a pattern: no record until `within` of the pattern is over, or less than the `within` of this part
        after the record before. The match is then certain when this time is over.

        >>> import penstock as ps
        >>> from penstock.testing import run
        >>> def program(env):
        ...     rows = [("a", "order", 0), ("b", "order", 1), ("a", "paid", 9)]
        ...     events = env.from_iterable(rows, schema="id string, kind string, s bigint")
        ...     timed = events.with_columns(ts="timestamp_seconds(s)").watermark("ts")
        ...     unpaid = ps.pattern("ordered", where="kind = 'order'").not_followed_by("paid", where="kind = 'paid'")
        ...     timed.key_by("id").match(unpaid.within("1 min")).select("ordered.id").write(ps.collect())
        >>> run(program)
        [{'id': 'b'}]
        """
        return self._refusing(Contiguity.FOLLOWED_BY, name, where, within)

    def _taking(
        self, contiguity: Contiguity, name: str | AnyOf, where: ExpressionLike | None, within: Duration | None
    ) -> Pattern:
        alternatives = _alternatives(name, where, contiguity.value)
        return self._with(Part(alternatives=alternatives, contiguity=contiguity, gap_us=_gap_us(within)))

    def _refusing(
        self, contiguity: Contiguity, name: str, where: ExpressionLike | None, within: Duration | None
    ) -> Pattern:
        part = Part(alternatives=(), contiguity=contiguity, is_refused=True, gap_us=_gap_us(within))
        if not isinstance(name, str):
            raise UsageError(f"{part.word} takes a name, not {name!r}", hint="write one part for each condition")
        return self._with(replace(part, alternatives=_alternatives(name, where, part.word)))

    def _with(self, part: Part) -> Pattern:
        taken = {name for each in self.parts for name in each.names}
        for name in part.names:
            if name in taken:
                raise UsageError(
                    f"{part.word}: the pattern has a part {name!r} already", hint="give each part a name of its own"
                )
        return replace(self, parts=(*self.parts, part))

    # --- how often ---------------------------------------------------------------------------

    def times(self, count: int, most: int | None = None) -> Pattern:
        """The last part takes `count` records; with `most`, from `count` to `most` records.

        >>> import penstock as ps
        >>> from penstock.testing import run
        >>> def program(env):
        ...     tries = env.from_iterable([("ann", s) for s in (1, 2, 9)], schema="user string, s bigint")
        ...     timed = tries.with_columns(ts="timestamp_seconds(s)").watermark("ts")
        ...     many = ps.pattern("failed").times(3).within("10s")
        ...     timed.key_by("user").match(many).select("user", seconds="failed.s").write(ps.collect())
        >>> run(program)
        [{'user': 'ann', 'seconds': [1, 2, 9]}]
        """
        for each in (count,) if most is None else (count, most):
            if not isinstance(each, int) or isinstance(each, bool) or each < 1:
                raise UsageError(f"times: {each!r} is no number of records", hint="give a whole number from 1")
        if most is not None and most < count:
            raise UsageError(
                f"times({count}, {most}) asks for at least {count} records and at most {most}",
                hint="give the smaller number first",
            )
        return self._counted("times", least=count, most=count if most is None else most)

    def times_or_more(self, count: int) -> Pattern:
        """The last part takes `count` records or more. Needs `within`, as every pattern does, or `until`.

        >>> import penstock as ps
        >>> ps.pattern("a", where="v < 1").times_or_more(3).within("1 min")
        <Pattern a 3 or more, within 60s>
        """
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise UsageError(f"times_or_more: {count!r} is no number of records", hint="give a whole number from 1")
        return self._counted("times_or_more", least=count, most=None)

    def one_or_more(self) -> Pattern:
        """The last part takes one record or more: a match for each number of records.

        >>> import penstock as ps
        >>> ps.pattern("a", where="v < 1").one_or_more().within("1 min")
        <Pattern a 1 or more, within 60s>
        """
        return self._counted("one_or_more", least=1, most=None)

    def optional(self) -> Pattern:
        """The last part may be left out.

        >>> import penstock as ps
        >>> ps.pattern("a", where="v < 1").followed_by("b").optional().followed_by("c")
        <Pattern a, followed_by b optional, followed_by c>
        """
        return self._changed(self._last("optional"), is_optional=True)

    def greedy(self) -> Pattern:
        """The last part takes as many records as it can: later parts take no record that this part could take, and pass
        over none.

        >>> import penstock as ps
        >>> ps.pattern("a", where="v < 1").one_or_more().greedy().followed_by("b")
        <Pattern a 1 or more greedy, followed_by b>
        """
        part = self._last("greedy")
        if not part.has_count and not part.is_optional:
            raise UsageError(
                f"greedy: {part.shown} takes exactly one record", hint="write .one_or_more() or .optional() before"
            )
        return self._changed(part, is_greedy=True)

    def consecutive(self) -> Pattern:
        """The records of the last part come directly behind each other.

        >>> import penstock as ps
        >>> ps.pattern("a", where="v < 1").one_or_more().consecutive()
        <Pattern a 1 or more consecutive>
        """
        part = self._repeated("consecutive")
        return self._changed(part, inner=Contiguity.NEXT, has_inner=True)

    def allow_combinations(self) -> Pattern:
        """The last part may pass over records that it could take: a match for each choice of records.

        >>> import penstock as ps
        >>> ps.pattern("a", where="v < 1").times_or_more(2).allow_combinations()
        <Pattern a 2 or more combinations>
        """
        part = self._repeated("allow_combinations")
        return self._changed(part, inner=Contiguity.FOLLOWED_BY_ANY, has_inner=True)

    def until(self, condition: ExpressionLike) -> Pattern:
        """The last part ends with the record before a record for which the condition is true: that record, and later
        records, are not taken by the part.

        >>> import penstock as ps
        >>> ps.pattern("a", where="v < 1").one_or_more().until("v > 9")
        <Pattern a 1 or more until>
        """
        part = self._repeated("until")
        if part.most is not None:
            raise UsageError(
                f"until: {part.shown} takes {part.most} records at most, and ends by itself",
                hint="until is for one_or_more() and times_or_more(n)",
            )
        return self._changed(part, until=condition)

    def _counted(self, word: str, *, least: int, most: int | None) -> Pattern:
        part = self._last(word)
        if part.has_count:
            raise UsageError(f"{word}: how many records {part.shown} takes is said already")
        return self._changed(part, least=least, most=most, has_count=True)

    def _repeated(self, word: str) -> Part:
        part = self._last(word)
        if part.most == 1:
            raise UsageError(
                f"{word}: {part.shown} takes one record at most", hint="write .one_or_more() or .times(n) before"
            )
        return part

    def _last(self, word: str) -> Part:
        part = self.parts[-1]
        if part.is_refused:
            raise UsageError(f"{word} is about records that are taken, and {part.word} {part.shown} takes none")
        return part

    def _changed(self, part: Part, **changes: object) -> Pattern:
        return replace(self, parts=(*self.parts[:-1], replace(part, **changes)))  # type: ignore[arg-type]

    # --- the match as a whole ----------------------------------------------------------------

    def within(self, duration: Duration | None) -> Pattern:
        """The last record of a match comes less than `duration` after its first record. With `None` there is no limit:
        partial matches that are never completed are kept for ever, and the state of their keys grows.

        >>> import penstock as ps
        >>> ps.pattern("a", where="v < 1").followed_by("b").within("10 min")
        <Pattern a, followed_by b, within 600s>
        """
        if duration is None:
            return replace(self, time=Within(time_us=None))
        time_us = duration_us(duration, argument="within")
        if time_us == 0:
            raise UsageError(f"within is {duration!r}: no match takes less time than that")
        return replace(self, time=Within(time_us=time_us))

    def skip_to_next(self) -> Pattern:
        """Of all matches that begin with the same record, only the first.

        >>> import penstock as ps
        >>> ps.pattern("a", where="v < 1").one_or_more().skip_to_next()
        <Pattern a 1 or more, skip to next>
        """
        return replace(self, skip=SkipKind.TO_NEXT, skip_name=None)

    def skip_past_last(self) -> Pattern:
        """The next match begins behind the last record of the match before: no record is in two matches.

        >>> import penstock as ps
        >>> ps.pattern("a", where="v < 1").followed_by("b").skip_past_last()
        <Pattern a, followed_by b, skip past last>
        """
        return replace(self, skip=SkipKind.PAST_LAST, skip_name=None)

    def skip_to_first(self, name: str) -> Pattern:
        """The next match begins with the first record that the match before took as `name`, or with a later record.

        >>> import penstock as ps
        >>> ps.pattern("a", where="v < 1").followed_by("b").skip_to_first("b")
        <Pattern a, followed_by b, skip to first b>
        """
        return self._skipping(SkipKind.TO_FIRST, name, "skip_to_first")

    def skip_to_last(self, name: str) -> Pattern:
        """The next match begins with the last record that the match before took as `name`, or with a later record.

        >>> import penstock as ps
        >>> ps.pattern("a", where="v < 1").one_or_more().followed_by("b").skip_to_last("a")
        <Pattern a 1 or more, followed_by b, skip to last a>
        """
        return self._skipping(SkipKind.TO_LAST, name, "skip_to_last")

    def _skipping(self, kind: SkipKind, name: str, word: str) -> Pattern:
        names = [each for part in self.parts if not part.is_refused for each in part.names]
        if name not in names:
            raise UsageError(
                f"{word}: the pattern takes no record by the name {name!r}; there are {', '.join(names)}",
                hint=likely(str(name), names),
            )
        return replace(self, skip=kind, skip_name=name)

    @property
    def steps_text(self) -> str:
        """The parts of the pattern, without conditions and without what holds for a match as a whole."""
        return ", ".join(f"{part.word} {part}" if number else str(part) for number, part in enumerate(self.parts))

    def __str__(self) -> str:
        return ", ".join([self.steps_text, *self._rules()])

    def _rules(self) -> Iterator[str]:
        if self.time is not None and self.time.time_us is not None:
            yield f"within {self.time.time_us / 1_000_000:g}s"
        if self.skip is not SkipKind.NONE:
            yield self.skip.value + (f" {self.skip_name}" if self.skip_name else "")

    def __repr__(self) -> str:
        return f"<Pattern {self}>"

    def __bool__(self) -> NoReturn:
        raise UsageError("a pattern is neither true nor false", hint="give the pattern to match(...) of a keyed stream")


def pattern(name: str | AnyOf, *, where: ExpressionLike | None = None) -> Pattern:
    """A pattern that begins with a record for which the condition `where` is true: Spark SQL text, or a Polars
    expression. Without `where` any record will do.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> def program(env):
    ...     rows = [("c1", 0.5, 0), ("c2", 0.4, 1), ("c1", 20.0, 2), ("c1", 900.0, 3), ("c2", 700.0, 4000)]
    ...     payments = env.from_iterable(rows, schema="card string, amount double, s bigint")
    ...     timed = payments.with_columns(ts="timestamp_seconds(s)").watermark("ts")
    ...     fraud = ps.pattern("small", where="amount < 1").followed_by("large", where="amount > 500 * small.amount")
    ...     timed.key_by("card").match(fraud.within("10 min")).select("small.card", "large.amount").write(ps.collect())
    >>> run(program)
    [{'card': 'c1', 'amount': 900.0}]

    A condition may refer to records that were taken before, by the names of their parts: `small.amount` is the value in
    the record; of a part that took several records, in the last of them. `first(small.amount)`, `count(small)`, and
    `sum`, `min`, `max` and `avg` are over all records of the part so far. In the condition of the part itself they are
    over the records that it took before.
    """
    alternatives = _alternatives(name, where, "pattern")
    return Pattern(parts=(Part(alternatives=alternatives, contiguity=Contiguity.FOLLOWED_BY_ANY),))


def any_of(**conditions: ExpressionLike) -> AnyOf:
    """Alternatives for one part of a pattern, each with its name: the **first** alternative that is true takes the
    record.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> def program(env):
    ...     rows = [("a", "login", 1), ("a", "buy", 2), ("b", "login", 3), ("b", "leave", 4)]
    ...     events = env.from_iterable(rows, schema="user string, kind string, s bigint")
    ...     timed = events.with_columns(ts="timestamp_seconds(s)").watermark("ts")
    ...     ends = ps.any_of(bought="kind = 'buy'", left="kind = 'leave'")
    ...     visit = ps.pattern("login", where="kind = 'login'").followed_by(ends).within("1h")
    ...     timed.key_by("user").match(visit).select("user", bought="bought.s", left="left.s").write(ps.collect())
    >>> sorted(run(program), key=str)
    [{'user': 'a', 'bought': 2, 'left': None}, {'user': 'b', 'bought': None, 'left': 4}]
    """
    if not conditions:
        raise UsageError("any_of needs at least one condition", hint='for example any_of(cheap="price < 1")')
    for name in conditions:
        _check_name(name, "any_of")
    return AnyOf(alternatives=tuple(conditions.items()))


def likely(name: str, names: list[str]) -> str | None:
    """A hint that names the name that was probably meant."""
    near = get_close_matches(name, names, n=1, cutoff=0.5) or [each for each in names if each.lower() == name.lower()]
    return f"did you mean {near[0]!r}?" if near else None


def _alternatives(name: str | AnyOf, where: ExpressionLike | None, word: str) -> Alternatives:
    if isinstance(name, AnyOf):
        if where is not None:
            raise UsageError(f"{word}: each alternative of any_of has a condition of its own; leave where out")
        return name.alternatives
    _check_name(name, word)
    return ((name, where),)


def _check_name(name: object, word: str) -> None:
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
        raise UsageError(
            f"{word}: {name!r} cannot be the name of a part of a pattern",
            hint="give a name of letters, digits and _ that begins with a letter: it becomes a column of the matches",
        )


def _gap_us(within: Duration | None) -> int | None:
    if within is None:
        return None
    gap_us = duration_us(within, argument="within")
    if gap_us == 0:
        raise UsageError(f"within is {within!r}: no record comes less than that after another record")
    return gap_us
