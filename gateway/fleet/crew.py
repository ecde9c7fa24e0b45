"""The engines that serve one base, as this gateway sees them."""

from collections.abc import Collection
from contextlib import AbstractAsyncContextManager

from engine.protocol import Submit
from engine.stream import Stream
from gateway.errors import NoEngine
from gateway.fleet.handoffs import HandoffRule, Handoffs, gives_only
from gateway.fleet.member import Member
from gateway.fleet.router import Router, Wish

MOST_GATEWAYS = 16.0
RETRY_SECONDS = 1.0  # what a client is told to wait when no engine answers


class Crew:
    """Belongs to one event loop."""

    def __init__(self, rule: HandoffRule | None = None) -> None:
        self.members: list[Member] = []
        self._handoffs = Handoffs(rule or HandoffRule())
        self._router: Router[Member] = Router()

    def join(self, member: Member) -> None:
        """Idempotent."""
        if member not in self.members:
            self.members.append(member)
        if member.welcome is not None:
            self._router.page_tokens = member.welcome.page_tokens
        if gives_only(member):
            self._handoffs.join(member)
        elif member.usable:
            self._router.join(member)

    def leave(self, member: Member) -> None:
        if member in self.members:
            self.members.remove(member)
        self._router.leave(member)
        self._handoffs.leave(member)

    def refresh(self) -> None:
        """Who came back, and how busy everybody is."""
        for member in self.members:
            if member.usable and not gives_only(member):
                self._router.join(member)
        self._router.gateways = self._gateways()
        self._router.refresh()

    def _gateways(self) -> float:
        """That send to these engines, by what runs there beside what is ours."""
        clients = [client for member in self.members if (client := member.client) is not None]
        ours = sum(client.open for client in clients)
        told = sum(load.running + load.waiting for c in clients if (load := c.load) is not None)
        return min(max(told / ours, 1.0), MOST_GATEWAYS) if ours else 1.0

    @property
    def ready(self) -> list[Member]:
        return [member for member in self.members if member.takes]

    @property
    def context(self) -> int:
        """Tokens, prompt plus completion, that every reachable engine takes. Raises NoEngine."""
        lengths = [m.welcome.max_model_len for m in self.members if m.welcome is not None]
        if not lengths:
            raise no_engine()
        return min(lengths)

    @property
    def hidden_size(self) -> int:
        """Numbers of a pooled prompt's vector. Raises NoEngine."""
        sizes = [m.welcome.base.hidden_size for m in self.members if m.welcome is not None]
        if not sizes:
            raise no_engine()
        return min(sizes)

    @property
    def image_tokens(self) -> int:
        """Placeholders that an image takes; 0 where some engine reads text alone."""
        found = {m.welcome.base.image_tokens for m in self.members if m.welcome is not None}
        return found.pop() if len(found) == 1 else 0

    def choose(self, wish: Wish, *, tried: Collection[Member] = ()) -> Member:
        """An engine that has not been tried; one that is late only where no other is left.

        Raises NoEngine.
        """
        chosen = self._router.choose(wish, tried=tried)
        if chosen is None:
            left = [member for member in self.ready if member not in tried]
            if not left:
                raise no_engine()
            chosen = min(left, key=lambda member: member.load)
        return chosen

    def asked(self, member: Member, submit: Submit) -> AbstractAsyncContextManager[Stream]:
        """The stream of a chosen engine, whoever computes the prompt. Raises EngineLost."""
        giver = self._handoffs.giver(member, submit)
        if giver is None:
            return member.generate(submit)
        return self._handoffs.handed(giver, member, submit)


def no_engine() -> NoEngine:
    return NoEngine("No engine is reachable right now.", retry_after=RETRY_SECONDS)
