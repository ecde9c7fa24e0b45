"""One engine in a process of its own: what it computes, holds and compiles, as a line of JSON.

    python -m tests.gpu.trial CHECKPOINT --adapters 64

Run by the tests beside it, so that no engine meets the memory of another.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from engine.bench.alone import LoneEngine, Requests, adapter_ref
from engine.bench.correct import Trial, agreement, trial
from engine.config import AdapterDtype, EngineConfig, HeadDtype, KvCacheDtype
from engine.core import Heard
from engine.pages import Kind, Owner
from engine.protocol import AdapterRef, Sampling, Submit, TokenLogprobs
from engine.runner import ModelRunner
from engine.step import Chunk, StepPlan
from engine.team.ending import end_process

MIXED_RANKS = (8, 16, 32, 64)
LOADED = 128  # sequences
REQUESTS = 40
KINDS = (
    Sampling(temperature=0.0),
    Sampling(seed=1, temperature=0.9, top_p=0.9, top_k=40),
    Sampling(seed=2, frequency_penalty=0.5, presence_penalty=0.1, repetition_penalty=1.2),
)


@dataclass(frozen=True, slots=True)
class Answer:
    tokens: list[int]
    logprobs: list[TokenLogprobs]  # of each token


def lone_engine(options: argparse.Namespace) -> LoneEngine:
    return LoneEngine(
        EngineConfig(
            model=str(options.checkpoint), max_model_len=options.max_model_len,
            max_num_seqs=LOADED, max_num_batched_tokens=2048, max_adapter_loads=64,
            deterministic=options.deterministic, enforce_eager=options.eager,
            kv_cache_dtype=options.kv_cache_dtype, head_dtype=options.head_dtype,
            adapter_dtype=options.adapter_dtype,
            tensor_parallel_size=options.tensor_parallel_size,
        )
    )  # fmt: skip


def full_load_peak(engine: LoneEngine, refs: Sequence[AdapterRef]) -> int:
    """Bytes of the device in use at most, by anybody, while every sequence place is taken."""
    for i in range(LOADED):
        ref = refs[i % len(refs)] if refs else None
        engine.submit(f"load {i}", engine.random_prompt(100, seed=i), 8, ref)
    free, total = torch.cuda.mem_get_info()
    for _ in engine.passes(Requests()):
        free = min(free, torch.cuda.mem_get_info()[0])
    return total - free


@torch.inference_mode()
def divergence(engine: LoneEngine, found: Trial) -> float:
    """Mean Kullback-Leibler divergence of the engine's logits from float32, over all positions.

    The sequences are computed again, whole and in one eager pass, since only this gives every
    logit and not just the likeliest.
    """
    runner, pool, chunks = engine.built.runner, engine.core.pool, []
    assert isinstance(runner, ModelRunner)
    for number, (tokens, ref) in enumerate(zip(found.sequences, found.refs, strict=True)):
        pages = pool.allocate(-(-len(tokens) // 64), Owner(Kind.KV, f"divergence {number}"))
        assert pages is not None
        row = -1 if ref is None else engine.core.residency._resident[ref.digest]
        chunks.append(Chunk(sequence=number, tokens=tokens, start=0, pages=pages, adapter=row))
    inputs = runner._builder.build(StepPlan(chunks))
    rows = torch.arange(inputs.tokens.numel(), device=engine.device)
    inputs = replace(inputs, head_rows=rows)
    hidden = runner._model(inputs, runner._memory.layers, runner._lora(inputs))
    total, at = 0.0, 0
    for expected in found.reference:
        ours = runner._model.head(hidden[at : at + len(expected)]).log_softmax(-1)
        truth = expected.log_softmax(-1)
        total += float((truth.exp() * (truth - ours)).sum())
        at += len(expected)
    return total / at


def answers(engine: LoneEngine, refs: Sequence[AdapterRef], *, ahead: bool) -> dict[int, Answer]:
    """Of sampled, penalised and greedy requests that end by a stop token or a limit."""
    engine.core._ahead = ahead
    for i in range(REQUESTS):
        submit = Submit(
            f"{ahead} {i}", "trial", engine.random_prompt(20 + 7 * i, seed=i), 20 + i % 13,
            sampling=KINDS[i % 3], adapter=refs[i % len(refs)] if refs and i % 4 else None,
            ignore_eos=True, stop_tokens=list(range(0, 1000, 50)), logprobs=2,
        )  # fmt: skip
        engine.core.inbox.put(Heard(0, submit))
    requests = Requests()
    for _ in engine.passes(requests):
        pass
    return {
        int(name.split()[1]): Answer(tokens, requests.logprobs[name])
        for name, tokens in requests.outputs.items()
    }


def parting(one: Answer, other: Answer) -> float:
    """Nats between the two likeliest tokens where two answers first differ; 0 when they do not."""
    for ours, theirs, fact in zip(one.tokens, other.tokens, one.logprobs, strict=False):
        if ours != theirs:
            (_, first), (_, second) = fact.top[:2]
            return first - second
    return 0.0 if len(one.tokens) == len(other.tokens) else math.inf


def report(engine: LoneEngine, options: argparse.Namespace) -> dict[str, object]:
    refs = [adapter_ref(i, MIXED_RANKS[i % 4]) for i in range(options.adapters)]
    found: dict[str, object] = {
        "peak": full_load_peak(engine, refs),
        "total": torch.cuda.mem_get_info()[1],
    }
    serial, ahead = (answers(engine, refs, ahead=each) for each in (False, True))
    found["unlike serial"] = [i for i in range(REQUESTS) if serial[i].tokens != ahead[i].tokens]
    greedy = range(0, REQUESTS, len(KINDS))
    found["widest parting"] = max(parting(serial[i], ahead[i]) for i in greedy)
    found["compiled"] = engine.built.compiled()
    tried = trial(engine, options.checkpoint, [None, *refs, None])
    agreed = agreement(tried)
    found |= {"compared": agreed.compared, "worst": agreed.worst, "share": agreed.share}
    if options.divergence:
        found["divergence"] = divergence(engine, tried)
    return found


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--adapters", type=int, default=0)
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--kv-cache-dtype", type=KvCacheDtype, default=KvCacheDtype.AUTO)
    parser.add_argument("--head-dtype", type=HeadDtype, default=HeadDtype.AUTO)
    parser.add_argument("--adapter-dtype", type=AdapterDtype, default=AdapterDtype.AUTO)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--divergence", action="store_true")
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    options = parser.parse_args(argv)
    engine = lone_engine(options)
    print(json.dumps(report(engine, options)))  # noqa: T201
    engine.built.close()
    if options.tensor_parallel_size > 1:
        end_process(0)


if __name__ == "__main__":
    main(sys.argv[1:])
