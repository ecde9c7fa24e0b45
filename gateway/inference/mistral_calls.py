"""Calls as Mistral's models write them, old and new.

    [TOOL_CALLS] [{"name": "f", "arguments": {…}}, …]
    [TOOL_CALLS]f[ARGS]{…}[TOOL_CALLS]g[CALL_ID]abc123def[ARGS]{…}

The words in brackets are control tokens, which show in no text: the reader is given them spelled.
"""

from enum import Enum, auto

from gateway.inference.call_reader import Calls, NewId, Read, Shown, overlap
from gateway.inference.call_scanner import CallScanner

BEGIN, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
MARKS = (BEGIN, ARGS, CALL_ID)
_SPACE = " \t\r\n"
MOST_NAME = 256  # characters before the arguments; more is no name


class _At(Enum):
    TEXT = auto()
    BEGUN = auto()  # behind the word
    LIST = auto()  # between the objects of a list
    OBJECT = auto()
    NAME = auto()
    ARGUMENTS = auto()


class MistralReader:
    """A ``CallReader``."""

    def __init__(self, new_id: NewId) -> None:
        self._calls, self._shown = Calls(new_id), Shown()
        self._at = _At.TEXT
        self._held = ""  # the beginning of a word, or a name that is not complete
        self._scanner = CallScanner()

    @property
    def called(self) -> bool:
        return bool(self._calls)

    def feed(self, text: str) -> Read:
        text, self._held = self._held + text, ""
        while text:
            text = self._step(text)
        return Read(self._shown.take(), self._calls.take())

    def flush(self) -> Read:
        if self._at is _At.TEXT:
            self._shown.add(self._held)
        elif self._at in (_At.BEGUN, _At.NAME):
            self._shown.add(BEGIN + self._held)
        elif self._at is _At.OBJECT and self._scanner.name is None and not self._calls:
            self._shown.add(f"{BEGIN}[{self._scanner.raw}")
        self._held = ""
        if self._calls:
            self._shown.drop_space()
        self._shown.flush()
        return Read(self._shown.take(), self._calls.take())

    def _step(self, text: str) -> str:
        """Takes from the front of it; returns the rest."""
        match self._at:
            case _At.TEXT:
                return self._in_text(text)
            case _At.BEGUN:
                text = text.lstrip(_SPACE)
                if text:
                    self._at = _At.LIST if text[0] == "[" else _At.NAME
                return text[1:] if self._at is _At.LIST else text
            case _At.LIST:
                return self._in_list(text)
            case _At.OBJECT:
                return self._in_object(text)
            case _At.NAME:
                return self._in_name(text)
            case _At.ARGUMENTS:
                return self._in_arguments(text)

    def _in_text(self, text: str) -> str:
        at = text.find(BEGIN)
        if at < 0:
            keep = overlap(text, BEGIN)
            self._shown.add(text[: len(text) - keep])
            self._held = text[len(text) - keep :]
            return ""
        self._shown.add(text[:at])
        self._at = _At.BEGUN
        return text[at + len(BEGIN) :]

    def _in_list(self, text: str) -> str:
        text = text.lstrip(_SPACE + ",")
        if not text:
            return ""
        if text[0] == "]":
            self._shown.drop_space()
            self._at = _At.TEXT
            return text[1:]
        if text[0] != "{":  # no call: text that began like one
            self._shown.add(text[0])
            self._at = _At.TEXT
            return text[1:]
        self._scanner, self._at = CallScanner(), _At.OBJECT
        return text

    def _in_object(self, text: str) -> str:
        rest = self._scanner.feed(text)
        self._calls.follow(self._scanner)
        if self._scanner.done or self._scanner.failed:
            if self._scanner.name is None:
                self._shown.add(self._scanner.raw)
            self._calls.close()
            self._at = _At.LIST if self._scanner.done else _At.TEXT
        return rest

    def _in_name(self, text: str) -> str:
        """Up to the arguments: ``[ARGS]``, or at once their brace."""
        at = min((found for mark in (ARGS, "{") if (found := text.find(mark)) >= 0), default=-1)
        if at < 0 and len(text) <= MOST_NAME:
            self._held = text
            return ""
        name = text[:at].partition(CALL_ID)[0].strip(_SPACE)
        if at < 0 or not name:
            self._shown.add(BEGIN + text)
            self._at = _At.TEXT
            return ""
        self._scanner, self._at = CallScanner(), _At.ARGUMENTS
        self._scanner.begin(name)
        self._calls.follow(self._scanner)
        rest = text[at:]
        return rest.removeprefix(ARGS)

    def _in_arguments(self, text: str) -> str:
        for position, character in enumerate(text):
            self._scanner.feed(character)
            if self._scanner.failed or self._scanner.between:
                self._calls.follow(self._scanner)
                self._calls.close()
                self._shown.drop_space()
                self._at = _At.TEXT
                return text[position + (not self._scanner.failed) :]
        self._calls.follow(self._scanner)
        return ""
