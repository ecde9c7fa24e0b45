"""All engines of this gateway, by the base they serve.

The directory says where to look, a connection says who is there: an engine that is listed no more
stays for as long as it answers, so a directory that forgets everything costs nobody an engine.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial

from engine.tls import NO_CREDENTIALS, Credentials
from gateway.fleet.crew import Crew
from gateway.fleet.directory import LOOK_S, Directory
from gateway.fleet.handoffs import HandoffRule
from gateway.fleet.member import SILENCE_S, Member
from gateway.fleet.unavailable import DirectoryUnavailable

REFRESH_S = 0.05  # how old the view of a large fleet may be

log = logging.getLogger(__name__)


class Fleet:
    """Belongs to one event loop. ``run`` keeps every member connected until cancelled."""

    def __init__(
        self,
        directory: Directory,
        *,
        gateway: str,
        bases: Mapping[str, str] | None = None,
        silence_s: float = SILENCE_S,
        credentials: Credentials = NO_CREDENTIALS,
        handoffs: HandoffRule | None = None,
    ) -> None:
        """``bases``: name -> fingerprint. Without, every engine serves the one base there is."""
        self._directory = directory
        self._make = partial(
            Member,
            gateway=gateway,
            silence_s=silence_s,
            credentials=credentials,
            arrived=self._arrived,
        )
        self._by_fingerprint = {digest: name for name, digest in (bases or {}).items()}
        self._crews = {name: Crew(handoffs) for name in bases or ("",)}
        self._running: dict[Member, asyncio.Task[None]] = {}
        self.members: list[Member] = []
        self._list(directory.known)

    def of(self, base: str) -> Crew:
        """The engines of a base, by its served name."""
        return self._crews[base] if self._by_fingerprint else self._crews[""]

    @property
    def first(self) -> Crew:
        """Of the base that is meant where nobody names one."""
        return next(iter(self._crews.values()))

    @property
    def ready(self) -> list[Member]:
        """Of any base: they take new requests."""
        return [member for crew in self._crews.values() for member in crew.ready]

    @property
    def bases(self) -> Sequence[str]:
        """That have an engine which takes requests."""
        return [name for name, crew in self._crews.items() if crew.ready]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._refresh(), name="fleet's view")
            reached = True
            while True:
                try:
                    self._list(await self._directory.look())
                except DirectoryUnavailable as error:
                    if reached:
                        log.warning("engines are looked for where they were: %s", error)
                    reached = False
                else:
                    reached = True
                self._let_go()
                for member in self.members:
                    if member not in self._running:
                        task = group.create_task(member.run(), name=f"member {member.name}")
                        self._running[member] = task
                if not self._directory.changes:
                    return
                await asyncio.sleep(LOOK_S)

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            for crew in self._crews.values():
                crew.refresh()

    def _list(self, addresses: Sequence[str]) -> None:
        self._listed = frozenset(addresses)
        known = {member.name for member in self.members}
        self.members += [self._make(address) for address in addresses if address not in known]

    def _let_go(self) -> None:
        for member in [each for each in self.members if each.name not in self._listed]:
            if member.client is None:
                self.members.remove(member)
                self._leave(member)
                if (task := self._running.pop(member, None)) is not None:
                    task.cancel()

    def _arrived(self, member: Member) -> None:
        """It may serve another base than before."""
        self._leave(member)
        welcome = member.welcome
        if welcome is None:
            return
        name: str | None = ""
        if self._by_fingerprint:
            name = self._by_fingerprint.get(welcome.base.fingerprint)
        if name is None:
            found = welcome.base.fingerprint[:16]
            member.unfit = f"it serves a base of fingerprint {found}, this gateway others"
            log.warning("engine %s: %s", member.name, member.unfit)
        else:
            self._crews[name].join(member)

    def _leave(self, member: Member) -> None:
        for crew in self._crews.values():
            crew.leave(member)
