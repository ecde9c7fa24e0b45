"""The strict grammar of patterns: text to a tree, or a refusal.

Literals, ``.``, classes ``[a-z]``, ``\\d \\w \\s`` and their complements, escaped punctuation,
groups ``(...)`` and ``(?:...)``, ``|``, ``* + ? {m,n}`` (also lazy), ``^`` and ``$``. Names are
ASCII, so a set of characters is a subset of ASCII. What ``re`` reads in a special way and this
grammar does not know is refused, never guessed.
"""

import string
from collections.abc import Sequence
from dataclasses import dataclass

MAX_KEY = 512  # characters
MAX_DEPTH = 20  # nested groups
ASCII = frozenset(map(chr, range(128)))
CLASSES = {
    "d": frozenset(string.digits),
    "w": frozenset(string.ascii_letters + string.digits + "_"),
    "s": frozenset(" \t\n\r\f\v"),
}
BOUNDS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class PatternRefused(ValueError):
    """The key is outside the grammar, or too complex to match."""


@dataclass(frozen=True, slots=True)
class Letter:
    accepts: frozenset[str]


@dataclass(frozen=True, slots=True)
class Guard:
    sign: str


@dataclass(frozen=True, slots=True)
class Series:
    parts: Sequence["Node"]


@dataclass(frozen=True, slots=True)
class Choice:
    parts: Sequence["Node"]


@dataclass(frozen=True, slots=True)
class Repeat:
    part: "Node"
    least: int
    most: int | None


Node = Letter | Guard | Series | Choice | Repeat


class Parser:
    """Recursive descent over one key."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_KEY:
            raise PatternRefused(f"pattern of {len(text)} characters, more than {MAX_KEY}")
        self._text, self._at, self._depth = text, 0, 0

    def parse(self) -> Node:
        node = self._choice()
        if self._at < len(self._text):
            raise PatternRefused("unbalanced )")
        return node

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        letter = self._peek()
        if not letter:
            raise PatternRefused("ends too early")
        if letter not in ASCII:
            raise PatternRefused("only ASCII is matched")
        self._at += 1
        return letter

    def _skip(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def _choice(self) -> Node:
        parts = [self._sequence()]
        while self._skip("|"):
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else Choice(parts)

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._quantified(self._atom()))
        return Series(parts)

    def _atom(self) -> Node:
        letter = self._take()
        if letter in "^$":
            return Guard(letter)
        if letter == "(":
            return self._group()
        if letter == "[":
            return Letter(self._class())
        if letter == ".":
            return Letter(ASCII - {"\n"})
        if letter == "\\":
            return Letter(self._escape())
        if letter in "*+?{}]":
            raise PatternRefused(f"unexpected {letter}")
        return Letter(frozenset(letter))

    def _group(self) -> Node:
        if self._peek() == "?" and not self._skip("?:"):
            raise PatternRefused("only plain groups are matched")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise PatternRefused(f"groups nested deeper than {MAX_DEPTH}")
        node = self._choice()
        if not self._skip(")"):
            raise PatternRefused("missing )")
        self._depth -= 1
        return node

    def _escape(self) -> frozenset[str]:
        letter = self._take()
        if letter.lower() in CLASSES:
            chosen = CLASSES[letter.lower()]
            return chosen if letter in CLASSES else ASCII - chosen
        if letter in string.punctuation:
            return frozenset(letter)
        raise PatternRefused(f"\\{letter} is not matched")

    def _class(self) -> frozenset[str]:
        negated, chosen = self._skip("^"), set[str]()
        while not self._skip("]"):
            first = self._class_item()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._take()
                last = self._class_item()
                if len(first) != 1 or len(last) != 1 or min(first) > min(last):
                    raise PatternRefused("bad range in a class")
                chosen.update(map(chr, range(ord(min(first)), ord(min(last)) + 1)))
            else:
                chosen |= first
        if not chosen:
            raise PatternRefused("empty class")
        return ASCII - chosen if negated else frozenset(chosen)

    def _class_item(self) -> frozenset[str]:
        letter = self._take()
        if letter == "\\":
            return self._escape()
        if letter in "[&~|":  # reserved for set operations by re
            raise PatternRefused(f"unescaped {letter} in a class")
        return frozenset(letter)

    def _quantified(self, node: Node) -> Node:
        if self._peek() not in ("*", "+", "?", "{"):
            return node
        if isinstance(node, Guard):
            raise PatternRefused("an anchor cannot be repeated")
        sign = self._take()
        least, most = self._bounds() if sign == "{" else BOUNDS[sign]
        self._skip("?")  # laziness does not change whether a name matches
        if self._peek() in ("*", "+", "?", "{"):
            raise PatternRefused("repeated quantifier")
        return Repeat(node, least, most)

    def _bounds(self) -> tuple[int, int | None]:
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at : max(end, self._at)].partition(",")
        numbers = [text for text in (low, high) if text]
        if end < 0 or not numbers or not all(t.isascii() and t.isdigit() for t in numbers):
            raise PatternRefused("bad {m,n}")
        if any(len(text) > 4 for text in numbers):
            raise PatternRefused("repeated too often")
        self._at = end + 1
        least = int(low or 0)
        most = int(high) if high else None if comma else least
        if most is not None and most < least:
            raise PatternRefused("bad {m,n}")
        return least, most
