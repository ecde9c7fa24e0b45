"""Patterns of ``rank_pattern`` and ``alpha_pattern``, matched in bounded time.

PEFT's rule: a key matches a module name when ``re.match(r"(.*\\.)?(KEY)$", name)`` does, and the
first key of the file wins. Most keys are plain names. The others are regular expressions written
by strangers, so they never reach ``re``: a strict grammar is compiled to a non-deterministic
automaton and all its states advance together, one character at a time (Thompson, 1968). Work is
states x characters, and a shared budget bounds even that.
"""

import string
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from adapters.pattern_grammar import (
    Choice,
    Guard,
    Letter,
    Node,
    Parser,
    PatternRefused,
    Repeat,
    Series,
)
from adapters.tensor_file import shown

MAX_PROGRAM = 1_000  # states of one automaton
MAX_STEPS = 3_000_000  # states visited for all names of one adapter
PLAIN = frozenset(string.ascii_letters + string.digits + "_.")
V = TypeVar("V")


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
        self._keys: list[str] = []
        self._found: set[int] = set()
        self._plain: dict[int, list[tuple[int, str]]] = {}  # by length
        self._automata: list[tuple[int, Automaton]] = []
        for index, (key, value) in enumerate(pairs):
            self._values.append(value)
            self._keys.append(key)
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
        self._found.update(hits)
        return [self._values[index] for index in sorted(set(hits))]

    @property
    def unused(self) -> list[str]:
        """Keys that matched none of the names asked for so far."""
        return [key for index, key in enumerate(self._keys) if index not in self._found]


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
        self._states = [State()]  # state 0 is the end
        self._compiled = 0  # nodes, counted because empty ones add no state
        try:
            self._start = self._compile(Parser(key).parse(), 0)
        except PatternRefused as error:
            raise PatternRefused(f"pattern '{shown(key)}': {shown(str(error))}") from error

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

    def _compile(self, node: Node, after: int) -> int:
        """Add states that match ``node`` and then go on at ``after``; returns the first."""
        self._compiled += 1
        if self._compiled > 4 * MAX_PROGRAM:
            raise PatternRefused("repeated too often")
        match node:
            case Letter(accepts):
                return self._add(State(accepts=accepts, next=[after]))
            case Guard(sign):
                return self._add(State(guard=sign, next=[after]))
            case Series(parts):
                for part in reversed(parts):
                    after = self._compile(part, after)
                return after
            case Choice(parts):
                return self._add(State(next=[self._compile(part, after) for part in parts]))
            case Repeat():
                return self._repeat(node, after)

    def _repeat(self, node: Repeat, after: int) -> int:
        if node.most is None:
            loop = self._add(State(next=[after]))
            self._states[loop].next.append(self._compile(node.part, loop))
            after = loop
        for _ in range((node.most or node.least) - node.least):
            after = self._add(State(next=[self._compile(node.part, after), after]))
        for _ in range(node.least):
            after = self._compile(node.part, after)
        return after
