"""Patterns: what they mean, as Flink's CEP has it, and which mistakes are found when the program is built."""

from __future__ import annotations

import datetime

import pytest

import penstock as ps
from penstock.api.program import Program
from penstock.testing import run

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


def letters(pattern, text, **how):
    """The matches of a pattern among letters, a second apart: each as its letters, in the order of the stream."""
    words = text.split()
    rows = [
        {"k": 1, "word": word, "kind": word[0], "ts": NOON + datetime.timedelta(seconds=second)}
        for second, word in enumerate(words)
    ]

    def program(env):
        stream = env.from_iterable(rows).watermark("ts")
        stream.key_by("k").match(pattern).write(ps.collect())

    names = [name for part in pattern.parts if not part.is_refused for name in part.names]
    found = []
    for row in run(program, parallelism=1, **how):
        taken = [row[name] if isinstance(row[name], list) else [row[name]] for name in names]
        found.append(" ".join(record["word"] for records in taken for record in records if record))
    return found


def part(letter):
    return f"kind = '{letter}'"


A = ps.pattern("a", where=part("a"))


def b(pattern):
    return pattern.followed_by("b", where=part("b"))


# What Flink's documentation and tests say of contiguity, loops, negation, `until` and skip strategies.
FACTS = [
    (A.next("b", where=part("b")), "a c b1 b2", []),
    (A.followed_by("b", where=part("b")), "a c b1 b2", ["a b1"]),
    (A.followed_by_any("b", where=part("b")), "a c b1 b2", ["a b1", "a b2"]),
    # a b+ c with the kinds of contiguity within the loop, behind "a b1 d1 b2 d2 b3 c".
    (
        b(A).one_or_more().consecutive().followed_by("c", where=part("c")),
        "a b1 d1 b2 d2 b3 c",
        ["a b1 c"],
    ),
    (
        b(A).one_or_more().followed_by("c", where=part("c")),
        "a b1 d1 b2 d2 b3 c",
        ["a b1 b2 b3 c", "a b1 b2 c", "a b1 c"],
    ),
    (
        b(A).one_or_more().allow_combinations().followed_by("c", where=part("c")),
        "a b1 d1 b2 d2 b3 c",
        ["a b1 b2 b3 c", "a b1 b2 c", "a b1 b3 c", "a b1 c"],
    ),
    (
        A.followed_by_any("b", where=part("b")).one_or_more().followed_by("c", where=part("c")),
        "a b1 b2 c",
        ["a b1 b2 c", "a b1 c", "a b2 c"],
    ),
    # c a* d, greedy.
    (
        ps.pattern("c", where=part("c"))
        .followed_by("a", where=part("a"))
        .one_or_more()
        .optional()
        .greedy()
        .followed_by("d", where=part("d")),
        "c x a1 x a2 x a3 d",
        ["c a1 a2 a3 d"],
    ),
    (
        ps.pattern("c", where=part("c"))
        .followed_by("a", where=part("a"))
        .one_or_more()
        .optional()
        .greedy()
        .followed_by("d", where=part("d")),
        "c x d",
        ["c d"],
    ),
    (
        ps.pattern("c", where=part("c"))
        .followed_by("a", where=part("a"))
        .one_or_more()
        .optional()
        .greedy()
        .until("word = 'a9'")
        .followed_by("d", where=part("d")),
        "c a1 a2 a3 a9 d",
        ["c a1 a2 a3 d"],
    ),
    (
        ps.pattern("c", where=part("c"))
        .followed_by("a", where=part("a"))
        .one_or_more()
        .optional()
        .greedy()
        .until("word = 'a9'")
        .followed_by("d", where=part("d")),
        "c a9 a1 a2 a3 d",
        ["c d"],
    ),
    # Negation.
    (A.not_followed_by("c", where=part("c")).followed_by("b", where=part("b")), "a1 c a2 b", ["a2 b"]),
    (A.not_next("c", where=part("c")).followed_by("b", where=part("b")), "a1 c a2 x c b", ["a2 b"]),
    # b+ c with the skip strategies, behind "b1 b2 b3 c".
    *(
        (
            skip(ps.pattern("b", where=part("b")).one_or_more().consecutive().greedy().next("c", where=part("c"))),
            "b1 b2 b3 c",
            expected,
        )
        for skip, expected in (
            (lambda pattern: pattern, ["b1 b2 b3 c", "b2 b3 c", "b3 c"]),
            (lambda pattern: pattern.skip_to_next(), ["b1 b2 b3 c", "b2 b3 c", "b3 c"]),
            (lambda pattern: pattern.skip_past_last(), ["b1 b2 b3 c"]),
            (lambda pattern: pattern.skip_to_first("b"), ["b1 b2 b3 c", "b2 b3 c", "b3 c"]),
            (lambda pattern: pattern.skip_to_last("b"), ["b1 b2 b3 c", "b3 c"]),
        )
    ),
    # (a | b | c) (b | c) c+ greedy d: no skip, and skip to the first of c+.
    (
        ps.pattern("x", where="kind IN ('a', 'b', 'c')")
        .next("y", where="kind IN ('b', 'c')")
        .next("z", where=part("c"))
        .one_or_more()
        .consecutive()
        .greedy()
        .next("d", where=part("d")),
        "a b c1 c2 d",
        ["a b c1 c2 d", "b c1 c2 d"],
    ),
    (
        ps.pattern("x", where="kind IN ('a', 'b', 'c')")
        .next("y", where="kind IN ('b', 'c')")
        .next("z", where=part("c"))
        .one_or_more()
        .consecutive()
        .greedy()
        .next("d", where=part("d"))
        .skip_to_first("z"),
        "a b c1 c2 d",
        ["a b c1 c2 d"],
    ),
    (A.times(2).followed_by("b", where=part("b")), "a1 a2 a3 b", ["a1 a2 b", "a2 a3 b"]),
    (A.optional().followed_by("b", where=part("b")), "a b", ["a b", "b"]),
]


@pytest.mark.parametrize(("pattern", "text", "expected"), FACTS, ids=[f"{p} in {t}" for p, t, _ in FACTS])
def test_what_patterns_mean(pattern, text, expected):
    assert letters(pattern.within("1 h"), text) == expected


def test_matches_are_shown_once_whatever_dies():
    pattern = A.followed_by("b", where="kind = 'b' AND word > a.word").within("3s")
    words = "a1 b0 b2 a3 a4 x b4 b5 a6 b7"
    assert letters(pattern, words, crashes=3) == letters(pattern, words)
    assert letters(pattern, words)


def found(error_of, hint=None):
    """The error and the hint that a call raises."""
    with pytest.raises(ps.UsageError) as caught:
        error_of()
    if hint is not None:
        assert hint in (caught.value.hint or "")
    return caught.value.message


@pytest.mark.parametrize(
    ("make", "message", "hint"),
    [
        (lambda: ps.pattern("1"), "'1' cannot be the name", None),
        (lambda: ps.pattern("a").next("a"), "next: the pattern has a part 'a' already", "a name of its own"),
        (lambda: ps.pattern("a").not_next(ps.any_of(b="x")), "not_next takes a name", "one part for each"),
        (lambda: ps.pattern(ps.any_of(a="x"), where="y"), "leave where out", None),
        (ps.any_of, "any_of needs at least one condition", None),
        (lambda: ps.pattern("a").times(0), "times: 0 is no number of records", "from 1"),
        (lambda: ps.pattern("a").times(3, 2), "at least 3 records and at most 2", None),
        (lambda: ps.pattern("a").times_or_more(True), "True is no number", None),
        (lambda: ps.pattern("a").times(2).one_or_more(), "how many records a takes is said already", None),
        (lambda: ps.pattern("a").greedy(), "greedy: a takes exactly one record", "one_or_more"),
        (lambda: ps.pattern("a").consecutive(), "consecutive: a takes one record at most", "times(n)"),
        (lambda: ps.pattern("a").times(2).until("x"), "until: a takes 2 records at most", "times_or_more"),
        (lambda: ps.pattern("a").not_next("b").optional(), "not_next b takes none", None),
        (lambda: ps.pattern("a").within("0s"), "no match takes less time", None),
        (lambda: ps.pattern("a").within("-1s"), "within is '-1s'", None),
        (lambda: ps.pattern("a").next("b", within="0s"), "within is '0s'", None),
        (lambda: ps.pattern("small").skip_to_first("smalll"), "by the name 'smalll'; there are small", "'small'"),
        (lambda: bool(ps.pattern("a")), "neither true nor false", None),
    ],
)
def test_words_that_make_no_pattern(make, message, hint):
    assert message in found(make, hint)


@pytest.fixture
def keyed():
    rows = Program().from_iterable([{"card": "c", "amount": 1.0, "s": "x", "ts": NOON}])
    return rows.watermark("ts").key_by("card")


@pytest.mark.parametrize(
    ("pattern", "message", "hint"),
    [
        ("a", "match takes a pattern, not 'a'", "ps.pattern"),
        (ps.pattern("a").next("b"), "nothing says how long a match may take", '.within("10 min")'),
        (ps.pattern("a").not_followed_by("b"), "ends with not_followed_by 'b'", "within"),
        (ps.pattern("a").not_followed_by("b").within(None), "nothing says for how long", "within"),
        (ps.pattern("a").not_next("b").within("1 h"), "ends with not_next 'b'", "not_followed_by"),
        (ps.pattern("a").not_followed_by("b", within="1s").next("c").within("1 h"), "has a within of its own", None),
        (ps.pattern("a").optional().within("1 h"), "all parts of the pattern are optional (a)", "optional"),
        (ps.pattern("a").next("b").skip_past_last().within(None), "a match waits until every partial match", "within"),
        (ps.pattern("amount").within("1 h"), "the records have a column 'amount'", "another name"),
        (ps.pattern("match_time").within("1 h"), "match_time is the column", "another name"),
        (ps.pattern("a", where="amountt < 1").within("1 h"), "there is no column 'amountt'", "'amount'"),
        (ps.pattern("a", where="amount").within("1 h"), "is of type double, and a condition must be boolean", None),
        (ps.pattern("a", where="explode(s)").within("1 h"), "makes several records", None),
        (
            ps.pattern("small").next("b", where="amount > smal.amount").within("1 h"),  # codespell:ignore
            "refers to 'smal', which is neither a column nor a part of the pattern; there are small",
            "'small'",
        ),
        (
            ps.pattern("a", where="amount > b.amount").next("b").within("1 h"),
            "refers to 'b', which comes later in the pattern",
            "on the later part",
        ),
        (ps.pattern("a", where="a.amount > 1").within("1 h"), "refers to 'a', which comes later", None),
        (
            ps.pattern("a").not_next("x").next("b", where="x.amount = 1").within("1 h"),
            "refers to 'x', by which no record is taken",
            None,
        ),
        (
            ps.pattern("a").next("b", where="amount > a.amunt").within("1 h"),  # codespell:ignore
            "'a.amunt' in 'amount > a.amunt' has no column 'amunt'; there are card, amount, s, ts",
            "'amount'",
        ),
        (ps.pattern("a").next("b", where="sum(a.s) > 1").within("1 h"), "sum cannot be computed of that", None),
        (ps.pattern("a").next("b", where="sum(a) > 1").within("1 h"), "sum is over a column", "a.<column>"),
        (ps.pattern("a").next("b", where="sum(amount + 1) > 1").within("1 h"), "not over the records of a part", None),
        (ps.pattern("a").one_or_more().until("amount > b.amount").next("b").within("1 h"), "until of 'a'", None),
    ],
)
def test_patterns_that_do_not_fit_the_stream(keyed, pattern, message, hint):
    assert message in found(lambda: keyed.match(pattern), hint)


def test_a_pattern_with_sixty_one_conditions_is_refused(keyed):
    pattern = ps.pattern("p0")
    for number in range(1, 61):
        pattern = pattern.next(f"p{number}")
    assert "61 conditions; 60 are possible" in found(lambda: keyed.match(pattern.within("1 h")))


def test_a_pattern_needs_event_time():
    rows = Program().from_iterable([{"card": "c", "ts": NOON}])
    message = found(lambda: rows.key_by("card").match(ps.pattern("a").within("1 h")), '.watermark("ts"')
    assert "match needs event time" in message


def test_timed_out_belongs_to_a_pattern(keyed):
    stream = keyed.match(ps.pattern("a").within("1 h")).select("a.ts")
    assert "looks for no pattern" in found(stream.timed_out, "match returns")


def test_a_pattern_whose_parts_have_times_of_their_own_needs_no_other(keyed):
    keyed.match(ps.pattern("a").next("b", within="1s").not_next("x").followed_by("c", within="1s"))
    assert "how long" in found(lambda: keyed.match(ps.pattern("a").one_or_more().next("b", within="1s")))


def test_columns_of_matches(keyed):
    stream = keyed.match(ps.pattern("a").times(2).followed_by("b", where="amount > a.amount").within("1 h"))
    assert stream.schema.names == ["card", "a", "b", "match_time"]
    assert [str(field.type)[:4] for field in stream.schema] == ["stri", "list", "stru", "time"]
    assert stream.select("card", "a.amount", last="b.amount").schema.names == ["card", "amount", "last"]
    assert stream.timed_out().schema == stream.schema
    assert stream.late().schema.names == ["card", "amount", "s", "ts"]


def test_explain_shows_the_pattern():
    pattern = ps.pattern("a").one_or_more().greedy().not_next("x").followed_by(ps.any_of(b="TRUE", c="FALSE"))
    program = Program()
    rows = program.from_iterable([{"card": "c", "ts": NOON}]).watermark("ts").key_by("card")
    rows.match(pattern.within("90s").skip_past_last(), name="fraud").write(ps.collect())
    shown = "a 1 or more greedy, not_next x, followed_by b | c, within 90s, skip past last"
    assert f"fraud    fraud: {shown}" in str(program.explain())
    assert repr(pattern.within("90s").skip_past_last()) == f"<Pattern {shown}>"
