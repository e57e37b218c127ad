"""Patterns of topic names: RE2's syntax, whole names, and no pattern that is larger than it may be."""

from __future__ import annotations

import random
import re

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.errors import ErrorCode, ProtocolError
from kbroker.rules.topic_regex import TopicRegex

MATCHES = [
    ("foo.*", ["foo", "foobar"], ["xfoo", "fo"]),
    ("^t-[0-9]+$", ["t-12"], ["t-", "t-1x"]),
    ("a|b|cd?", ["a", "c", "cd"], ["ad", ""]),
    ("(?i)FOO(?-i)b", ["foob", "fOob"], ["fo", "fooB"]),
    ("(?i:a)b", ["Ab", "ab"], ["AB"]),
    (r"\Qa.b\E+", ["a.b", "a.bb"], ["axb"]),
    (r"\w+\.\d{2,3}", ["a_1.12", "b.123"], ["a.1", "a.1234"]),
    (r"\D\S\W", ["aa-", "_x."], ["1a-", "aaa"]),
    ("[[:alpha:]]+[[:^digit:]]", ["abc", "a-"], ["a1"]),
    ("[^a]", ["b"], ["a", "bb"]),
    ("[]a]", ["a"], ["b"]),
    (r"[a\-z]", ["-", "a", "z"], ["b"]),
    (r"[\d.]+", ["1.2"], ["a"]),
    (r"\pL+\p{Nd}\P{L}", ["aB1-"], ["11-", "aBa-"]),
    (r"\p{^Greek}\p{Latin}", ["-a"], ["a-"]),
    (r"(?P<x>a)(?<y>b)(?:c)", ["abc"], ["ab"]),
    (r"\bfoo\b.*\B", ["foo--"], ["foo-x", "foox"]),
    (r"\Afoo\z", ["foo"], ["foox"]),
    ("a{2}b{1,}c{0,1}", ["aab", "aabbbc"], ["ab", "aabcc"]),
    (r"x*?y+?z??", ["y", "xxyyz"], ["x"]),
    (r"\x61\x{62}\143", ["abc"], ["ab"]),
    ("", [""], ["a"]),
    ("(a|b)*abb", ["abb", "babaabb"], ["ab", "abba"]),
]
WRONG = [
    "(", "a)", "[a", "*a", "a**", "a{2}{3}", "a{1001}", "a{3,2}", "[b-a]", "\\", "(?z)a", "(?=a)", "(?!a)", "(?<=a)",
    r"(a)\1", r"\8", r"\pX", r"\p{Foo}", r"\p{L", "[[:foo:]]", r"\x{}", r"\x{110000}", r"\xg1", "(?P<>a)",
    r"\y",
]  # fmt: skip
HOSTILE = [
    "((((x{100}){100}){100}))",
    "(((){1000}){1000}){9}x{1000}",
    "a" * 5000,
    "x{1000}" * 200,
]


@pytest.mark.parametrize(("pattern", "yes", "no"), MATCHES)
def test_a_pattern_matches_whole_names(pattern: str, yes: list[str], no: list[str]) -> None:
    regex = TopicRegex(pattern)
    assert [name for name in yes if not regex.matches(name)] == []
    assert [name for name in no if regex.matches(name)] == []


@pytest.mark.parametrize("pattern", WRONG)
def test_what_re2_does_not_take_is_refused(pattern: str) -> None:
    with pytest.raises(ProtocolError, match="is not a valid regular expression") as raised:
        TopicRegex(pattern)
    assert raised.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize("pattern", HOSTILE, ids=lambda pattern: pattern[:20])
def test_what_is_too_large_is_refused(pattern: str) -> None:
    with pytest.raises(ProtocolError) as raised:
        TopicRegex(pattern)
    assert raised.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_pattern_without_end_costs_no_more_than_a_name_is_long() -> None:
    regex = TopicRegex("(a*)*(a|aa)*" * 50 + "b")
    assert not regex.matches("a" * 249)
    assert regex.matches("a" * 248 + "b")


def test_what_a_pattern_remembers_is_bounded_and_forgotten_with_it() -> None:
    rng = random.Random(7)
    names = ["".join(rng.choices("ab", k=249)) for _ in range(20)]
    process = psutil.Process()
    before = process.memory_info().rss
    for number in range(100):
        regex = TopicRegex(f"(a|b)*a(a|b){{{100 + number}}}x")
        assert not any(regex.matches(name) for name in names)
    assert process.memory_info().rss - before < 20 << 20


ATOMS = st.sampled_from(
    ["a", "b", "-", ".", "[ab]", "[^a]", r"\d", r"\w", "(ab)", "(a|b-)", "^", "$", r"\b", r"\B", "0"]
)
PIECES = st.builds(
    lambda atom, times: f"(?:{atom}){times}", ATOMS, st.sampled_from(["", "*", "+", "?", "{2}", "{0,2}"])
)
PATTERNS = st.builds(
    lambda branches: "|".join(map("".join, branches)), st.lists(st.lists(PIECES, max_size=4), min_size=1, max_size=3)
)


@given(PATTERNS, st.lists(st.text("ab-0_", max_size=7), max_size=5))
def test_it_agrees_with_a_machine_that_goes_back(pattern: str, names: list[str]) -> None:
    regex, other = TopicRegex(pattern), re.compile(pattern, re.ASCII)
    # Python has `\B` not match in the empty string.
    assert [regex.matches(name) for name in names if name] == [bool(other.fullmatch(name)) for name in names if name]


@given(st.text("abAB()[]{}|*+?^$\\.-:<>P=!ipLNdwsQE0123,", max_size=30))
def test_only_our_error_comes_out_of_any_text(text: str) -> None:
    try:
        TopicRegex(text).matches("ab-1")
    except ProtocolError as error:
        assert error.code is ErrorCode.INVALID_REGULAR_EXPRESSION
