"""A byte-level vocabulary of any size, for checkpoints whose weights are random.

Every byte, then pieces of words as such vocabularies have them: with a space before or without,
short ones first.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

LETTERS = "etaoinsrhldcumfpgwybvkxjqz"
END = "<|end|>"
SPACE = "\u0120"  # how byte-level vocabularies write it


def write_tokenizer(path: Path, size: int) -> None:
    """``size`` tokens, of which the last ends a sequence."""
    tokens = [*itertools.islice(_tokens(), size - 1), END]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    end = {"id": size - 1, "content": END, "special": True, "single_word": False,
           "lstrip": False, "rstrip": False, "normalized": False}  # fmt: skip
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    description = {
        "version": "1.0",
        "added_tokens": [end],
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    path.write_text(json.dumps(description), "utf-8")


def _tokens() -> Iterator[str]:
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    yield from map(chr, plain)
    yield from (chr(0x100 + i) for i in range(256 - len(plain)))
    for length in itertools.count(2):
        for letters in itertools.product(LETTERS, repeat=length):
            word = "".join(letters)
            yield word
            yield SPACE + word
