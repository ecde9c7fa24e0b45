"""The text a quantiser learns from and the text it is judged on, as token ids.

Without files of one's own, the demo's: prose, code and chats to learn from, other prose to be
judged on. They share no passage.
"""

import json
from importlib import resources
from pathlib import Path

from tokenizers import Tokenizer

from engine.errors import ConfigError

LENGTH = 256  # tokens of one sequence
MOST = 512  # sequences that are used
LEAST = 8  # tokens that a last sequence must have
OWN = ("calibration.txt", "evaluation.txt")


def token_rows(tokenizer: Tokenizer, text: str, *, length: int = LENGTH) -> list[list[int]]:
    ids: list[int] = tokenizer.encode(text).ids
    rows = [ids[start : start + length] for start in range(0, len(ids), length)]
    return [row for row in rows if len(row) >= LEAST][:MOST]


def calibration_text(file: Path | None) -> str:
    """Raises ConfigError."""
    return _own(OWN[0]) if file is None else _read(file, "--calibration")


def evaluation_text(file: Path | None) -> str:
    """Raises ConfigError."""
    return _own(OWN[1]) if file is None else _read(file, "--evaluation")


def _own(name: str) -> str:
    return (resources.files("engine.demo") / "text" / name).read_text(encoding="utf-8")


def _read(file: Path, flag: str) -> str:
    """A text file, or lines of JSON with a ``text`` each."""
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix != ".jsonl":
            return text
        return "\n\n".join(str(json.loads(line)["text"]) for line in text.splitlines() if line)
    except (OSError, ValueError, KeyError, TypeError) as error:
        kind = "no field text" if isinstance(error, KeyError) else error
        raise ConfigError(f"{flag} {file}: cannot be read ({kind})") from error
