"""Takes the calls out of a choice's text while it comes: text is shown, calls become deltas.

A call begins with one delta that has its id and its name; deltas with parts of its arguments
follow. Nothing of a call's own notation is ever shown as text, and of text no more is held back
than could become such notation. What turns out to be no call is shown as the text it is. White
space around calls says nothing and is left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from gateway.inference.call_scanner import CallScanner

NewId = Callable[[], str]
SEPARATING = " \t\r\n,;"  # calls from one another


class Written(Protocol):
    """A call as far as it was read."""

    name: str | None  # None: not known yet

    def take(self) -> str:
        """Arguments that came since the last time."""
        ...


@dataclass(frozen=True, slots=True)
class CallDelta:
    """What one call gained. ``id`` and ``name`` are in its first delta alone."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Read:
    text: str  # to be shown
    calls: tuple[CallDelta, ...] = ()


class CallReader(Protocol):
    """Belongs to one choice."""

    @property
    def called(self) -> bool:
        """There was a call."""
        ...

    def feed(self, text: str) -> Read: ...

    def flush(self) -> Read:
        """Nothing more comes."""
        ...


class Calls:
    """The calls of one choice, numbered and named."""

    def __init__(self, new_id: NewId) -> None:
        self._new_id = new_id
        self._count = 0
        self._open = False
        self._gained: list[CallDelta] = []

    def __bool__(self) -> bool:
        return self._count > 0

    def follow(self, scanner: Written) -> None:
        """Tell what a scanner has found out since."""
        if scanner.name is None:
            return
        if not self._open:
            self._gained.append(CallDelta(self._count, "", self._new_id(), scanner.name))
            self._count, self._open = self._count + 1, True
        if arguments := scanner.take():
            self._gained.append(CallDelta(self._count - 1, arguments))

    def close(self) -> None:
        self._open = False

    def take(self) -> tuple[CallDelta, ...]:
        gained, self._gained = tuple(self._gained), []
        return gained


class Shown:
    """Text on its way out. White space waits for what comes after it."""

    def __init__(self) -> None:
        self._ready = ""
        self._space = ""

    def add(self, text: str) -> None:
        text = self._space + text
        kept = text.rstrip()
        self._ready, self._space = self._ready + kept, text[len(kept) :]

    def drop_space(self) -> None:
        self._space = ""

    def flush(self) -> None:
        self._ready, self._space = self._ready + self._space, ""

    def take(self) -> str:
        ready, self._ready = self._ready, ""
        return ready


class _Place(Enum):
    """Where in the text a reader of tags is, when it is in no object."""

    TEXT = auto()
    CALLS = auto()  # between a pair's tags, after a call: another may follow
    REST = auto()  # there too, and nothing that follows is a call


class TaggedReader:
    """Hermes and Qwen: calls between two tags, anywhere in the text. One in each pair, but some
    models write several."""

    def __init__(self, begin: str, end: str, new_id: NewId) -> None:
        self._begin, self._end = begin, end
        self._calls, self._shown = Calls(new_id), Shown()
        self._held = ""  # the beginning of a tag, perhaps
        self._scanner: CallScanner | None = None
        self._place = _Place.TEXT

    @property
    def called(self) -> bool:
        return bool(self._calls)

    def feed(self, text: str) -> Read:
        text, self._held = self._held + text, ""
        while text:
            if self._scanner is not None:
                text = self._in_call(self._scanner, text)
            else:
                text = self._in_text(text) if self._place is _Place.TEXT else self._in_tag(text)
        return Read(self._shown.take(), self._calls.take())

    def flush(self) -> Read:
        held, self._held = self._held, ""
        if self._scanner is not None:
            if self._scanner.name is None:
                self._show_no_call(self._scanner)
                self._shown.add(held)
        elif self._place is _Place.TEXT:
            self._shown.add(held)
        if self._calls:
            self._shown.drop_space()
        self._shown.flush()
        return Read(self._shown.take(), self._calls.take())

    def _in_text(self, text: str) -> str:
        at = text.find(self._begin)
        if at < 0:
            keep = overlap(text, self._begin)
            self._shown.add(text[: len(text) - keep])
            self._held = text[len(text) - keep :]
            return ""
        self._shown.add(text[:at])
        self._scanner = CallScanner()
        return text[at + len(self._begin) :]

    def _in_call(self, scanner: CallScanner, text: str) -> str:
        rest = scanner.feed(text)
        self._calls.follow(scanner)
        if not (scanner.done or scanner.failed):
            return ""
        self._scanner = None
        if scanner.name is None:
            self._show_no_call(scanner)
            return rest
        self._calls.close()
        self._place = _Place.CALLS if scanner.done else _Place.REST
        return rest

    def _show_no_call(self, scanner: CallScanner) -> None:
        """It is text that began like a call. A tag that had one before is a tag all the same."""
        begin = self._begin if self._place is _Place.TEXT else ""
        self._shown.add(begin + scanner.raw)

    def _in_tag(self, text: str) -> str:
        if self._place is _Place.CALLS:
            text = text.lstrip(SEPARATING)
            if text.startswith("{"):
                self._scanner = CallScanner()
                return text
            if not self._end.startswith(text[: len(self._end)]):
                self._place = _Place.REST
        at = text.find(self._end)
        if at < 0:
            keep = overlap(text, self._end)
            self._held = text[len(text) - keep :]
            return ""
        self._place = _Place.TEXT
        self._shown.drop_space()
        return text[at + len(self._end) :]


class BareReader:
    """Llama 3: the whole answer is calls, objects one after the other; or else all is text."""

    def __init__(self, names: frozenset[str], new_id: NewId) -> None:
        self._names = names
        self._calls, self._shown = Calls(new_id), Shown()
        self._scanner: CallScanner | None = None
        self._is_text = False

    @property
    def called(self) -> bool:
        return bool(self._calls)

    def feed(self, text: str) -> Read:
        while text and not self._is_text:
            text = self._in_call(text) if self._scanner else self._between(text)
        self._shown.add(text)
        return Read(self._shown.take(), self._calls.take())

    def flush(self) -> Read:
        if self._scanner and self._scanner.name is None:
            self._shown.add(self._scanner.raw)
        if self._calls:
            self._shown.drop_space()
        self._shown.flush()
        return Read(self._shown.take(), self._calls.take())

    def _between(self, text: str) -> str:
        """Before the first call, and between two."""
        spacing = SEPARATING if self._calls else " \t\r\n"
        rest = text.lstrip(spacing)
        if not self._calls:
            self._shown.add(text[: len(text) - len(rest)])
        if rest.startswith("{"):
            self._scanner = CallScanner(self._names)
        self._is_text = bool(rest) and self._scanner is None
        return rest

    def _in_call(self, text: str) -> str:
        scanner = self._scanner
        assert scanner is not None
        rest = scanner.feed(text)
        if scanner.name is not None:
            self._shown.drop_space()
            self._calls.follow(scanner)
        if scanner.done or scanner.failed:
            self._scanner = None
            self._calls.close()
            if scanner.name is None:  # an object, but no call
                self._is_text = True
                self._shown.add(scanner.raw)
        return rest


def overlap(text: str, tag: str) -> int:
    """Length of the longest end of the text with which the tag begins, but for all of it."""
    for length in range(min(len(text), len(tag) - 1), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
