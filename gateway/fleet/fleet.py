"""All engines of this gateway."""

import asyncio
from collections.abc import Collection

from engine.tls import NO_CREDENTIALS, Credentials
from gateway.errors import NoEngine
from gateway.fleet.directory import Directory
from gateway.fleet.member import Member
from gateway.fleet.router import choose

RETRY_SECONDS = 1.0  # what a client is told to wait when no engine answers


class Fleet:
    """Belongs to one event loop. ``run`` keeps every member connected until cancelled."""

    def __init__(
        self, directory: Directory, *, gateway: str, credentials: Credentials = NO_CREDENTIALS
    ) -> None:
        self.members = [
            Member(address, gateway=gateway, credentials=credentials)
            for address in directory.addresses()
        ]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for member in self.members:
                group.create_task(member.run(), name=f"member {member.name}")

    @property
    def ready(self) -> list[Member]:
        return [member for member in self.members if member.client is not None]

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

    def choose(self, digest: str | None, *, tried: Collection[Member] = ()) -> Member:
        """A reachable engine that has not been tried. Raises NoEngine."""
        left = [member for member in self.ready if member not in tried]
        if not left:
            raise no_engine()
        return choose(left, digest)


def no_engine() -> NoEngine:
    return NoEngine("No engine is reachable right now.", retry_after=RETRY_SECONDS)
