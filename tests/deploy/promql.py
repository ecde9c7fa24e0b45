"""As much of PromQL as the alert rules use, with Prometheus' meanings.

Selectors with matchers, ``[5m]``, ``rate`` (extrapolated), ``sum`` with or without ``by``,
``histogram_quantile``, ``vector``, ``or``, ``+``, ``*``, ``/`` and ``>``. Anything else is refused.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Value = Vector | float
Evaluate = Callable[["Storage", float], Value]

LOOKBACK_S = 300.0
TOKEN = re.compile(r'\s*([A-Za-z_:][\w:]*|\d+(?:\.\d+)?|"[^"]*"|=~|!=|!~|[-+*/<>=(){}\[\],])')
BINARY: dict[str, tuple[int, Callable[[float, float], float]]] = {
    "or": (1, lambda a, b: a),
    ">": (2, lambda a, b: a if a > b else math.nan),
    "+": (3, lambda a, b: a + b),
    "*": (4, lambda a, b: a * b),
    "/": (4, lambda a, b: a / b if b else math.nan),
}


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    labels: Labels
    samples: tuple[tuple[float, float], ...]  # (seconds, value)


@dataclass(frozen=True, slots=True)
class Storage:
    series: tuple[Series, ...]


@dataclass(frozen=True, slots=True)
class Selector:
    name: str
    matchers: tuple[tuple[str, str, str], ...]

    def find(self, storage: Storage) -> list[Series]:
        return [one for one in storage.series if one.name == self.name and self._fits(one.labels)]

    def _fits(self, labels: Labels) -> bool:
        has = dict(labels)
        for label, operator, wanted in self.matchers:
            found = has.get(label, "")
            equal = bool(re.fullmatch(wanted, found)) if "~" in operator else found == wanted
            if equal == operator.startswith("!"):
                return False
        return True

    def at(self, storage: Storage, now: float) -> Vector:
        found = {}
        for one in self.find(storage):
            recent = [value for at, value in one.samples if now - LOOKBACK_S < at <= now]
            if recent:
                found[one.labels] = recent[-1]
        return found


def rate(selector: Selector, window: float) -> Evaluate:
    def evaluate(storage: Storage, now: float) -> Value:
        found: Vector = {}
        for one in selector.find(storage):
            inside = [(at, value) for at, value in one.samples if now - window < at <= now]
            if len(inside) >= 2:
                found[one.labels] = _rate(inside, now - window, now, window)
        return found

    return evaluate


def _rate(inside: list[tuple[float, float]], start: float, stop: float, window: float) -> float:
    """The increase between first and last sample, resets made good, extended to the window's ends
    where a sample could have been there."""
    values = [value for _, value in inside]
    gain = values[-1] - values[0]
    gain += sum(before for before, after in pairwise(values) if after < before)
    covered = inside[-1][0] - inside[0][0]
    between = covered / (len(inside) - 1)
    head, tail = inside[0][0] - start, stop - inside[-1][0]
    if head >= between * 1.1:
        head = between / 2
    if gain > 0 and values[0] >= 0:
        head = min(head, covered * values[0] / gain)
    if tail >= between * 1.1:
        tail = between / 2
    return gain * (covered + head + tail) / covered / window


def quantile(q: float, inner: Evaluate) -> Evaluate:
    def evaluate(storage: Storage, now: float) -> Value:
        groups: defaultdict[Labels, list[tuple[float, float]]] = defaultdict(list)
        vector = inner(storage, now)
        assert isinstance(vector, dict)
        for labels, value in vector.items():
            bound = float(dict(labels)["le"].replace("+Inf", "inf"))
            groups[frozenset(pair for pair in labels if pair[0] != "le")].append((bound, value))
        return {labels: _quantile(q, sorted(buckets)) for labels, buckets in groups.items()}

    return evaluate


def _quantile(q: float, buckets: list[tuple[float, float]]) -> float:
    total = buckets[-1][1]
    if not total:
        return math.nan
    below, start = 0.0, 0.0
    for bound, count in buckets:
        if count >= q * total:
            if math.isinf(bound):
                return start
            return start + (bound - start) * (q * total - below) / (count - below)
        below, start = count, bound
    return math.nan


class Parser:
    def __init__(self, text: str) -> None:
        self._tokens, at = [], 0
        while text[at:].strip():
            match = TOKEN.match(text, at)
            assert match, f"not understood: {text[at : at + 20]!r}"
            self._tokens.append(match[1])
            at = match.end()
        self._at = 0

    def parse(self) -> Evaluate:
        found = self._expression(0)
        assert self._at == len(self._tokens), f"left over: {self._tokens[self._at :]}"
        return found

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self, expected: str | None = None) -> str:
        token = self._peek()
        assert expected in (None, token), f"expected {expected}, found {token}"
        self._at += 1
        return token

    def _expression(self, least: int) -> Evaluate:
        left = self._term()
        while (operator := self._peek()) in BINARY and BINARY[operator][0] > least:
            self._next()
            left = binary(operator, left, self._expression(BINARY[operator][0]))
        return left

    def _term(self) -> Evaluate:
        token = self._next()
        if token == "(":
            inner = self._expression(0)
            self._next(")")
            return inner
        if token[0].isdigit():
            return constant(float(token))
        if token == "sum":
            return self._sum()
        if token == "rate":
            return self._rate()
        if token in ("histogram_quantile", "vector"):
            self._next("(")
            number = float(self._next())
            if token == "vector":
                self._next(")")
                return lambda storage, now: {frozenset(): number}
            self._next(",")
            inner = self._expression(0)
            self._next(")")
            return quantile(number, inner)
        return self._selector(token).at

    def _sum(self) -> Evaluate:
        kept: tuple[str, ...] = ()
        if self._peek() == "by":
            self._next()
            kept = self._names()
        self._next("(")
        inner = self._expression(0)
        self._next(")")

        def evaluate(storage: Storage, now: float) -> Value:
            total: defaultdict[Labels, float] = defaultdict(float)
            vector = inner(storage, now)
            assert isinstance(vector, dict)
            for labels, value in vector.items():
                total[frozenset(pair for pair in labels if pair[0] in kept)] += value
            return dict(total)

        return evaluate

    def _names(self) -> tuple[str, ...]:
        self._next("(")
        names = []
        while (token := self._next()) != ")":
            if token != ",":
                names.append(token)
        return tuple(names)

    def _rate(self) -> Evaluate:
        self._next("(")
        selector = self._selector(self._next())
        self._next("[")
        number, unit = float(self._next()), self._next()
        self._next("]")
        self._next(")")
        return rate(selector, number * {"s": 1, "m": 60, "h": 3600}[unit])

    def _selector(self, name: str) -> Selector:
        matchers = []
        if self._peek() == "{":
            self._next()
            while self._peek() != "}":
                label, operator, wanted = self._next(), self._next(), self._next().strip('"')
                matchers.append((label, operator, wanted))
                if self._peek() == ",":
                    self._next()
            self._next("}")
        return Selector(name, tuple(matchers))


def constant(number: float) -> Evaluate:
    return lambda storage, now: number


def binary(operator: str, left: Evaluate, right: Evaluate) -> Evaluate:
    """Vectors match by equal labels; a number goes with every one. NaN of ``>`` is no sample."""
    apply = BINARY[operator][1]

    def evaluate(storage: Storage, now: float) -> Value:
        a, b = left(storage, now), right(storage, now)
        assert isinstance(a, dict), "the left side is a vector"
        if operator == "or":
            assert isinstance(b, dict)
            return b | a
        pairs = ((k, v, b if isinstance(b, float) else b.get(k)) for k, v in a.items())
        found = {k: apply(v, w) for k, v, w in pairs if w is not None}
        return {k: v for k, v in found.items() if operator != ">" or not math.isnan(v)}

    return evaluate
