"""Whether any finite value satisfies a schema, and each of its parts.

A node that must hold another of its kind holds them without end, and a model that began one would
write until its limit. A *part* is a schema inside a schema, and *ends* where some finite value
satisfies it. What ends is found from the leaves up; whatever is not understood is taken to end,
so what is said not to never does.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

Schema = Mapping[str, Any]
Parts = Callable[[Schema], Iterator[tuple[str, Schema]]]

MOST_ROUNDS = 32  # of going over what has not been found to end
_ALTERNATIVES = ("anyOf", "oneOf")
_SAME_VALUE = (*_ALTERNATIVES, "allOf")  # their parts are about the value itself
_HOLDING = {"object", "array"}


@dataclass(slots=True)
class Ends:
    """Which parts of a schema end."""

    root: Schema
    parts: Parts
    _order: list[Schema] = field(default_factory=list)  # leaves first
    _types: dict[int, Any] = field(default_factory=dict)  # by id, what the parts around one say
    _ending: set[int] = field(default_factory=set)  # ids

    def __post_init__(self) -> None:
        self._discover()
        waiting = self._order
        for _ in range(MOST_ROUNDS):
            before, waiting = waiting, [part for part in waiting if not self._found(part)]
            if len(waiting) == len(before):
                return
        self._ending.update(map(id, waiting))

    def of(self, part: object) -> bool:
        return not isinstance(part, Mapping) or id(part) in self._ending

    def culprit(self) -> str:
        """Of a schema that does not end: the path, from it, at which it comes to itself again."""
        part, at, been = self.root, "", set[int]()
        while id(part) not in been:
            been.add(id(part))
            inside = next(((p, s) for p, s in self.parts(part) if self._needs(part, p, s)), None)
            if inside is not None:
                part, at = inside[1], at + inside[0]
                continue
            path, target = self._target(part)
            if target is None or id(target) in been:
                break
            part, at = target, path
        return at

    def _discover(self) -> None:
        seen, stack = {id(self.root)}, [(self.root, False)]
        while stack:
            part, done = stack.pop()
            if done:
                self._order.append(part)
                continue
            stack.append((part, True))
            types = self._type(part)
            for path, inner in self._beneath(part):
                if path.startswith(tuple(f".{key}[" for key in _SAME_VALUE)):
                    self._types.setdefault(id(inner), types)
                if id(inner) not in seen:
                    seen.add(id(inner))
                    stack.append((inner, False))

    def _beneath(self, part: Schema) -> Iterator[tuple[str, Schema]]:
        yield from self.parts(part)
        path, target = self._target(part)
        if target is not None:
            yield path, target

    def _target(self, part: Schema) -> tuple[str, Schema | None]:
        """Where a reference leads: its path from the root, and what lies there."""
        reference = part.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return "", None
        found: Any = self.root
        path = ""
        for step in unquote(reference[1:]).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and name in found:
                found, path = found[name], f"{path}.{name}"
            elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found, path = found[int(name)], f"{path}[{name}]"
            else:
                return "", None
        return (path, found) if isinstance(found, Mapping) else ("", None)

    def _type(self, part: Schema) -> Any:
        return part.get("type", self._types.get(id(part)))

    def _found(self, part: Schema) -> bool:
        ends = self._ends(part)
        if ends:
            self._ending.add(id(part))
        return ends

    def _ends(self, part: Schema) -> bool:
        target = self._target(part)[1]
        if target is not None and not self.of(target):
            return False
        if not all(map(self.of, _listed(part, "allOf"))):
            return False
        for key in _ALTERNATIVES:
            listed = _listed(part, key)
            if listed and not any(map(self.of, listed)):
                return False
        return "enum" in part or "const" in part or self._some_type_ends(part)

    def _some_type_ends(self, part: Schema) -> bool:
        kinds = self._type(part)
        kinds = {kinds} if isinstance(kinds, str) else kinds
        if not isinstance(kinds, list | set) or not set(map(str, kinds)) <= _HOLDING:
            return True
        return ("object" in kinds and self._object_ends(part)) or (
            "array" in kinds and self._array_ends(part)
        )

    def _object_ends(self, part: Schema) -> bool:
        named, more = _named(part, "properties"), part.get("additionalProperties", True)
        patterns = _named(part, "patternProperties")
        for name in filter(_is_text, _listed(part, "required")):
            if not self.of(named.get(name, True if patterns else more)):
                return False
        fewest = part.get("minProperties", 0)
        if self.of(more) or any(map(self.of, patterns.values())):
            return True
        return not isinstance(fewest, int) or fewest <= sum(map(self.of, named.values()))

    def _array_ends(self, part: Schema) -> bool:
        fewest, first, rest = (
            part.get("minItems", 0),
            _listed(part, "prefixItems"),
            part.get("items"),
        )
        if isinstance(rest, list):
            first, rest = rest, part.get("additionalItems")
        if not isinstance(fewest, int | float):
            return True
        must = first[: int(fewest)]
        return all(map(self.of, must)) and (fewest <= len(first) or self.of(rest))

    def _needs(self, part: Schema, path: str, inner: Schema) -> bool:
        """Whether ``inner``, which lies at ``path``, is why a part does not end."""
        if self.of(inner) or path.startswith((".$defs.", ".definitions.")):
            return False
        if path.startswith(".properties."):
            return path.removeprefix(".properties.") in _listed(part, "required")
        return path.startswith((
            *(f".{key}[" for key in _SAME_VALUE), ".items", ".prefixItems", ".additionalProperties",
        ))  # fmt: skip


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _listed(part: Schema, key: str) -> list[Any]:
    value = part.get(key)
    return value if isinstance(value, list) else []


def _named(part: Schema, key: str) -> Mapping[str, Any]:
    value = part.get(key)
    return value if isinstance(value, Mapping) else {}
