"""The demo's own texts as token batches: what GPTQ calibrates on and what perplexity is
measured on. The two share no passage."""

import json
from importlib import resources

import torch
from tokenizers import Tokenizer

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def calibration(tokenizer: Tokenizer, *, length: int = 256) -> torch.Tensor:
    """int64 [B, length]: prose, code and chats, in that order, cut into equal pieces."""
    chats = [_render(json.loads(line)) for line in _read("chats.jsonl").splitlines()]
    return _cut(tokenizer, _read("calibration.txt") + "".join(chats), length)


def evaluation(tokenizer: Tokenizer, *, length: int = 416) -> torch.Tensor:
    """int64 [B, length]: held-out prose and a little code."""
    return _cut(tokenizer, _read("evaluation.txt"), length)


def _render(chat: dict[str, str]) -> str:
    """The model's ChatML template, for one exchange."""
    turns = [("system", SYSTEM), ("user", chat["user"]), ("assistant", chat["assistant"])]
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)


def _read(name: str) -> str:
    return (resources.files("engine.demo") / "text" / name).read_text(encoding="utf-8")


def _cut(tokenizer: Tokenizer, text: str, length: int) -> torch.Tensor:
    ids = tokenizer.encode(text).ids
    pieces = len(ids) // length
    return torch.tensor(ids[: pieces * length]).view(pieces, length)
