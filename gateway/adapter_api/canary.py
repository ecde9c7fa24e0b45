"""Tries an adapter on a real engine before anybody may use it.

A fixed probe goes the way of every request, and the engine says with which probability it expected
each next token; then the engine computes the same from the definition, in float32, from the
checkpoint and the stored adapter. The two distributions, over the likeliest tokens and the rest,
must be finite and near: otherwise a kernel, a conversion or a file is not what it should be.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.client import EngineLost, RequestRefused
from engine.protocol import AdapterRef, Finish, Sampling, Submit, TokenLogprobs, Verdict
from gateway.errors import AdapterRefused, NoEngine, Unavailable
from gateway.fleet.fleet import Fleet
from gateway.fleet.member import Member
from gateway.ids import new_id

PROBE_TOKENS = 24
TOP = 20  # tokens compared at each position, and the rest as one
LIMIT = 1e-3  # mean KL divergence, in nats
SECONDS = 300.0  # for the reference: large models take a while in float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """``mean_kl`` is None when nothing was tried."""

    mean_kl: float | None = None
    worst_kl: float | None = None
    positions: int = 0
    pages: int | None = None
    engine: str = ""
    warnings: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        return {
            "finite": self.mean_kl is not None,
            "mean_kl": self.mean_kl,
            "worst_kl": self.worst_kl,
            "limit": LIMIT,
            "positions": self.positions,
            "engine": self.engine,
        }


class Canary:
    """Belongs to one event loop."""

    def __init__(self, fleet: Fleet, *, enabled: bool = True) -> None:
        self._fleet, self._enabled = fleet, enabled

    async def run(self, adapter: AdapterRef) -> Tried:
        """Raises AdapterRefused, NoEngine, Unavailable."""
        if not self._enabled:
            return Tried(warnings=("no canary: this server was told to publish without one",))
        member = self._fleet.choose(adapter.digest)
        probe = _probe(member, adapter)
        served = await self._served(member, adapter, probe)
        tops = [[token for token, _ in fact.top] for fact in served]
        if any(not math.isfinite(logprob) for fact in served for _, logprob in fact.top):
            raise _refused("the engine's log-probabilities are not finite")
        verdict = await self._reference(member, adapter, probe, tops)
        if verdict.error:
            raise _refused(verdict.error)
        kls = [
            divergence([logprob for _, logprob in fact.top], wanted)
            for fact, wanted in zip(served, verdict.logprobs, strict=True)
        ]
        mean, worst = sum(kls) / len(kls), max(kls)
        if not mean <= LIMIT:
            raise _refused(
                f"mean KL divergence {mean:.2e} from the float32 reference, over {LIMIT}"
            )
        return Tried(
            mean_kl=mean,
            worst_kl=worst,
            positions=len(kls),
            pages=verdict.pages,
            engine=member.name,
        )

    async def _served(
        self, member: Member, adapter: AdapterRef, probe: Sequence[int]
    ) -> list[TokenLogprobs]:
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
            raise _refused(str(error)) from error
        except (EngineLost, TimeoutError) as error:
            raise Unavailable("The engine left while it tried the adapter.") from error
        failed = [output.error for output in outputs if output.finish is Finish.ERROR]
        if failed:
            raise _refused(failed[0])
        found = [fact for output in outputs for fact in output.prompt_logprobs or ()]
        if len(found) != len(probe) - 1:
            raise Unavailable("The engine did not answer the canary's probe in full.")
        return found

    async def _reference(
        self,
        member: Member,
        adapter: AdapterRef,
        probe: Sequence[int],
        tops: Sequence[Sequence[int]],
    ) -> Verdict:
        client = member.client
        if client is None:
            raise NoEngine("The engine left while it tried the adapter.")
        try:
            return await client.reference(adapter, probe, tops, timeout_s=SECONDS)
        except (EngineLost, TimeoutError) as error:
            raise Unavailable("The engine left while it tried the adapter.") from error


def divergence(served: Sequence[float], wanted: Sequence[float]) -> float:
    """KL(wanted || served) of log-probabilities of the same tokens, the rest as one token more."""
    total = 0.0
    for q, p in zip(_closed(served), _closed(wanted), strict=True):
        if p > 0:
            total += p * (math.log(p) - math.log(max(q, 1e-30)))
    return total


def _closed(logprobs: Sequence[float]) -> list[float]:
    known = [math.exp(min(logprob, 0.0)) for logprob in logprobs]
    return [*known, max(1.0 - sum(known), 1e-9)]


def _probe(member: Member, adapter: AdapterRef) -> list[int]:
    """Spread over the vocabulary, the same for everyone; ends in what invokes an aLoRA."""
    welcome = member.welcome
    size = welcome.base.vocab_size if welcome else 1 << 15
    length = min(PROBE_TOKENS, welcome.max_model_len // 2 if welcome else PROBE_TOKENS)
    tokens = [(7 + 131 * i * i + 17 * i) % size for i in range(max(2, length))]
    return [*tokens, *adapter.invocation, *tokens[:4]] if adapter.invocation else tokens


def _refused(reason: str) -> AdapterRefused:
    return AdapterRefused(f"the canary failed: {reason}", [f"canary: {reason}"])
