"""One call as a model writes it: a JSON object with a name and arguments, read while it comes.

Characters are looked at once. The name is known when its string ends; from then on the arguments
are handed out as they come, character by character as the model wrote them. Arguments that come
before the name wait for it. Arguments written as a string hold their JSON inside it.
"""

from enum import Enum, auto

from gateway.inference.written_json import parsed

ARGUMENTS = ("arguments", "parameters")
_SPACE = " \t\r\n"


class _At(Enum):
    START = auto()
    KEY = auto()  # or the end of the object
    IN_KEY = auto()
    COLON = auto()
    VALUE = auto()
    IN_VALUE = auto()
    COMMA = auto()  # or the end of the object
    END = auto()


class CallScanner:
    """Feed it text until it is ``done`` or ``failed``. ``take`` gives arguments as they come."""

    def __init__(self, names: frozenset[str] | None = None) -> None:
        """``names``: of functions; an object with another name is no call. None: any name is."""
        self._names = names
        self.name: str | None = None
        self.done = False
        self.failed = False
        self.raw = ""  # what it took before the name was known
        self._at = _At.START
        self._key = ""
        self._text = ""  # of the key or value that is being read
        self._depth = 0  # of brackets within a value
        self._quoted = self._escaped = False
        self._ready = ""  # arguments not taken yet
        self._has_arguments = False

    def begin(self, name: str) -> None:
        """The name is known already: what comes is the arguments alone, until ``between``."""
        self.name, self._key, self._at = name, ARGUMENTS[0], _At.VALUE

    @property
    def between(self) -> bool:
        """A value has just ended."""
        return self._at is _At.COMMA

    def feed(self, text: str) -> str:
        """Returns what is left once the object is complete, or cannot become one."""
        for position, character in enumerate(text):
            if self.done or self.failed:
                return text[position:]
            self._step(character)
            if self.failed:
                return text[position:]
            if self.name is None:
                self.raw += character
        return ""

    def take(self) -> str:
        """Arguments that came since the last time; nothing before the name is known."""
        if self.name is None:
            return ""
        if self.done and not self._has_arguments:
            self._has_arguments, self._ready = True, "{}"
        ready, self._ready = self._ready, ""
        return ready

    def _step(self, character: str) -> None:
        match self._at:
            case _At.IN_KEY:
                self._text += character
                if self._string_ends(character):
                    self._key = self._parsed() or ""
                    self._at = _At.COLON
            case _At.IN_VALUE:
                self._value(character)
            case _ if character in _SPACE:
                pass
            case _At.START:
                self._expect(character == "{", _At.KEY)
            case _At.KEY if character == '"':
                self._begin(character, _At.IN_KEY)
            case _At.KEY | _At.COMMA if character == "}":
                self.done = True
            case _At.COLON:
                self._expect(character == ":", _At.VALUE)
            case _At.VALUE:
                self._begin(character, _At.IN_VALUE)
                self._depth = int(character in "{[")
                if self._streams:
                    self._ready += character
            case _At.COMMA:
                self._expect(character == ",", _At.KEY)
            case _:
                self.failed = True

    def _expect(self, fits: bool, then: _At) -> None:
        self.failed = not fits
        self._at = then

    def _begin(self, character: str, at: _At) -> None:
        self._text, self._at = character, at
        self._quoted, self._escaped = character == '"', False

    def _string_ends(self, character: str) -> bool:
        """Whether this character, inside a string, closes it."""
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._quoted = False
            return True
        return False

    def _value(self, character: str) -> None:
        if self._quoted:
            self._grow(character)
            if self._string_ends(character) and not self._depth:
                self._end_value()
        elif self._depth:
            self._grow(character)
            self._quoted = character == '"'
            self._depth += (character in "{[") - (character in "}]")
            if not self._depth:
                self._end_value()
        elif character in _SPACE + ",}":
            self._end_value()
            if character == ",":
                self._at = _At.KEY
            self.done = character == "}"
        else:
            self._grow(character)

    def _grow(self, character: str) -> None:
        if self._streams:
            self._ready += character
        else:
            self._text += character

    @property
    def _streams(self) -> bool:
        return self._key in ARGUMENTS and self._text[:1] == "{"

    def _end_value(self) -> None:
        self._at = _At.COMMA
        if self._key == "name" and self.name is None:
            name = self._parsed()
            self.failed = not name or (self._names is not None and name not in self._names)
            self.name = None if self.failed else name
        elif self._key in ARGUMENTS:
            if not self._streams:
                self._ready += self._unwrapped()
            self._has_arguments = True

    def _unwrapped(self) -> str:
        """Arguments that are no object: a string of one, or ``null``."""
        text = self._parsed()
        if text is not None:
            return text
        return "{}" if self._text == "null" else self._text

    def _parsed(self) -> str | None:
        try:
            value = parsed(self._text)
        except ValueError:
            return None
        return value if isinstance(value, str) else None
