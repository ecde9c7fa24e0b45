"""Text in the demo model's own words: what its draft model and EAGLE-3 head learn from.

A speculator has to foresee what the target says, so the target says it. It is asked what the
demo's lessons ask, and what it asks itself: after the template's words before a user's turn, a
chat model goes on with a question, also with one that begins as a lesson's does. Needs no ``train``
extra; the weights are held in bfloat16.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch.nn import functional

from engine.demo.llama import Llama, Shape, rotate

_QUESTION_TOKENS = 40
_FULL = 0.9  # of a batch's rows; with fewer still going, those that ended leave
_LIKELY = 64  # tokens of which one is drawn, as many as make the nucleus
_NUCLEUS = 0.95
_EDGE = 64  # what a question may not exceed in tokens, the template aside

Said = list[int]


@dataclass(frozen=True, slots=True)
class Manner:
    """How to speak: temperature 0 is greedy."""

    tokens: int
    temperature: float
    nucleus: float = _NUCLEUS  # 1: any token may be drawn


class Speaker:
    """Continues many texts at once, over a cache: ``rows`` of them on ``device``."""

    def __init__(
        self,
        shape: Shape,
        weights: dict[str, torch.Tensor],
        end: int,
        seed: int,
        *,
        device: torch.device,
        rows: int,
    ) -> None:
        self._model = Llama(shape, {n: w.to(device, torch.bfloat16) for n, w in weights.items()})
        self._end, self._device, self._rows = end, device, rows
        self._random = torch.Generator(device).manual_seed(seed)

    @torch.inference_mode()
    def go_on(
        self, texts: Sequence[Said], manner: Manner, progress: Callable[[float], None]
    ) -> list[Said]:
        """What follows each text, with its end-of-turn token where there was time for one."""
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        found: list[Said] = [[] for _ in texts]
        for at in range(0, len(order), self._rows):
            rows = order[at : at + self._rows]
            for i, said in zip(rows, self._batch([texts[i] for i in rows], manner), strict=True):
                found[i] = said
            progress(min(at + self._rows, len(order)) / len(order))
        return found

    def _batch(self, texts: list[Said], manner: Manner) -> list[Said]:
        longest = max(map(len, texts))
        padded = [[self._end] * (longest - len(t)) + t for t in texts]
        start = torch.tensor([longest - len(t) for t in texts], device=self._device)
        tokens = torch.tensor(padded, device=self._device)  # what precedes its start is padding
        cache = Cache(self._model.shape, len(texts), longest + manner.tokens, start)
        said = tokens.new_full((len(texts), manner.tokens), self._end)
        running = torch.arange(len(texts), device=self._device)
        going = torch.ones_like(running, dtype=torch.bool)
        for step in range(manner.tokens):
            drawn = self._draw(self._forward(tokens, cache), manner)
            said[running[going], step] = drawn[going]
            going &= drawn != self._end
            count = int(going.sum())
            if count == 0:
                break
            if count > _FULL * len(running):  # it costs less to go on than to move the cache
                tokens = drawn[:, None]
                continue
            running, tokens = running[going], drawn[going, None]
            cache.keep(going)
            going = going[going]
        return [self._ended(row) for row in said.tolist()]

    def _ended(self, row: Said) -> Said:
        return row[: row.index(self._end) + 1] if self._end in row else row

    def _forward(self, tokens: torch.Tensor, cache: "Cache") -> torch.Tensor:
        """Logits after the last of the new tokens [B, T]."""
        model = self._model
        x = model.weights["model.embed_tokens.weight"][tokens]
        cache.extend(tokens.shape[1])
        for layer in range(model.shape.layers):
            prefix = f"model.layers.{layer}"
            y = model.rms(x, f"{prefix}.input_layernorm.weight")
            q, k, v = (self._heads(f"{prefix}.self_attn.{name}_proj", y) for name in "qkv")
            mixed = cache.attend(layer, q, k, v)
            x = x + self._linear(f"{prefix}.self_attn.o_proj", mixed)
            y = model.rms(x, f"{prefix}.post_attention_layernorm.weight")
            gate, up = (self._linear(f"{prefix}.mlp.{name}_proj", y) for name in ("gate", "up"))
            x = x + self._linear(f"{prefix}.mlp.down_proj", functional.silu(gate) * up)
        return model.logits(model.rms(x[:, -1], "model.norm.weight"))

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self._model.weights[f"{name}.weight"])

    def _heads(self, name: str, x: torch.Tensor) -> torch.Tensor:
        B, T, _ = x.shape
        return self._linear(name, x).view(B, T, -1, self._model.shape.head_dim).transpose(1, 2)

    def _draw(self, logits: torch.Tensor, manner: Manner) -> torch.Tensor:
        if manner.temperature == 0:
            return logits.argmax(-1)
        chances = (logits.float() / manner.temperature).softmax(-1)
        if manner.nucleus >= 1:
            return torch.multinomial(chances, 1, generator=self._random)[:, 0]
        likely, tokens = chances.topk(_LIKELY)
        likely = likely.where(likely.cumsum(-1) - likely < manner.nucleus, 0.0)
        return tokens.gather(1, torch.multinomial(likely, 1, generator=self._random))[:, 0]


class Cache:
    """Keys and values of every layer, padded at the left."""

    def __init__(self, shape: Shape, rows: int, length: int, start: torch.Tensor) -> None:
        size = (shape.layers, 2, rows, shape.kv_heads, length, shape.head_dim)
        self._kv = torch.zeros(size, dtype=torch.bfloat16, device=start.device)
        self._start = start
        self._end = self._new = 0
        half = shape.head_dim // 2
        self._speed = shape.rope_theta ** (-torch.arange(half, device=start.device).double() / half)
        self._rope = (torch.empty(0), torch.empty(0))
        self._mask = torch.empty(0)

    def extend(self, count: int) -> None:
        self._new, self._end = count, self._end + count
        device = self._start.device
        at = torch.arange(self._end - count, self._end, device=device)
        positions = (at[None] - self._start[:, None]).clamp(min=0)
        angle = positions[:, None, :, None].double() * self._speed
        self._rope = (angle.cos().bfloat16(), angle.sin().bfloat16())
        keys = torch.arange(self._end, device=device)
        seen = (keys <= at[:, None]) & (keys >= self._start[:, None, None])
        hidden = ~(seen | (keys == at[:, None]))  # padding sees itself, not nothing
        self._mask = hidden[:, None, None]

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """By plain products: torch's own attention copies keys and values for each head that
        shares them, where there is a mask."""
        kv = self._kv[layer, :, :, :, : self._end]
        kv[0, :, :, -self._new :] = rotate(k, self._rope)
        kv[1, :, :, -self._new :] = v
        B, heads, T, D = q.shape
        shared = kv.shape[2]
        groups = (rotate(q, self._rope) * D**-0.5).reshape(B, shared, -1, D)
        scores = (groups @ kv[0].transpose(2, 3)).view(B, shared, -1, T, self._end)
        likely = scores.masked_fill_(self._mask, float("-inf")).softmax(-1)
        mixed = likely.view(B, shared, -1, self._end) @ kv[1]
        joined: torch.Tensor = mixed.view(B, heads, T, D).transpose(1, 2).flatten(2)
        return joined

    def keep(self, rows: torch.Tensor) -> None:
        """The others have ended. ``rows``: whether each stays."""
        self._kv, self._start = self._kv[:, :, rows], self._start[rows]


class Talk:
    """Questions, and conversations about them, as tokens. ``system`` is the template's own."""

    def __init__(self, speaker: Speaker, tokenizer: Tokenizer, system: str) -> None:
        self._speaker, self._tokenizer = speaker, tokenizer
        self._opened = self._encoded(f"{_turn('system', system)}<|im_start|>user\n")
        self._closed = self._encoded("<|im_end|>\n<|im_start|>assistant\n")

    def invented(
        self, count: int, openings: Sequence[str], progress: Callable[[float], None]
    ) -> list[Said]:
        """Questions of the model's own, of at most ``count`` those that came to an end. They begin
        with one opening after another."""
        begun = [self._encoded(openings[number % len(openings)]) for number in range(count)]
        said = self._speaker.go_on(
            [self._opened + opening for opening in begun], Manner(_QUESTION_TOKENS, 1.0), progress
        )
        return [
            opening + rest[:-1]
            for opening, rest in zip(begun, said, strict=True)
            if rest[-1] == self._closed[0]
        ]

    def text(self, question: Said) -> str:
        return self._tokenizer.decode(question)

    def asked(self, text: str) -> Said:
        return self._encoded(text)[:_EDGE]

    def answered(
        self, questions: Sequence[Said], manner: Manner, progress: Callable[[float], None]
    ) -> list[Said]:
        """Whole conversations."""
        prompts = [self._opened + question + self._closed for question in questions]
        answers = self._speaker.go_on(prompts, manner, progress)
        return [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]

    def _encoded(self, text: str) -> Said:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def _turn(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"
