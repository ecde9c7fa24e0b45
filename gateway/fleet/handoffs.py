"""Which engine computes a prompt for the one that answers it.

A prompt of which that engine lacks ``least_tokens`` or more goes to an engine of role prefill, if
one is free: up to ``queue_tokens`` of prompts of ours may wait there. Else whoever answers computes
it, so an overloaded giver costs nobody more than the evenness of decodes. What an engine has
computed already is guessed from what it was sent; it compares tokens itself.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from engine.handing import GiverQueues, Handing
from engine.protocol import Role, Submit
from engine.stream import Stream
from gateway.fleet.member import Member
from gateway.fleet.prefixes import DEEPEST, Prefixes
from gateway.fleet.router import SATURATED

COLD_TOKENS = 2048  # of prompts that may wait more where the adapter is there already


@dataclass(frozen=True, slots=True)
class HandoffRule:
    least_tokens: int = 256  # that the engine which answers lacks of a prompt
    queue_tokens: int = 32_768  # of prompts that wait for a giver


@dataclass(frozen=True, slots=True)
class Known:
    """What was sent where."""

    member: Member
    tokens: int


@dataclass(slots=True)
class Handoffs:
    """Of one base. Belongs to one event loop."""

    rule: HandoffRule = field(default_factory=HandoffRule)
    _givers: list[Member] = field(default_factory=list)
    _prefixes: Prefixes[Known] = field(default_factory=Prefixes)
    _queues: GiverQueues = field(init=False)

    def __post_init__(self) -> None:
        self._queues = GiverQueues(self.rule.queue_tokens)

    def join(self, member: Member) -> None:
        if member not in self._givers:
            self._givers.append(member)

    def leave(self, member: Member) -> None:
        if member in self._givers:
            self._givers.remove(member)

    def giver(self, taker: Member, submit: Submit) -> Member | None:
        """None where the taker computes the prompt itself."""
        if not self._givers or not _may_be_handed(taker, submit):
            return None
        lacking = len(submit.tokens) - self._known(taker, submit)
        free = self._free(taker, len(submit.tokens))
        if lacking < self.rule.least_tokens or not free:
            return None
        return min(free, key=partial(self._delay, submit))

    @asynccontextmanager
    async def handed(self, giver: Member, taker: Member, submit: Submit) -> AsyncIterator[Stream]:
        """The taker's stream. Raises EngineLost where it has just gone."""
        if giver.client is None or taker.client is None:
            async with taker.generate(submit) as stream:
                yield stream
            return
        count = len(submit.tokens)
        self._queues.add(giver.name, count)
        given = partial(self._queues.remove, giver.name, count)
        async with AsyncExitStack() as stack:
            handing = Handing(giver.client, taker.client, submit, given=given)
            stack.callback(handing.over)
            stream = await stack.enter_async_context(taker.generate(handing.submit))
            await stack.enter_async_context(handing)
            yield stream

    def _free(self, taker: Member, tokens: int) -> Sequence[Member]:
        base = taker.welcome.base.fingerprint if taker.welcome else ""
        return [
            member
            for member in self._givers
            if member.usable
            and member.load < SATURATED
            and member.welcome is not None
            and member.welcome.base.fingerprint == base
            and self._queues.free(member.name, tokens)
        ]

    def _delay(self, submit: Submit, giver: Member) -> int:
        """Until it has computed the prompt, in tokens of others'."""
        cold = submit.adapter is not None and submit.adapter.digest not in giver.resident
        return self._queues.waiting(giver.name) + COLD_TOKENS * cold

    def _known(self, taker: Member, submit: Submit) -> int:
        """Tokens of the prompt that the taker has computed, as far as we know. It will have all."""
        tokens, welcome = submit.tokens, taker.welcome
        assert welcome is not None, "it is connected"
        digest = submit.adapter.digest if submit.adapter else ""
        keys = self._prefixes.keys(hash((submit.tenant, digest)), tokens, welcome.page_tokens)
        found = 0
        for depth, key in enumerate(keys):
            known = next(iter(self._prefixes.known([key])), None)
            if known is not None and known.member is taker:
                pages = 1 << (len(keys) - 1 - depth)
                found = known.tokens if pages >= DEEPEST else pages * welcome.page_tokens
                break
        self._prefixes.note(keys, Known(taker, len(tokens)))
        return min(found, len(tokens) - 1)


def _may_be_handed(taker: Member, submit: Submit) -> bool:
    """Where each token of a prompt has to be seen, whoever answers sees it."""
    takes = taker.welcome is not None and bool(taker.welcome.takes)
    return takes and submit.pooling is None and submit.prompt_logprobs is None


def gives_only(member: Member) -> bool:
    """It computes prompts for others, and answers nobody while others can."""
    return member.welcome is not None and member.welcome.role is Role.PREFILL
