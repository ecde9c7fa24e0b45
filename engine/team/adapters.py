"""Adapters and swapped pages of all members, asked for where the lead's are."""

from collections.abc import Sequence
from dataclasses import replace

from adapters.pack import PackedAdapter
from engine.adapter_layout import LaidOut
from engine.adapter_memory import AdapterMemory
from engine.host_pages import HostPages
from engine.team.lead import Lead
from engine.team.orders import Clear, Place, Swap


class TeamAdapters:
    """An ``AdapterMemory`` over the members': the same pages hold each one's part."""

    def __init__(self, own: AdapterMemory, lead: Lead) -> None:
        self._own, self.lead = own, lead

    def lay_out(self, packed: PackedAdapter) -> LaidOut:
        """On every member. For any thread. Raises AdapterUnusable or MemberLost."""
        laid = self._own.lay_out(packed)
        return replace(laid, elsewhere=self.lead.supply.send(packed))

    def size(self, packed: PackedAdapter) -> int:
        """Pages it would take. For any thread. Raises AdapterUnusable."""
        return self._own.size(packed)

    def pages_for(self, laid: LaidOut) -> int:
        return self._own.pages_for(laid)

    def place(self, row: int, laid: LaidOut, pages: Sequence[int]) -> None:
        assert laid.elsewhere is not None, "an adapter of a team is kept by all members"
        after = self._own.touched(pages)
        self.lead.tell(Place(row, laid.elsewhere.key, tuple(pages), after))
        self._own.place(row, laid, pages, after=after)

    def clear(self, row: int) -> None:
        self.lead.tell(Clear(row))
        self._own.clear(row)


class TeamPages:
    """Host memory that pages are swapped to, of every member its own."""

    def __init__(self, own: HostPages, lead: Lead) -> None:
        self._own, self._lead = own, lead
        self.slots, self.page_s = own.slots, own.page_s

    def out(self, pages: Sequence[int], slots: Sequence[int]) -> None:
        after = self._own.touched(pages)
        self._lead.tell(Swap(True, tuple(pages), tuple(slots), after))
        self._own.out(pages, slots, after=after)

    def back(self, slots: Sequence[int], pages: Sequence[int]) -> None:
        after = self._own.touched(pages)
        self._lead.tell(Swap(False, tuple(pages), tuple(slots), after))
        self._own.back(slots, pages, after=after)
