"""Plain words whose tokens are known already: most of most prompts, at a fraction of the cost.

A byte-level vocabulary cuts text into pieces before it merges any, and the patterns that are known
here all end a piece where a visible character is followed by a space, whatever stands around it.
So a text may be cut there, and each part turned into tokens by itself; so it may be at control
tokens, and where a line begins with a letter. Words of plain letters, perhaps with a mark after
them, are looked up; what lies between them goes to the library, in one call. Any other tokenizer,
and any text of few such words, goes to it whole.

A word that was met before is found some microseconds sooner, whoever sent it, as it is in the
library's own cache. Only short words of plain letters are kept, which nobody would call a secret.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

Encode = Callable[[Sequence[str]], list[list[int]]]
Tokens = tuple[int, ...]

MOST_WORDS = 50_000
MOST_LEARNT = 64  # of one text
FEWEST = 16  # words of a text that are worth a look
_WORD = re.compile("[A-Za-z]{1,24}[.,:;?!]?")
_PLAIN = re.compile(" ?[A-Za-z]{0,24}[.,:;?!]?[ \n]{0,2}")
_CONTRACTED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS = frozenset(
    {
        r"\d", r"\p{N}", r"\p{N}{1,3}",
        _CONTRACTED + r"\p{N}{1,3}" + _REST,  # Llama 3
        _CONTRACTED + r"\p{N}" + _REST,  # Qwen
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2
    }
)  # fmt: skip


class Words:
    """May be used from several threads."""

    def __init__(self, encode: Encode, control: Mapping[str, int] | None = None) -> None:
        """``encode``: the library's, of several texts. ``control``: tokens that it finds in a text
        before it cuts anything."""
        self._encode = encode
        self._control = {name: (number,) for name, number in (control or {}).items()}
        longest = sorted(map(re.escape, self._control), key=len, reverse=True)
        self._at_control = re.compile(f"({'|'.join(longest) or '(?!)'})")
        self._at_line = re.compile(_line_starts(encode))
        self._known: dict[str, Tokens] = {}  # a word -> tokens of it and a space before it
        self._exact: dict[str, Tokens] = {}  # a text -> its tokens, where nothing joins on to it

    def tokens(self, text: str) -> list[int] | None:
        """None: not known well enough, the library should have the text whole."""
        if text.count(" ") < FEWEST:
            return None
        found = _Found()
        for place, part in enumerate(self._at_control.split(text)):
            if place % 2:
                found.tokens.append(self._control[part])
            elif part:
                self._read(part, found)
        if len(found.runs) * 4 > text.count(" "):
            self._learn(found)
            return None
        if found.runs:
            self._fill(found)
        return list(chain.from_iterable(filter(None, found.tokens)))

    def _read(self, part: str, found: "_Found") -> None:
        """Between two control tokens: cut after a visible character, where a space follows."""
        whole = self._exact.get(part)
        if whole is not None:
            found.tokens.append(whole)
            return
        pieces = part.split(" ")
        tokens: list[Tokens | None] = list(map(self._known.get, pieces))
        tokens[0] = self._exact.get(pieces[0]) if _is_visible(pieces[0]) else None
        if None in tokens:
            self._read_rest(pieces, tokens, found)
        found.tokens += tokens

    def _read_rest(self, pieces: list[str], tokens: list[Tokens | None], found: "_Found") -> None:
        """What lies between known words."""
        end = 0  # pieces before it are done
        for start in [place for place, known in enumerate(tokens) if known is None]:
            if start < end:
                continue
            end = start + 1
            if "\n" in pieces[start] and _is_visible(pieces[start]):
                tokens[start] = self._lines(pieces[start], found, first=start == 0)
                if tokens[start] is not None:
                    continue
            while end < len(pieces) and (tokens[end] is None or not _is_visible(pieces[end - 1])):
                tokens[end] = None
                end += 1
            run = " ".join(pieces[start:end])
            run = f" {run}" if start else run
            tokens[start] = self._exact.get(run)
            if tokens[start] is None:
                found.runs.append((len(found.tokens) + start, run))
                found.words += pieces[max(start, 1) : end]

    def _lines(self, piece: str, found: "_Found", *, first: bool) -> Tokens | None:
        """A piece in which lines end. None: it is not all known."""
        if not first and piece[0].isspace():
            return None  # it joins on to the space before it
        head, *rest = self._at_line.split(piece)
        texts = [head if first else f" {head}", *rest]
        known = [self._exact.get(text) for text in texts]
        found.texts += [text for text, tokens in zip(texts, known, strict=True) if tokens is None]
        if None in known:
            return None
        return tuple(chain.from_iterable(filter(None, known)))

    def _fill(self, found: "_Found") -> None:
        """What is not known goes to the library."""
        runs = [run for _, run in found.runs]
        for (place, run), tokens in zip(found.runs, self._encode(runs), strict=True):
            found.tokens[place] = tuple(tokens)
            if _PLAIN.fullmatch(run) and len(self._exact) < MOST_WORDS:
                self._exact[run] = tuple(tokens)
        self._learn(found)

    def _learn(self, found: "_Found") -> None:
        words = {word for word in found.words if _WORD.fullmatch(word)} - self._known.keys()
        texts = {text for text in found.texts if _PLAIN.fullmatch(text)} - self._exact.keys()
        for known, new, space in ((self._known, words, " "), (self._exact, texts, "")):
            if not new or len(known) >= MOST_WORDS:
                continue
            some = list(new)[:MOST_LEARNT]
            for word, tokens in zip(some, self._encode([space + w for w in some]), strict=True):
                known[word] = tuple(tokens)


@dataclass(slots=True)
class _Found:
    """So far, of one text."""

    tokens: list[Tokens | None] = field(default_factory=list)  # by piece; of a run, at its first
    runs: list[tuple[int, str]] = field(default_factory=list)  # not known, by their places
    words: list[str] = field(default_factory=list)  # of those, with a space before each
    texts: list[str] = field(default_factory=list)  # that would have been enough to know


def _line_starts(encode: Encode) -> str:
    """Before a letter, and after as many ends of lines as this tokenizer makes pieces of whatever
    follows: the patterns differ there."""
    after = [rf"(?<=(?<!\s){end})(?=[A-Za-z])" for end in ("\n", "\n\n") if _ends(encode, end)]
    return "|".join(after) or "(?!)"


def _ends(encode: Encode, end: str) -> bool:
    return all(
        encode([f"{before}{end}a"])[0] == encode([f"{before}{end}"])[0] + encode(["a"])[0]
        for before in ("", "a", ".")
    )


def cuts_at_spaces(description: dict[str, Any]) -> bool:
    """Whether a tokenizer.json is of the kind that may be cut as is done here."""
    plain = all(
        description.get(part) is None for part in ("truncation", "padding")
    ) and description.get("normalizer") in (None, {"type": "NFC"})
    return (
        plain
        and description["model"].get("type") == "BPE"
        and not description["model"].get("dropout")
        and all(_is_simple(token) for token in description["added_tokens"])
        and _is_known(description.get("pre_tokenizer"))
    )


def control_of(description: dict[str, Any]) -> dict[str, int]:
    """Tokens that are found in a text as it is written, before anything else is."""
    added = description["added_tokens"]
    return {token["content"]: token["id"] for token in added if not token["normalized"]}


def _is_simple(token: dict[str, Any]) -> bool:
    """Found in a part of a text as in all of it."""
    around = any(token.get(name) for name in ("lstrip", "rstrip", "single_word"))
    return not around and not any(map(str.isspace, token["content"]))


def _is_known(part: dict[str, Any] | None) -> bool:
    """Ends with the byte level; all before it cuts text as this module believes."""
    if part is None:
        return False
    steps = part["pretokenizers"] if part["type"] == "Sequence" else [part]
    *cuts, last = steps
    return (
        last["type"] == "ByteLevel"
        and not last["add_prefix_space"]
        and (last.get("use_regex", True) or any(map(_splits_words, cuts)))
        and all(step["type"] == "Digits" or _splits(step) for step in cuts)
    )


def _splits(step: dict[str, Any]) -> bool:
    if step["type"] != "Split":
        return False
    pattern = step["pattern"].get("Regex")
    return pattern in _PATTERNS and step["behavior"] == "Isolated" and not step["invert"]


def _splits_words(step: dict[str, Any]) -> bool:
    """Into words, not only digits."""
    return _splits(step) and r"\s+" in step["pattern"]["Regex"]


def _is_visible(piece: str) -> bool:
    """It ends in a character after which a space begins something new."""
    return bool(piece) and not piece[-1].isspace()
