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


def question(text: str) -> str:
    """The model's ChatML template, up to where its answer begins."""
    turns = [("system", SYSTEM), ("user", text)]
    asked = "".join(f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in turns)
    return f"{asked}<|im_start|>assistant\n"


def _render(chat: dict[str, str]) -> str:
    """One exchange."""
    return f"{question(chat['user'])}{chat['assistant']}<|im_end|>\n"


def _read(name: str) -> str:
    return (resources.files("engine.demo") / "text" / name).read_text(encoding="utf-8")


def _cut(tokenizer: Tokenizer, text: str, length: int) -> torch.Tensor:
    ids = tokenizer.encode(text).ids
    pieces = len(ids) // length
    return torch.tensor(ids[: pieces * length]).view(pieces, length)
