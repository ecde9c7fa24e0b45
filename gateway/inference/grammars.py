"""Whether engines can follow a grammar, found out before anything is reserved for the request.

Compiling is bounded in size and steps (``engine.grammar``) and happens in threads beside the event
loop, tenants in turn. What was found out is remembered. Where a JSON schema is at fault, the answer
names the smallest part of it that is.
"""

import asyncio
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper, regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from engine.grammar import MOST_CHARS, compiling_threads, limits
from gateway.errors import InvalidRequest, Unavailable
from gateway.inference.compile_turns import CompileTurns
from gateway.inference.schema import DEFINITIONS, JsonSchema, Schema, parts
from gateway.inference.structure import Notation, Structure

THREADS = 2
KEPT = 256  # findings, of up to half a megabyte each
WAITING = 512  # checks under way or waiting for a thread
WAITING_EACH = 32  # of one tenant
SECONDS = 5.0  # a client waits for a check; what we know of takes tens of milliseconds
PROBED_SECONDS = 0.5  # to find the part of a schema that is at fault
TRIED = 16  # tokens of a text that matches
QUOTE = ord('"')
# What can go on in one way alone is not worked out ahead: that would be done anew for every token
# and cost as much as all of it: seconds for a long constant or `X{1000}`, for everybody.
UNFORCED = '%llguidance {"no_forcing": true}\n'
BUSY = "Too many grammars are being compiled."
OF_SCHEMA = "failed to compile JSON schema: "
OF_ONE_OF = "Enable 'coerce_one_of' option to approximate oneOf with anyOf"
_EXCERPT = re.compile(r"\n\s*\d+ \| .*", re.DOTALL)  # of the grammar
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)", re.DOTALL)  # in a GBNF
_KEYWORD = re.compile(r'"([^"]+)"|^(oneOf)\b')


@dataclass(frozen=True, slots=True)
class Grammar:
    """A structure that engines can follow."""

    text: str  # in llguidance's notation
    ignored: tuple[str, ...] = ()  # what it leaves out of what was asked


@dataclass(frozen=True, slots=True)
class Flaw:
    """Why there is none."""

    message: str
    at: str = ""  # the part, as a path from the field
    path: str | None = None  # the field, where it is not the structure's own


Finding = Future[Grammar | Flaw]


class GrammarCheck:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._turns = CompileTurns[Grammar | Flaw](compiling_threads(THREADS), THREADS)
        self._compiler = Compiler()
        self._found: OrderedDict[bytes, Finding] = OrderedDict()

    def close(self) -> None:
        self._turns.close()

    async def require(self, structure: Structure, tenant: str = "") -> Grammar:
        """Raises InvalidRequest with the path of what is at fault, or Unavailable."""
        finding = self._find(structure, tenant)
        try:
            async with asyncio.timeout(SECONDS):
                found = await asyncio.shield(asyncio.wrap_future(finding))  # others may wait too
        except TimeoutError:
            if not finding.running():
                raise Unavailable(BUSY, retry_after=1.0) from None
            raise InvalidRequest(
                f"{structure.path} takes more than {SECONDS:g} s to compile; simplify it.",
                param=structure.path,
            ) from None
        if isinstance(found, Flaw):
            path = f"{found.path or structure.path}{found.at}"
            raise InvalidRequest(f"{path} cannot be followed: {found.message}.", param=path)
        left_out = (f"{structure.path}:{keyword}" for keyword in found.ignored)
        return Grammar(found.text, (*structure.ignored, *left_out))

    def _find(self, structure: Structure, tenant: str) -> Finding:
        key = blake2b(f"{structure.notation.name} {structure.source}".encode()).digest()
        found = self._found.get(key)
        if found is None:
            if self._turns.of(tenant) >= WAITING_EACH or self._turns.total >= WAITING:
                raise Unavailable(BUSY, retry_after=1.0)
            work = partial(self._compiler.compile, structure)
            found = self._found[key] = self._turns.submit(tenant, work)
            if len(self._found) > KEPT:
                self._found.popitem(last=False)
        self._found.move_to_end(key)
        return found


class Compiler:
    """Compiles to see whether it works. Thread-safe."""

    def __init__(self) -> None:
        self._tokenizer = LLTokenizer(TokenizerWrapper(_Bytes()))

    def compile(self, structure: Structure) -> Grammar | Flaw:
        try:
            text = _written(structure)
        except Exception as error:  # the library's converter raises nothing more special
            return Flaw(_line(str(error)))
        if len(text) > MOST_CHARS:
            return Flaw(f"it has {len(text)} characters; {MOST_CHARS} are the most")
        matcher = self._matcher(text)
        if matcher.is_error():
            message = _line(matcher.get_error())
            for part in structure.parts:
                if isinstance(flaw := self.compile(part), Flaw):
                    return replace(flaw, path=part.path)
            if structure.schema is None:
                return Flaw(message)
            return self._locate(structure.schema, structure.lenient, message)
        return Grammar(text, tuple(_left_out(matcher)))

    def _matcher(self, text: str) -> LLMatcher:
        """Some grammars show only when they are followed that nothing matches or nobody can."""
        matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=limits())
        tried = matcher.deep_copy()
        for _ in range(TRIED):
            if tried.is_stopped():
                break
            tried.consume_token(_next(tried.compute_bitmask()))
        return tried if tried.is_error() else matcher

    def _locate(self, schema: JsonSchema, lenient: bool, message: str) -> Flaw:
        """Walk down as long as some part has a fault of its own."""
        shared = {key: schema.schema[key] for key in DEFINITIONS if key in schema.schema}
        part, at, until = schema.schema, "", time.monotonic() + PROBED_SECONDS
        while True:
            for path, inner in parts(part):
                if time.monotonic() > until:
                    return Flaw(message, at)
                if fault := self._fault(inner, shared, lenient):
                    part, at, message = inner, at + path, fault
                    break
            else:
                return Flaw(message, at)

    def _fault(self, part: Schema, shared: Mapping[str, object], lenient: bool) -> str:
        alone = JsonSchema({**shared, **part}, ()).text(lenient=lenient)
        matcher = self._matcher(_grammar(_schema(alone)))
        return _line(matcher.get_error()) if matcher.is_error() else ""


class _Bytes:
    """A vocabulary of single bytes: whether a grammar is one does not depend on the model's."""

    eos_token_id = 256
    bos_token_id = None
    special_token_ids = (256,)

    def __init__(self) -> None:
        self.tokens = [*(bytes([byte]) for byte in range(256)), b"<end>"]

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def _next(mask: bytes) -> int:
    """A token that may come: a quote where one may, for strings and names are what varies."""
    allowed = int.from_bytes(mask, "little")
    return QUOTE if allowed >> QUOTE & 1 else allowed.bit_length() - 1


def _written(structure: Structure) -> str:
    """In llguidance's notation."""
    source = structure.source
    match structure.notation:
        case Notation.SCHEMA:
            return _grammar(_schema(source))
        case Notation.REGEX:
            return _grammar(f"start: /{regex_to_lark(source)}/")
        case Notation.LARK:
            return _grammar(source)
        case Notation.GRAMMAR:
            gbnf = "::=" in source
            return _grammar(any_to_lark(_ESCAPE.sub(_character, source) if gbnf else source))


def _character(escape: re.Match[str]) -> str:
    """What stands for a character by its number, in a way that the converter does not spoil."""
    number = int(escape[1] or escape[2] or "0", 16)
    if not 0 < number <= sys.maxunicode or 0xD800 <= number < 0xE000:
        return escape[0]
    return f"\\x{number:02x}" if number < 0x80 else chr(number)


def _schema(text: str) -> str:
    return f"start: %json {text}"


def _grammar(lark: str) -> str:
    """The last word on an option holds, so a client's grammar cannot take it back."""
    return LLMatcher.grammar_from_lark(f"{lark}\n{UNFORCED}")


def _left_out(matcher: LLMatcher) -> list[str]:
    """Keywords that a lenient schema has for nothing."""
    warnings = matcher.get_grammar_warnings()
    return [found[1] or found[2] for warning in warnings for found in _KEYWORD.finditer(warning)]


def _line(message: str) -> str:
    """What the library says, without where it says it in a text that we wrote."""
    if message.startswith("NoExtension"):
        return "nothing matches it"
    message = _EXCERPT.sub("", message)
    message = message.partition(OF_SCHEMA)[2] or message
    message = message.replace(OF_ONE_OF, "Alternatives that exclude each other can; so can anyOf")
    return " ".join(message.split())[:500].rstrip(".")
