"""Patterns of ``rank_pattern`` and ``alpha_pattern``, matched in bounded time.

PEFT's rule: a key matches a module name when ``re.match(r"(.*\\.)?(KEY)$", name)`` does, and the
first key of the file wins. Most keys are plain names. The others are regular expressions written
by strangers, so they never reach ``re``: a strict grammar is compiled to a non-deterministic
automaton and all its states advance together, one character at a time (Thompson, 1968). Work is
states x characters, and a shared budget bounds even that.

Grammar: literals, ``.``, classes ``[a-z]``, ``\\d \\w \\s`` and their complements, escaped
punctuation, groups ``(...)`` and ``(?:...)``, ``|``, ``* + ? {m,n}`` (also lazy), ``^`` and ``$``.
Names are ASCII, so a set of characters is a subset of ASCII.
"""

import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

MAX_KEY = 512  # characters of one key
MAX_PROGRAM = 1_000  # states of one automaton
MAX_DEPTH = 20  # nested groups
MAX_STEPS = 3_000_000  # states visited for all names of one adapter

ASCII = frozenset(map(chr, range(128)))
PLAIN = frozenset(string.ascii_letters + string.digits + "_.")
CLASSES = {
    "d": frozenset(string.digits),
    "w": frozenset(string.ascii_letters + string.digits + "_"),
    "s": frozenset(" \t\n\r\f\v"),
}
V = TypeVar("V")


class PatternRefused(ValueError):
    """The key is outside the grammar, or too complex to match."""


@dataclass(slots=True)
class Budget:
    """Steps left for one adapter."""

    steps: int = MAX_STEPS

    def spend(self, steps: int) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise PatternRefused("patterns take too long to match")


class PatternTable(Generic[V]):
    """Ordered (key, value) pairs; ``find`` gives the values of all keys that match a name."""

    def __init__(self, pairs: Iterable[tuple[str, V]], budget: Budget | None = None) -> None:
        """Raises PatternRefused, naming the key."""
        self._budget = budget or Budget()
        self._values: list[V] = []
        self._plain: dict[int, list[tuple[int, str]]] = {}  # by length
        self._automata: list[tuple[int, Automaton]] = []
        for index, (key, value) in enumerate(pairs):
            self._values.append(value)
            if PLAIN.issuperset(key):
                self._plain.setdefault(len(key), []).append((index, key))
            else:
                self._automata.append((index, Automaton(key)))

    def find(self, name: str) -> list[V]:
        """In the order of the file, so the first is the one that counts."""
        hits = [index for index, each in self._automata if each.matches(name, self._budget)]
        for start in starts(name):
            tail = name[start:]
            candidates = self._plain.get(len(tail), ())
            self._budget.spend(len(candidates))
            hits += [index for index, key in candidates if _plain_match(key, tail)]
        return [self._values[index] for index in sorted(set(hits))]


def starts(name: str) -> list[int]:
    """Where a key may begin: the name's start, and after every dot."""
    return [0, *(index + 1 for index, letter in enumerate(name) if letter == ".")]


def _plain_match(key: str, tail: str) -> bool:
    """A dot of a plain key stands for any character, as it does in a regular expression."""
    return key == tail or all(k in (c, ".") for k, c in zip(key, tail, strict=True))


@dataclass(slots=True)
class State:
    """Reads one of ``accepts`` when set, else leads on freely; ``^`` and ``$`` guard that."""

    accepts: frozenset[str] | None = None
    guard: str = ""
    next: list[int] = field(default_factory=list)


class Automaton:
    """One regular expression. Immutable once built."""

    def __init__(self, key: str) -> None:
        if len(key) > MAX_KEY:
            raise PatternRefused(f"pattern of {len(key)} characters, more than {MAX_KEY}")
        self._states = [State()]  # state 0 is the end
        self._compiled = 0  # nodes, counted because empty ones add no state
        try:
            self._start = self._compile(_Parser(key).parse(), 0)
        except PatternRefused as error:
            raise PatternRefused(f"pattern {key!a}: {error}") from error

    def matches(self, name: str, budget: Budget) -> bool:
        begins, current = set(starts(name)), set[int]()
        for index in range(len(name) + 1):
            seeds = [self._start] if index in begins else []
            at_end = index == len(name)
            current = self._closure([*current, *seeds], start=index == 0, end=at_end)
            budget.spend(len(current) + 1)
            if not at_end:
                current = self._advance(current, name[index])
        return 0 in current

    def _advance(self, current: set[int], letter: str) -> set[int]:
        after: set[int] = set()
        for state in map(self._states.__getitem__, current):
            if state.accepts is not None and letter in state.accepts:
                after.update(state.next)
        return after

    def _closure(self, frontier: list[int], *, start: bool, end: bool) -> set[int]:
        reached: set[int] = set()
        while frontier:
            index = frontier.pop()
            state = self._states[index]
            if index in reached:
                continue
            reached.add(index)
            blocked = (state.guard == "^" and not start) or (state.guard == "$" and not end)
            if state.accepts is None and not blocked:
                frontier.extend(state.next)
        return reached

    def _add(self, state: State) -> int:
        if len(self._states) >= MAX_PROGRAM:
            raise PatternRefused(f"more than {MAX_PROGRAM} states")
        self._states.append(state)
        return len(self._states) - 1

    def _compile(self, node: "Node", after: int) -> int:
        """Add states that match ``node`` and then go on at ``after``; returns the first."""
        self._compiled += 1
        if self._compiled > 4 * MAX_PROGRAM:
            raise PatternRefused("repeated too often")
        match node:
            case Letter(accepts):
                return self._add(State(accepts=accepts, next=[after]))
            case Guard(sign):
                return self._add(State(guard=sign, next=[after]))
            case Sequence_(parts):
                for part in reversed(parts):
                    after = self._compile(part, after)
                return after
            case Choice(parts):
                return self._add(State(next=[self._compile(part, after) for part in parts]))
            case Repeat():
                return self._repeat(node, after)

    def _repeat(self, node: "Repeat", after: int) -> int:
        if node.most is None:
            loop = self._add(State(next=[after]))
            self._states[loop].next.append(self._compile(node.part, loop))
            after = loop
        for _ in range((node.most or node.least) - node.least):
            after = self._add(State(next=[self._compile(node.part, after), after]))
        for _ in range(node.least):
            after = self._compile(node.part, after)
        return after


@dataclass(frozen=True, slots=True)
class Letter:
    accepts: frozenset[str]


@dataclass(frozen=True, slots=True)
class Guard:
    sign: str


@dataclass(frozen=True, slots=True)
class Sequence_:
    parts: Sequence["Node"]


@dataclass(frozen=True, slots=True)
class Choice:
    parts: Sequence["Node"]


@dataclass(frozen=True, slots=True)
class Repeat:
    part: "Node"
    least: int
    most: int | None


Node = Letter | Guard | Sequence_ | Choice | Repeat


class _Parser:
    """Recursive descent over one key."""

    def __init__(self, text: str) -> None:
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
        return Sequence_(parts)

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
        least, most = self._bounds() if sign == "{" else _BOUNDS[sign]
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


_BOUNDS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
