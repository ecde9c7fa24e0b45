"""What is claimed about each quantised module, before its tensors are looked at.

A checkpoint may quantise its modules in different ways. Its ``Scheme`` is a list of rules, of
which the first that names a module holds, and what holds for all others. It is only a claim: the
tensors decide (see ``formats`` and ``compressed``), and a module that contradicts it is refused.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NoReturn

from engine.errors import CheckpointInvalid

Method = Literal["gptq", "awq", "compressed-tensors", "fp8"]
Zeros = Literal["v1", "v2"]  # v1 stores a GPTQ zero minus one, v2 stores it as it is
BITS = (4, 8)
GROUPS = (32, 64, 128, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What is said about one module. None means: not said."""

    method: Method | None = None
    bits: int | None = None
    group_size: int | None = None  # rows of one scale; -1: all of them
    symmetric: bool | None = None
    act_order: bool | None = None
    zeros: Zeros | None = None
    kind: Literal["int", "float"] | None = None  # of a number
    block: tuple[int, int] | None = None  # outputs and inputs that share a scale


@dataclass(frozen=True, slots=True)
class Rule:
    """For modules that ``names`` accepts. ``claim`` is read when one does, so that settings we
    do not serve are refused under the name of a module that has them; None: not quantised."""

    names: Callable[[str], bool]
    claim: Callable[[str], Claim | None] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """Of a whole checkpoint. Without claims at all, the tensors alone tell."""

    default: Claim | None = field(default_factory=Claim)  # None: no other module is quantised
    rules: tuple[Rule, ...] = ()

    def claim(self, module: str) -> Claim | None:
        """What is said about ``module``; None: that it is not quantised.

        Raises CheckpointInvalid naming the module when it has settings we do not serve.
        """
        for rule in self.rules:
            if rule.names(module):
                return None if rule.claim is None else rule.claim(module)
        return self.default


def names_matching(source: str, field: str, expression: object) -> Callable[[str], bool]:
    """Accepts the names that ``expression`` matches from their start."""
    compiled = _compiled(source, field, expression)
    return lambda module: compiled.match(module) is not None


def names_searched(source: str, field: str, expression: object) -> Callable[[str], bool]:
    """Accepts the names in which ``expression`` is found."""
    compiled = _compiled(source, field, expression)
    return lambda module: compiled.search(module) is not None


def _compiled(source: str, field: str, expression: object) -> re.Pattern[str]:
    if not isinstance(expression, str):
        refuse(source, field, expression, "a regular expression")
    try:
        return re.compile(expression)
    except re.error as error:
        refuse(source, field, expression, f"a regular expression ({error})")


def read_flag(source: str, field: str, found: object) -> bool | None:
    """None: not said. The word "false" would count as true."""
    if found is not None and not isinstance(found, bool):
        refuse(source, field, found, "true or false")
    return found


def read_group_size(source: str, found: object) -> int:
    """Rows of one scale; -1: all of them, which some write as none or 0."""
    size = -1 if found in (None, 0) else found
    check(source, "group_size", size, GROUPS)
    assert isinstance(size, int)
    return size


def check(source: str, field: str, found: object, allowed: tuple[object, ...]) -> None:
    if not any(type(found) is type(value) and found == value for value in allowed):
        refuse(source, field, found, " or ".join(map(repr, allowed)))


def refuse(source: str, field: str, found: object, expected: str) -> NoReturn:
    raise CheckpointInvalid(f"{source}: {field}={found!r}; expected {expected}")
