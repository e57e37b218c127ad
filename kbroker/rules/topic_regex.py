"""Patterns of topic names in the syntax of RE2/J (KIP-848), matched in time that grows with the name, not with tricks.

A pattern is parsed, made into a machine of states (Thompson's), and run over a name with all states at once; which set
of states follows on which is remembered, so that most names cost one lookup per character. There is no backtracking,
as RE2 has none: backreferences and lookaround are not in the syntax. What a pattern can cost is bounded four ways: its
length, the states it is made of (`x{1000}{1000}` is refused), the sets remembered, and the steps that all names
together may take.

A topic name has 65 different characters; whatever a class says of others does not matter, so it is a set of these.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from kbroker.errors import ErrorCode, ProtocolError

ALPHABET = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
MAX_PATTERN_LENGTH = 4096
MAX_REPEAT = 1000
"""RE2's own."""
MAX_STATES = 10_000
MAX_NESTING = 200
MAX_REMEMBERED = 2_000
"""Sets of states; when there are more all are forgotten and built anew as needed."""
MAX_STEPS = 20_000_000
"""States gone through for one pattern over all names, remembered ones not counted: seconds."""

_LOWER, _UPPER = frozenset("abcdefghijklmnopqrstuvwxyz"), frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_DIGITS = frozenset("0123456789")
_LETTERS = _LOWER | _UPPER
_WORD = _LETTERS | _DIGITS | {"_"}
_PERL = {"d": _DIGITS, "w": _WORD, "s": frozenset[str]()}
_POSIX = {
    "alnum": _LETTERS | _DIGITS, "alpha": _LETTERS, "ascii": ALPHABET, "blank": frozenset(), "cntrl": frozenset(),
    "digit": _DIGITS, "graph": ALPHABET, "lower": _LOWER, "print": ALPHABET, "punct": frozenset("._-"),
    "space": frozenset(), "upper": _UPPER, "word": _WORD, "xdigit": _DIGITS | frozenset("abcdefABCDEF"),
}  # fmt: skip
_CATEGORIES = {
    "L": _LETTERS, "Lu": _UPPER, "Ll": _LOWER, "N": _DIGITS, "Nd": _DIGITS, "P": frozenset("._-"),
    "Pc": frozenset("_"), "Pd": frozenset("-"), "Po": frozenset("."), "Latin": _LETTERS,
    "Common": _DIGITS | frozenset("._-"), "Any": ALPHABET,
}  # fmt: skip
_EMPTY_CATEGORIES = frozenset(
    """
    C Cc Cf Co Cs Lm Lo Lt M Mc Me Mn Nl No Pe Pf Pi Ps S Sc Sk Sm So Z Zl Zp Zs Arabic Armenian Avestan Balinese
    Bamum Batak Bengali Bopomofo Brahmi Braille Buginese Buhid Canadian_Aboriginal Carian Chakma Cham Cherokee
    Coptic Cuneiform Cypriot Cyrillic Deseret Devanagari Egyptian_Hieroglyphs Ethiopic Georgian Glagolitic Gothic
    Greek Gujarati Gurmukhi Han Hangul Hanunoo Hebrew Hiragana Imperial_Aramaic Inherited Inscriptional_Pahlavi
    Inscriptional_Parthian Javanese Kaithi Kannada Katakana Kayah_Li Kharoshthi Khmer Lao Lepcha Limbu Linear_B Lisu
    Lycian Lydian Malayalam Mandaic Meetei_Mayek Meroitic_Cursive Meroitic_Hieroglyphs Miao Mongolian Myanmar
    New_Tai_Lue Nko Ogham Ol_Chiki Old_Italic Old_Persian Old_South_Arabian Old_Turkic Oriya Osmanya Phags_Pa
    Phoenician Rejang Runic Samaritan Saurashtra Sharada Shavian Sinhala Sora_Sompeng Sundanese Syloti_Nagri Syriac
    Tagalog Tagbanwa Tai_Le Tai_Tham Tai_Viet Takri Tamil Telugu Thaana Thai Tibetan Tifinagh Ugaritic Vai Yi
    """.split()  # noqa: SIM905
)
"""Categories and scripts of Unicode 6, which RE2/J knows, without any character of the alphabet."""
_ESCAPED = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ANCHORS = {"A": "^", "z": "$", "b": "b", "B": "B"}


class _Chars(NamedTuple):
    chars: frozenset[str]


class _Assertion(NamedTuple):
    kind: str
    """`^` begin, `$` end, `b` or `B` at a word's edge or not."""


class _Sequence(NamedTuple):
    parts: list[_Node]


class _Choice(NamedTuple):
    branches: list[_Node]


class _Repeat(NamedTuple):
    node: _Node
    least: int
    most: int | None


_Node: TypeAlias = "_Chars | _Assertion | _Sequence | _Choice | _Repeat"


class _BadRegex(Exception):
    """What is wrong with a pattern."""


# --- the pattern -------------------------------------------------------------------------------------------
class _Parser:
    def __init__(self, pattern: str):
        self._text = pattern
        self._at = 0
        self._ignore_case = False
        self._depth = 0
        self._names: set[str] = set()

    def parse(self) -> _Node:
        node = self._choice()
        if self._at < len(self._text):
            raise _BadRegex("unexpected )")
        return node

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        char = self._peek()
        if not char:
            raise _BadRegex("unexpected end of the pattern")
        self._at += 1
        return char

    def _take(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _choice(self) -> _Node:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise _BadRegex("expression nests too deeply")
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        self._depth -= 1
        return branches[0] if len(branches) == 1 else _Choice(branches)

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while (char := self._peek()) and char not in "|)":
            if self._take("\\Q"):
                quoted, _, _ = self._text[self._at :].partition("\\E")
                self._at = min(self._at + len(quoted) + 2, len(self._text))
                parts += [self._literal(one) for one in quoted]
                if parts:
                    parts[-1] = self._repeated(parts[-1])
                continue
            atom = self._atom()
            if atom is not None:
                parts.append(self._repeated(atom))
        return parts[0] if len(parts) == 1 else _Sequence(parts)

    def _atom(self) -> _Node | None:
        """None: flags that hold from here on."""
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            return _Chars(self._class())
        if char == ".":
            return _Chars(ALPHABET)
        if char in "^$":
            return _Assertion(char)
        if char in "*+?":
            raise _BadRegex(f"missing argument to repetition operator: {char}")
        if char == "\\":
            return self._escape()
        return self._literal(char)

    def _literal(self, char: str) -> _Chars:
        return _Chars(self._cased(frozenset(char) & ALPHABET) if char.isascii() else frozenset())

    def _cased(self, chars: frozenset[str]) -> frozenset[str]:
        if not self._ignore_case:
            return chars
        return chars | {c.lower() for c in chars} | {c.upper() for c in chars}

    def _group(self) -> _Node | None:
        ignored_case = self._ignore_case
        if self._take("?"):
            if self._take("P<") or self._take("<"):
                end = self._text.find(">", self._at)
                name = self._text[self._at : end] if end >= 0 else ""
                if not name or not all(c.isascii() and (c.isalnum() or c == "_") for c in name):
                    raise _BadRegex("invalid named capture")
                if name in self._names:
                    raise _BadRegex("duplicate capture group name")
                self._names.add(name)
                self._at = end + 1
            elif self._flags():
                return None
        node = self._choice()
        if not self._take(")"):
            raise _BadRegex("missing closing )")
        self._ignore_case = ignored_case
        return node

    def _flags(self) -> bool:
        """Reads flags; whether they stand alone and hold for what follows."""
        on, any_after_minus = True, True
        ignore_case = self._ignore_case
        while True:
            char = self._next()
            if char == "i":
                ignore_case = on
            elif char in "msU":
                pass  # a topic name has one line, and whether a repetition is greedy does not matter to a whole match
            elif char == "-" and on:
                on, any_after_minus = False, False
                continue
            elif char in ":)" and any_after_minus:
                self._ignore_case = ignore_case
                return char == ")"
            else:
                raise _BadRegex("invalid or unsupported Perl syntax")
            any_after_minus = True

    def _escape(self) -> _Node:
        char = self._next()
        if char in _ANCHORS:
            return _Assertion(_ANCHORS[char])
        if char == "C":
            return _Chars(ALPHABET)
        chars = self._named_class(char)
        return _Chars(self._cased(chars)) if chars is not None else self._literal(self._escaped(char))

    def _named_class(self, char: str) -> frozenset[str] | None:
        """The class that stands behind a backslash; None when it is a single character."""
        if char.lower() in _PERL:
            chars = _PERL[char.lower()]
            return chars if char.islower() else ALPHABET - chars
        if char not in "pP":
            return None
        name = self._next()
        if name == "{":
            end = self._text.find("}", self._at)
            if end < 0:
                raise _BadRegex("invalid character class range")
            name, self._at = self._text[self._at : end], end + 1
        is_negated = (char == "P") != name.startswith("^")
        name = name.removeprefix("^")
        if name not in _CATEGORIES and name not in _EMPTY_CATEGORIES:
            raise _BadRegex(f"invalid character class range: \\{char}{{{name}}}")
        chars = _CATEGORIES.get(name, frozenset())
        return ALPHABET - chars if is_negated else chars

    def _escaped(self, char: str) -> str:
        """The one character that a backslash and `char` stand for."""
        if char in _ESCAPED:
            return _ESCAPED[char]
        if char == "x":
            return self._hexadecimal()
        if char in "1234567" and (not self._peek() or self._peek() not in "01234567"):
            raise _BadRegex(f"invalid escape sequence: \\{char}")  # a backreference
        if char in "01234567":
            digits = char
            while len(digits) < 3 and self._peek() and self._peek() in "01234567":
                digits += self._next()
            return chr(int(digits, 8))
        if char.isascii() and char.isalnum():
            raise _BadRegex(f"invalid escape sequence: \\{char}")
        return char

    def _hexadecimal(self) -> str:
        if self._take("{"):
            end = self._text.find("}", self._at)
            digits = self._text[self._at : end] if end >= 0 else ""
            self._at = end + 1
        else:
            digits = self._next() + self._next()
        if not digits or len(digits) > 8 or not all(c in "0123456789abcdefABCDEF" for c in digits):
            raise _BadRegex("invalid escape sequence: \\x")
        code = int(digits, 16)
        if code > 0x10FFFF:
            raise _BadRegex("invalid escape sequence: \\x")
        return chr(code)

    def _class(self) -> frozenset[str]:
        is_negated = self._take("^")
        chars: frozenset[str] = frozenset()
        is_first = True
        while is_first or self._peek() != "]":
            if not self._peek():
                raise _BadRegex("missing closing ]")
            is_first = False
            named = self._class_in_class()
            if named is not None:
                chars |= named
                continue
            low = self._class_char()
            high = low
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("", "]"):
                self._at += 1
                high = self._class_char()
                if ord(high) < ord(low):
                    raise _BadRegex(f"invalid character class range: {low}-{high}")
            chars |= {char for char in ALPHABET if low <= char <= high}
        self._at += 1
        chars = self._cased(chars)
        return ALPHABET - chars if is_negated else chars

    def _class_in_class(self) -> frozenset[str] | None:
        if self._text.startswith("[:", self._at):
            end = self._text.find(":]", self._at + 2)
            if end >= 0:
                name = self._text[self._at + 2 : end]
                is_negated = name.startswith("^")
                chars = _POSIX.get(name.removeprefix("^"))
                if chars is None:
                    raise _BadRegex(f"invalid character class range: [:{name}:]")
                self._at = end + 2
                return ALPHABET - chars if is_negated else chars
        if self._peek() == "\\":
            start = self._at
            self._at += 1
            chars = self._named_class(self._next())
            if chars is not None:
                return chars
            self._at = start
        return None

    def _class_char(self) -> str:
        char = self._next()
        return self._escaped(self._next()) if char == "\\" else char

    def _repeated(self, node: _Node) -> _Node:
        is_repeated = False
        while True:
            bounds = self._bounds()
            if bounds is None:
                return node
            if is_repeated:
                raise _BadRegex("invalid nested repetition operator")
            is_repeated = True
            least, most = bounds
            if least > MAX_REPEAT or (most or 0) > MAX_REPEAT or (most is not None and most < least):
                raise _BadRegex("invalid repeat count")
            self._take("?")
            node = _Repeat(node, least, most)

    def _bounds(self) -> tuple[int, int | None] | None:
        for operator, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(operator):
                return bounds
        if self._peek() != "{":
            return None
        end = self._text.find("}", self._at)
        least, comma, most = self._text[self._at + 1 : end].partition(",") if end >= 0 else ("", "", "")
        if not _is_count(least) or (most and not _is_count(most)):
            return None  # a brace like any other character
        self._at = end + 1
        return int(least), (int(most) if most else None) if comma else int(least)


def _is_count(text: str) -> bool:
    return 0 < len(text) <= 9 and text.isascii() and text.isdigit()


# --- the machine -------------------------------------------------------------------------------------------
class TopicRegex:
    """A pattern that whole topic names are held against."""

    def __init__(self, pattern: str):
        """INVALID_REGULAR_EXPRESSION for what is none, or is too large."""
        self.pattern = pattern
        self._chars: list[frozenset[str] | None] = []
        """What a state goes on with; None: it goes on without a character."""
        self._assertions: list[str] = []
        self._follows: list[list[int]] = []
        self._built = 0
        try:
            if len(pattern) > MAX_PATTERN_LENGTH:
                raise _BadRegex("expression is too long")
            self._final = self._state()
            self._first = self._build(_Parser(pattern).parse(), self._final)
        except (_BadRegex, RecursionError) as error:
            message = f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {error}."
            raise ProtocolError(ErrorCode.INVALID_REGULAR_EXPRESSION, message) from None
        self._steps = 0
        self._known: dict[tuple[frozenset[int], str, str], frozenset[int]] = {}
        self._has_assertions = any(self._assertions)

    # --- building ----------------------------------------------------------------------------------------
    def _state(self, chars: frozenset[str] | None = None, assertion: str = "", *follows: int) -> int:
        if len(self._follows) >= MAX_STATES:
            raise _BadRegex("expression is too large")
        self._chars.append(chars)
        self._assertions.append(assertion)
        self._follows.append(list(follows))
        return len(self._follows) - 1

    def _build(self, node: _Node, then: int) -> int:
        """The state that `node` begins with when `then` comes behind it."""
        self._built += 1
        if self._built > 2 * MAX_STATES:  # also what makes no state may be asked for a thousand times a thousand
            raise _BadRegex("expression is too large")
        match node:
            case _Chars(chars):
                return self._state(chars, "", then)
            case _Assertion(kind):
                return self._state(None, kind, then)
            case _Sequence(parts):
                for part in reversed(parts):
                    then = self._build(part, then)
                return then
            case _Choice(branches):
                return self._state(None, "", *[self._build(branch, then) for branch in branches])
            case _Repeat(repeated, least, most):
                if most is None:
                    loop = self._state(None, "", then)
                    self._follows[loop].append(self._build(repeated, loop))
                    then = loop
                else:
                    after = then
                    for _ in range(most - least):
                        then = self._state(None, "", self._build(repeated, then), after)
                for _ in range(least):
                    then = self._build(repeated, then)
                return then

    # --- matching ----------------------------------------------------------------------------------------
    def matches(self, name: str) -> bool:
        """Whether all of `name` matches. Raises TooCostly once MAX_STEPS are spent."""
        states, before = frozenset((self._first,)), ""
        for char in name:
            key = (states, before if self._has_assertions else "", char)
            following = self._known.get(key)
            if following is None:
                following = self._step(states, before, char)
                if len(self._known) >= MAX_REMEMBERED:
                    self._known.clear()
                self._known[key] = following
            if not following:
                return False
            states, before = following, char
        return self._final in self._closure(states, before, "")

    def _step(self, states: frozenset[int], before: str, char: str) -> frozenset[int]:
        reached = self._closure(states, before, char)
        following: set[int] = set()
        for state in reached:
            chars = self._chars[state]
            if chars is not None and char in chars:
                following.update(self._follows[state])
        return frozenset(following)

    def _closure(self, states: Iterable[int], before: str, after: str) -> set[int]:
        """The states that are reached without a character between `before` and `after`."""
        seen, waiting = set(states), list(states)
        while waiting:
            state = waiting.pop()
            self._steps += 1
            if self._chars[state] is None and _holds(self._assertions[state], before, after):
                for following in self._follows[state]:
                    if following not in seen:
                        seen.add(following)
                        waiting.append(following)
        if self._steps > MAX_STEPS:
            raise TooCostly(self.pattern)
        return seen


class TooCostly(Exception):
    """A pattern has spent what it may."""


def _holds(assertion: str, before: str, after: str) -> bool:
    if not assertion:
        return True
    if assertion == "^":
        return not before
    if assertion == "$":
        return not after
    is_edge = (before in _WORD) != (after in _WORD)
    return is_edge if assertion == "b" else not is_edge


def check_regex(pattern: str) -> None:
    """INVALID_REGULAR_EXPRESSION for what is no pattern, or is too large."""
    TopicRegex(pattern)
