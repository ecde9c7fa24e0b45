"""How long grammars and masks take, over the schemas of ``bench.schemas`` and a real vocabulary.

    python -m bench.masks .data/demo/smollm2-135m-instruct

A model of random logits writes one answer to every schema, all of them in one batch as an engine
has them. Such a model would never close a string, so what closes is made likelier as an answer
grows. What is measured is the compiler, the masks of a pass, and what applying them costs beside
drawing without.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from bench.schemas import Schema, all_schemas
from engine.grammars import LlGrammars
from engine.matcher import Matcher, Turn
from engine.protocol import Sampling
from engine.sampling import TokenMasks, draw
from engine.step import Draw
from gateway.inference.grammars import Compiler, Flaw
from gateway.inference.schema import JsonSchema
from gateway.inference.structure import of_schema

WAIT_S = 60.0
MOST_TOKENS = 400
CLOSING = b'"}]'
ROWS = 64  # of a pass, as an engine at work has them


@dataclass(frozen=True, slots=True)
class Answer:
    text: bytes
    finished: bool
    fault: str = ""


@dataclass(slots=True)
class Timings:
    """Seconds."""

    compiling: list[float] = field(default_factory=list)  # of each grammar, by an engine
    masks: list[float] = field(default_factory=list)  # of each pass
    per_mask: list[float] = field(default_factory=list)  # of each pass, by its masks


def accepted(schemas: Mapping[str, Schema]) -> tuple[dict[str, str], dict[str, str]]:
    """Grammars of the schemas that can be enforced whole, and why the others cannot."""
    compiler, grammars, refused = Compiler(), {}, {}
    for name, schema in schemas.items():
        found = compiler.compile(of_schema(JsonSchema.read(schema, "schema"), "schema"))
        if isinstance(found, Flaw):
            refused[name] = found.message
        else:
            grammars[name] = found.text
    return grammars, refused


class RandomModel:
    """Draws from random logits over a vocabulary, through the engine's own masks and sampler."""

    def __init__(
        self, grammars: LlGrammars, token_bytes: Sequence[bytes], eos: int, *, seed: int = 0
    ) -> None:
        self._grammars, self._bytes, self._eos = grammars, token_bytes, eos
        closes = [any(byte in CLOSING for byte in token) for token in token_bytes]
        self._closes = torch.tensor(closes, dtype=torch.float32)
        self._closes[eos] = 1.0
        self._random = torch.Generator().manual_seed(seed)
        self.timings = Timings()

    def answer(self, grammars: Mapping[str, str]) -> dict[str, Answer]:
        """One answer for each grammar, by name."""
        matchers = {name: self._compile(text) for name, text in grammars.items()}
        written: dict[str, list[int]] = {name: [] for name in matchers}
        done: dict[str, Answer] = {}
        for position in range(MOST_TOKENS):
            open_names = [name for name in matchers if name not in done]
            if not open_names:
                break
            tokens = self._draw([matchers[name] for name in open_names], position)
            for name, token in zip(open_names, tokens, strict=True):
                matcher = matchers[name]
                if token != self._eos:
                    written[name].append(token)
                matcher.take(token)
                if matcher.fault or matcher.complete or token == self._eos:
                    done[name] = Answer(self._text(written[name]), True, matcher.fault)
        cut = {name: Answer(self._text(written[name]), False) for name in matchers}
        return {**cut, **done}

    def _compile(self, grammar: str) -> Matcher:
        started = time.perf_counter()
        matcher = self._grammars.compile(grammar).result(WAIT_S)
        self.timings.compiling.append(time.perf_counter() - started)
        return matcher.fork()

    def _draw(self, matchers: Sequence[Matcher], position: int) -> list[int]:
        turns = [Turn(row, matcher, [()]) for row, matcher in enumerate(matchers)]
        started = time.perf_counter()
        masks = self._grammars.masks(turns).result(WAIT_S)
        took = time.perf_counter() - started
        self.timings.masks.append(took)
        self.timings.per_mask.append(took / len(turns))
        logits = torch.randn((len(turns), len(self._bytes)), generator=self._random)
        logits += self._closes * (1.0 + position / 20)
        draws = [
            Draw(sampling=Sampling(), seed=row, position=position, prompt=(), output=(),
                 masked=True)
            for row in range(len(turns))
        ]  # fmt: skip
        rows = np.array([masks.rows[row] for row in range(len(turns))], dtype=np.int32)
        read = draw(logits, draws, None, TokenMasks(rows, masks.bits)).read()
        assert all(drawn.token is not None for drawn in read), "a grammar left no token"
        return [drawn.token or 0 for drawn in read]

    def _text(self, tokens: Sequence[int]) -> bytes:
        return b"".join(self._bytes[token] for token in tokens)


def applying(vocabulary: int, device: torch.device) -> tuple[float, float]:
    """Seconds to draw for ROWS rows, without masks and with."""
    bits = np.full((ROWS, -(-vocabulary // 32)), -1, dtype=np.int32)
    masks = TokenMasks(np.arange(ROWS, dtype=np.int32), bits)
    logits = torch.randn((ROWS, vocabulary), device=device)
    draws = [
        Draw(sampling=Sampling(), seed=row, position=0, prompt=(), output=()) for row in range(ROWS)
    ]
    return (
        _median(lambda: draw(logits, draws).read(), device),
        _median(lambda: draw(logits, draws, None, masks).read(), device),
    )


def _median(work: Callable[[], object], device: torch.device, times: int = 15) -> float:
    took = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        took.append(time.perf_counter() - started)
    return statistics.median(took[2:])


def p95(values: Sequence[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]


def main(arguments: Sequence[str]) -> int:
    from gateway.inference.tokenizer import Tokenizer

    parser = argparse.ArgumentParser(description="Measure grammars and masks.")
    parser.add_argument("model", type=Path, help="a directory with a tokenizer.json")
    parser.add_argument("--threads", type=int, default=2, help="that make masks")
    given = parser.parse_args(arguments)
    tokenizer = Tokenizer.load(given.model)
    eos = max(i for i, raw in enumerate(tokenizer.token_bytes) if not raw)
    grammars = LlGrammars(
        given.model / "tokenizer.json", vocab_size=tokenizer.vocab_size, eos=[eos],
        threads=given.threads,
    )  # fmt: skip
    schemas = all_schemas()
    texts, _ = accepted(schemas)
    grammars.compile(next(iter(texts.values()))).result(WAIT_S)  # the tokenizer is read
    model = RandomModel(grammars, tokenizer.token_bytes, eos)
    answers = model.answer(texts)
    timings, device = model.timings, torch.device("cuda" if torch.cuda.is_available() else "cpu")
    plain, masked = applying(tokenizer.vocab_size, device)
    found = {
        "schemas": len(schemas),
        "accepted": len(texts),
        "finished": sum(answer.finished for answer in answers.values()),
        "vocabulary": tokenizer.vocab_size,
        "compile_ms_p50": 1e3 * statistics.median(timings.compiling),
        "compile_ms_p95": 1e3 * p95(timings.compiling),
        "compile_ms_max": 1e3 * max(timings.compiling),
        "mask_us_p50": 1e6 * statistics.median(timings.per_mask),
        "mask_us_p95": 1e6 * p95(timings.per_mask),
        "masks_ms_of_64_p95": 1e3 * ROWS * p95(timings.per_mask),
        "draw_ms_of_64": 1e3 * plain,
        "masked_draw_ms_of_64": 1e3 * masked,
        "device": str(device),
    }
    print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in found.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
