"""Tries an adapter on a real engine before anybody may use it.

A fixed probe goes the way of every request, and the engine says with which probability it expected
each next token; then the engine computes the same from the definition, in float32, from the
checkpoint and the stored adapter. The two distributions must be finite and near: otherwise a
kernel, a conversion or a file is not what it should be. The definition without the adapter says
how much the adapter changes, and so whether the comparison could have told that it is missing.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.protocol import (
    AdapterRef,
    Finish,
    RefusalCode,
    Sampling,
    Submit,
    TokenLogprobs,
    Verdict,
)
from engine.stream import EngineLost, RequestRefused
from gateway.adapter_api.divergence import SAME, divergence, limit_of, mean
from gateway.errors import AdapterRefused, NoEngine, Unavailable
from gateway.fleet.fleet import Fleet
from gateway.fleet.member import Member
from gateway.fleet.router import Wish
from gateway.ids import new_id

TOP = 20  # tokens compared at each position, and the rest as one
SECONDS = 300.0  # for the reference: large models take a while in float32
PASSING = (RefusalCode.QUEUE_FULL, RefusalCode.DRAINING, RefusalCode.ADAPTER_MISSING)
UNTRIED = "no canary: this server was told to publish without one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Divergences in nats; ``mean_kl`` is None when nothing was tried."""

    mean_kl: float | None = None
    worst_kl: float | None = None
    effect_kl: float | None = None  # of the adapter from the base, both by the definition
    limit: float | None = None
    dtype: str = ""
    positions: int = 0
    pages: int | None = None
    engine: str = ""
    warnings: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        return {
            "finite": self.mean_kl is not None,
            "mean_kl": self.mean_kl,
            "worst_kl": self.worst_kl,
            "effect_kl": self.effect_kl,
            "limit": self.limit,
            "dtype": self.dtype,
            "positions": self.positions,
            "engine": self.engine,
        }


class Canary:
    """Belongs to one event loop."""

    def __init__(self, fleet: Fleet, probe: Sequence[int], *, enabled: bool = True) -> None:
        self._fleet, self._probe, self._enabled = fleet, tuple(probe), enabled

    async def run(self, adapter: AdapterRef, base: str) -> Tried:
        """Raises AdapterRefused, NoEngine, Unavailable."""
        if not self._enabled:
            return Tried(warnings=(UNTRIED,))
        member = self._fleet.of(base).choose(Wish(adapter.digest))
        probe = self._fitted(member, adapter)
        served = await _served(member, adapter, probe)
        if any(not math.isfinite(logprob) for fact in served for _, logprob in fact.top):
            raise _refused("the engine's log-probabilities are not finite")
        tops = [[token for token, _ in fact.top] for fact in served]
        verdict = await _reference(member, adapter, probe, tops)
        if verdict.error:
            raise _refused(verdict.error)
        welcome = member.welcome
        return _judged(served, verdict, member.name, welcome.base.dtype if welcome else "")

    def _fitted(self, member: Member, adapter: AdapterRef) -> list[int]:
        """The probe as this engine takes it; ends in what invokes an aLoRA and some words more."""
        welcome = member.welcome
        if welcome is None:
            raise NoEngine("The engine left before it tried the adapter.")
        size, tail = welcome.base.vocab_size, list(adapter.invocation)
        tokens = [token % size for token in self._probe]
        if tail:
            tail += tokens[:8]
        return tokens[: max(2, welcome.max_model_len - 1 - len(tail))] + tail


def _judged(served: Sequence[TokenLogprobs], verdict: Verdict, engine: str, dtype: str) -> Tried:
    """Raises AdapterRefused."""
    answers = [[logprob for _, logprob in fact.top] for fact in served]
    kls = [divergence(q, p) for q, p in zip(answers, verdict.logprobs, strict=True)]
    effects = [divergence(q, p) for q, p in zip(verdict.base, verdict.logprobs, strict=True)]
    effect, limit = mean(effects), limit_of(dtype)
    if not mean(kls) <= limit:
        raise _refused(
            f"mean KL divergence {mean(kls):.2e} from the float32 reference, over {limit:g}"
            f" for {dtype}; the adapter itself moves the base by {effect:.2e}"
        )
    return Tried(
        mean_kl=mean(kls),
        worst_kl=max(kls),
        effect_kl=effect,
        limit=limit,
        dtype=dtype,
        positions=len(kls),
        pages=verdict.pages,
        engine=engine,
        warnings=_warnings(effect, limit, dtype),
    )


def _warnings(effect: float, limit: float, dtype: str) -> tuple[str, ...]:
    if effect < SAME:
        return ("canary: on the probe this adapter answers as the base does",)
    if effect < limit:
        return (
            f"canary: on the probe this adapter moves the base by {effect:.1e} nats, less than"
            f" {dtype} may differ ({limit:g}): it could not be told whether it is applied in full",
        )
    return ()


async def _served(member: Member, adapter: AdapterRef, probe: Sequence[int]) -> list[TokenLogprobs]:
    """What the engine expected at each position but the first."""
    submit = Submit(
        request=new_id("req"),
        tenant="canary",
        tokens=list(probe),
        max_tokens=1,
        sampling=Sampling(temperature=0.0),
        adapter=adapter,
        prompt_logprobs=TOP,
        ignore_eos=True,
    )
    try:
        async with asyncio.timeout(SECONDS), member.generate(submit) as stream:
            outputs = [output async for output in stream]
    except RequestRefused as error:
        if error.code in PASSING:
            raise Unavailable(f"The engine could not try the adapter now: {error}") from error
        raise _refused(str(error)) from error
    except (EngineLost, TimeoutError) as error:
        raise _left() from error
    failed = [output.error for output in outputs if output.finish is Finish.ERROR]
    if failed:
        if member.client is None:  # it ended everything, not this adapter
            raise _left()
        raise _refused(failed[0])
    found = [fact for output in outputs for fact in output.prompt_logprobs or ()]
    if len(found) != len(probe) - 1:
        raise Unavailable("The engine did not answer the canary's probe in full.")
    return found


async def _reference(
    member: Member, adapter: AdapterRef, probe: Sequence[int], tops: Sequence[Sequence[int]]
) -> Verdict:
    client = member.client
    if client is None:
        raise _left()
    try:
        return await client.reference(adapter, probe, tops, timeout_s=SECONDS)
    except (EngineLost, TimeoutError) as error:
        raise _left() from error


def _left() -> Unavailable:
    return Unavailable("The engine left while it tried the adapter.")


def _refused(reason: str) -> AdapterRefused:
    return AdapterRefused(f"the canary failed: {reason}", [f"canary: {reason}"])
