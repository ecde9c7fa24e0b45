"""A YAML file as nodes that know where they stand, so that every complaint says file, line, path.

What YAML would guess is refused: a name must be text (``no`` and ``0123`` are not), and a key that
stands twice is an error. Numbers are read from their digits, so money never is a float.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import TypeVar

import yaml

from gateway.errors import GatewayError, InvalidRequest

MOST_BYTES = 4 << 20
MOST_DEPTH = 32
TAG = "tag:yaml.org,2002:"
INTEGER, STRING, NULL = TAG + "int", TAG + "str", TAG + "null"
NUMBERS = (INTEGER, TAG + "float", STRING)

T = TypeVar("T")


class DeclarationInvalid(InvalidRequest):
    """The file says something that cannot be: where, and what."""


@dataclass(frozen=True, slots=True)
class Spot:
    """One node. Belongs to one reading of one file."""

    file: str
    path: str
    node: yaml.Node
    loader: yaml.SafeLoader

    def wrong(self, problem: str) -> DeclarationInvalid:
        line = self.node.start_mark.line + 1
        return DeclarationInvalid(f"{self.file}:{line}: {self.path or 'the file'}: {problem}")

    @contextmanager
    def named(self) -> Iterator[None]:
        """What the block finds wrong with this value is told with its place."""
        try:
            yield
        except DeclarationInvalid:
            raise
        except GatewayError as error:
            raise self.wrong(error.message) from error

    @property
    def is_null(self) -> bool:
        return bool(self.node.tag == NULL)

    def mapping(self) -> "dict[str, Spot]":
        """Raises DeclarationInvalid, also for a name that stands twice."""
        if self.is_null:
            return {}
        if not isinstance(self.node, yaml.MappingNode):
            raise self.wrong("must be a mapping (name: value)")
        seen = set[str]()
        for key, _ in self.node.value:
            if key.tag == TAG + "merge":
                continue
            if key.tag != STRING:
                raise self._at(str(key.value), key).wrong("put this name into quotes")
            if key.value in seen:
                raise self._at(key.value, key).wrong("stands twice")
            seen.add(key.value)
        with self._yaml():
            self.loader.flatten_mapping(self.node)
        return {key.value: self._at(key.value, value) for key, value in self.node.value}

    def fields(self, *known: str) -> "dict[str, Spot]":
        """A mapping of these names alone."""
        found = self.mapping()
        for name, spot in found.items():
            if name not in known:
                raise spot.wrong(f"unknown; here may stand {', '.join(known)}")
        return found

    def sequence(self) -> "list[Spot]":
        if self.is_null:
            return []
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.wrong("must be a list")
        return [
            Spot(self.file, f"{self.path}[{number}]", node, self.loader)
            for number, node in enumerate(self.node.value)
        ]

    def text(self) -> str:
        if not isinstance(self.node, yaml.ScalarNode) or self.node.tag != STRING:
            raise self.wrong("must be text; put it into quotes")
        return str(self.node.value)

    def integer(self, least: int, most: int) -> int:
        if not isinstance(self.node, yaml.ScalarNode) or self.node.tag != INTEGER:
            raise self.wrong("must be a whole number")
        value = int(self.loader.construct_yaml_int(self.node))
        if not least <= value <= most:
            raise self.wrong(f"{value}: from {least} to {most}")
        return value

    def number(self) -> Decimal:
        """Exactly as it is written."""
        try:
            if isinstance(self.node, yaml.ScalarNode) and self.node.tag in NUMBERS:
                value = Decimal(self.node.value)
                if value.is_finite():
                    return value
        except InvalidOperation:
            pass
        raise self.wrong("must be a number")

    def moment(self) -> datetime:
        """A date, or a date and time; of UTC where no zone is given."""
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.wrong("must be a date, or a date and time")
        try:
            moment = datetime.fromisoformat(self.node.value)
        except ValueError:
            raise self.wrong("write 2027-01-31 or 2027-01-31T12:00") from None
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    def choice(self, read: Callable[[str], T], offered: str) -> T:
        try:
            return read(self.text())
        except ValueError:
            raise self.wrong(f"{self.text()[:32]!r}: one of {offered}") from None

    def _at(self, name: str, node: yaml.Node) -> "Spot":
        return Spot(self.file, f"{self.path}.{name}".lstrip("."), node, self.loader)

    @contextmanager
    def _yaml(self) -> Iterator[None]:
        try:
            yield
        except yaml.YAMLError as error:
            raise self.wrong(str(error).replace("\n", " ")) from error


def read(text: bytes, file: str) -> Spot:
    """Raises DeclarationInvalid."""
    if len(text) > MOST_BYTES:
        raise DeclarationInvalid(f"{file}: larger than {MOST_BYTES} bytes")
    try:
        loader = yaml.SafeLoader(text.decode("utf-8"))
        node = loader.get_single_node()
    except UnicodeDecodeError as error:
        raise DeclarationInvalid(f"{file}: is not UTF-8") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise DeclarationInvalid(f"{file}:{line}: {error.problem or 'is not YAML'}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise DeclarationInvalid(f"{file}: is not YAML") from error
    if node is None:
        raise DeclarationInvalid(f"{file}: is empty")
    return Spot(file, "", node, loader)
