"""One model's tokenizer: text to ids, ids to bytes.

``token_bytes[i]`` holds what token ``i`` adds to the text: bytes rather than characters, for a
byte-level vocabulary cuts characters anywhere. Special tokens add nothing. Two families are
understood: byte-level BPE (GPT-2, Llama 3, Qwen) and sentencepiece with byte fallback (Llama 2,
Mistral). An answer continues its prompt, so a space in front of its first word is kept.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Encoding
from tokenizers import Tokenizer as RustTokenizer

from gateway.inference.words import Words, control_of, cuts_at_spaces

WORD_SPACE = "▁"  # how sentencepiece writes a space
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class TokenizerInvalid(ValueError):
    """The model directory holds no tokenizer that this gateway understands."""


class Tokenizer:
    """Immutable once loaded; ``encode`` may be called from several threads."""

    def __init__(self, rust: RustTokenizer, config: dict[str, Any]) -> None:
        self._rust = rust
        description = json.loads(rust.to_str())
        added = description["added_tokens"]
        self.special: frozenset[str] = frozenset(t["content"] for t in added if t["special"])
        self.named_tokens = _named_tokens(config)  # bos_token and the like, for chat templates
        decoder = json.dumps(description["decoder"])
        self.token_bytes = _token_bytes(rust, added, byte_level="ByteLevel" in decoder)
        self.vocab_size = len(self.token_bytes)
        self._words = None
        if cuts_at_spaces(description):
            self._words = Words(self._encode_plain, control_of(description))
        self._adds = bool(self._encode_whole("", add_special=True))  # bos, eos or both

    @classmethod
    def load(cls, model_dir: Path) -> "Tokenizer":
        """Raises TokenizerInvalid."""
        path = model_dir / "tokenizer.json"
        try:
            rust = RustTokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing more special
            raise TokenizerInvalid(f"{path}: {error}") from error
        return cls(rust, read_config(model_dir))

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        """Special tokens written in the text are recognised; ``add_special`` adds bos and eos."""
        if self._words is not None and not (add_special and self._adds):
            known = self._words.tokens(text)
            if known is not None:
                return known
        return self._encode_whole(text, add_special=add_special)

    def _encode_whole(self, text: str, *, add_special: bool) -> list[int]:
        # The "fast" one leaves out where in the text each token lies, a fifth of its time.
        found: list[Encoding] = self._rust.encode_batch_fast([text], add_special_tokens=add_special)
        ids: list[int] = found[0].ids
        return ids

    def _encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        found = self._rust.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def bytes_of(self, token: int) -> bytes:
        """Empty for special tokens and for ids beyond the vocabulary."""
        return self.token_bytes[token] if token < self.vocab_size else b""

    def spelling_of(self, token: int) -> bytes:
        """As ``bytes_of``, but special tokens by their name."""
        return self.bytes_of(token) or (self._rust.id_to_token(token) or "").encode()

    def spelling(self, names: Sequence[str]) -> Callable[[int], bytes]:
        """As ``bytes_of``, but these special tokens by their name."""
        numbers = {self._rust.token_to_id(name): name.encode() for name in names}
        return lambda token: numbers.get(token) or self.bytes_of(token)

    def text(self, tokens: Iterable[int]) -> str:
        """All of it, special tokens by their names."""
        return b"".join(map(self.spelling_of, tokens)).decode("utf-8", "replace")

    def text_of(self, token: int) -> str:
        """One token alone, as logprobs show it. Special tokens by their name."""
        return self.spelling_of(token).decode("utf-8", "replace")


def read_config(model_dir: Path, name: str = "tokenizer_config.json") -> dict[str, Any]:
    """The object in a file, or nothing where there is none. Raises TokenizerInvalid."""
    path = model_dir / name
    if not path.exists():
        return {}
    try:
        config = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise TokenizerInvalid(f"{path}: {error}") from error
    if not isinstance(config, dict):
        raise TokenizerInvalid(f"{path} must hold an object")
    return config


def _named_tokens(config: dict[str, Any]) -> dict[str, str]:
    named = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            named[name] = text
    return named


def _token_bytes(
    rust: RustTokenizer, added: list[dict[str, Any]], *, byte_level: bool
) -> tuple[bytes, ...]:
    vocabulary: dict[str, int] = rust.get_vocab(with_added_tokens=False)
    size = max([*vocabulary.values(), *(t["id"] for t in added)], default=-1) + 1
    table = [b""] * size
    to_bytes = _byte_level if byte_level else _sentencepiece
    for token, number in vocabulary.items():
        table[number] = to_bytes(token)
    for extra in added:
        table[extra["id"]] = b"" if extra["special"] else extra["content"].encode()
    return tuple(table)


def _sentencepiece(token: str) -> bytes:
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(match[1], 16)])
    return token.replace(WORD_SPACE, " ").encode()


def _byte_level(token: str) -> bytes:
    try:
        return bytes(_BYTES[character] for character in token)
    except KeyError:
        return token.encode()


def _printable_bytes() -> dict[str, int]:
    """Byte-level vocabularies write printable bytes as themselves, the others from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(0x100 + i): b for i, b in enumerate(other)}


_BYTES = _printable_bytes()
