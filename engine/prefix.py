"""KV that is already computed: a tree of pages, found by everything they were computed from.

Each node is one full page. The edge to it names the adapter, the salt and the tokens of that page,
so the path from the root is the whole key (the base is the engine's own) and a match is exact: no
hash stands for tokens. Images alone are named by a digest, and by where they begin. Pages before an
aLoRA is invoked name no adapter: they are the base's. The salt is the tenant, except on pages that
lie wholly within a prefix the operator declared public; so nobody can find, or time, what another
tenant computed.

A sequence that holds a node holds all above it, so what rests is always a set of whole ends, and
leaves are evicted first. Belongs to the engine loop's thread.
"""

from array import array
from collections import Counter
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count

from engine.eviction import KV_PAGE_COST, Dependants, Eviction, Rank
from engine.pages import PagePool
from engine.sequence import Sequence

Edge = tuple[str, str | None, bytes]  # adapter's digest, salt, a page of tokens and images
PUBLIC = None  # the salt of what all tenants share
FEW = 32  # stale entries that are not worth clearing away


@dataclass(slots=True, eq=False)
class Node:
    parent: "Node | None"  # None: the root, or no longer in the tree
    edge: Edge
    page: int
    children: dict[Edge, "Node"] = field(default_factory=dict)
    uses: int = 1
    number: int = -1  # of its place on the shelf; -1: not there


@dataclass(slots=True)
class Trail:
    """One sequence's way down the tree."""

    edges: list[Edge] = field(default_factory=list)  # of its pages so far; they never change
    path: list[Node] = field(default_factory=list)  # the nodes of its first pages
    awaits: tuple[Node, Edge] | None = None  # the page others may wait for


class PrefixIndex:
    """A ``Shelf`` of the pages that rest. Not ``enabled``, it finds nothing and keeps nothing."""

    def __init__(
        self,
        pool: PagePool,
        eviction: Eviction,
        dependants: Dependants,
        *,
        page_tokens: int,
        enabled: bool = True,
    ) -> None:
        self._pool, self._eviction, self._dependants = pool, eviction, dependants
        self._page_tokens, self._enabled = page_tokens, enabled
        self._root = Node(None, ("", PUBLIC, b""), -1)
        self._trails: dict[int, Trail] = {}  # by sequence number
        self._promised: Counter[tuple[Node, Edge]] = Counter()
        self._shelf: list[tuple[float, int, Node]] = []  # leaves that rest; stale ones among them
        self._numbers = count()
        self._salts: Counter[str | None] = Counter()  # nodes of each
        self.nodes = 0
        self.evicted = 0  # pages so far

    @property
    def pages(self) -> int:
        return self._pool.resting_pages

    def match(self, sequence: Sequence) -> list[Node]:
        """The longest computed prefix, in whole pages; at least one token is left to compute."""
        if sequence.sees_all or not self._enabled:
            return []  # each token of such a prompt has to be seen
        trail, node, found = self._trail(sequence), self._root, list[Node]()
        for index in range((sequence.known - 1) // self._page_tokens):
            child = node.children.get(self._edge(sequence, trail, index))
            if child is None:
                break
            found.append(node := child)
        return found

    def promised(self, sequence: Sequence, found: list[Node]) -> bool:
        """Whether a running sequence is about to compute the page after those found."""
        if sequence.sees_all or len(found) >= self._prompt_pages(sequence):
            return False
        edge = self._edge(sequence, self._trail(sequence), len(found))
        return (found[-1] if found else self._root, edge) in self._promised

    def begin(self, sequence: Sequence, found: list[Node]) -> None:
        """The sequence starts to run, holding the pages found."""
        trail = self._trail(sequence)
        trail.path = found
        for node in found:
            node.uses += 1
        self._promise(sequence, trail)

    def file(self, sequence: Sequence) -> None:
        """Enter the pages it has computed since the last call."""
        trail = self._trails[sequence.number]
        full = sequence.settled // self._page_tokens
        if not self._enabled or full <= len(trail.path):
            return
        while len(trail.path) < full and self._enter(sequence, trail):
            pass
        self._promise(sequence, trail)

    def kept(self, sequence: Sequence) -> int:
        """Tokens of a running sequence whose pages stay when it leaves."""
        return len(self._trails[sequence.number].path) * self._page_tokens

    def end(self, sequence: Sequence) -> None:
        """It has let go of its pages: whatever now rests can be evicted."""
        trail = self._trails[sequence.number]
        self._retract(trail)
        last = next((node for node in reversed(trail.path) if node.parent is not None), None)
        trail.path = []
        if last is not None:
            self._offer(last)

    def forget(self, sequence: Sequence) -> None:
        """It is over."""
        self._trails.pop(sequence.number, None)

    def distrust(self, sequence: Sequence) -> None:
        """What it read or computed may be wrong: nobody shall find it, nor what is built on it."""
        trail = self._trail(sequence)
        if self._enabled and sequence.settled >= self._page_tokens:
            top = self._root.children.get(self._edge(sequence, trail, 0))
            if top is not None:
                self._cut(top)

    def purge(self, digest: str) -> None:
        """An adapter is gone for good, and all KV computed with it."""
        ends = [self._root]
        while ends:
            for child in list(ends.pop().children.values()):
                if child.edge[0] == digest:
                    self._cut(child)
                else:
                    ends.append(child)

    def cheapest(self) -> Rank | None:
        while self._shelf:
            worth, number, node = self._shelf[0]
            if node.number == number and not node.children and self._pool.rests(node.page):
                return False, worth
            heappop(self._shelf)
            if node.number == number:
                node.number = -1
        return None

    def evict(self) -> None:
        node = heappop(self._shelf)[2]
        parent = node.parent
        assert parent is not None, "what is on the shelf is in the tree"
        self._unlink(node)
        self.evicted += 1
        self._offer(parent)

    def check(self) -> None:
        """Raise AssertionError if the tree and the pool disagree."""
        nodes, ends = list[Node](), [self._root]
        while ends:
            node = ends.pop()
            ends += node.children.values()
            nodes += node.children.values()
            assert all(child.parent is node for child in node.children.values()), "a lost parent"
            if node is not self._root and self._pool.rests(node.page):
                below = node.children.values()
                assert all(self._pool.rests(child.page) for child in below), "held below a rest"
                assert node.children or node.number >= 0, "a resting leaf cannot be evicted"
        assert len({node.page for node in nodes}) == len(nodes) == self.nodes, "pages in the tree"
        adapters = Counter(node.edge[0] for node in nodes if node.edge[0])
        assert all(self._dependants.of(digest) == n for digest, n in adapters.items()), "dependants"
        assert self._salts == Counter(node.edge[1] for node in nodes), "salts"

    def _prompt_pages(self, sequence: Sequence) -> int:
        return (len(sequence.request.submit.tokens) - 1) // self._page_tokens

    def _trail(self, sequence: Sequence) -> Trail:
        return self._trails.setdefault(sequence.number, Trail())

    def _edge(self, sequence: Sequence, trail: Trail, index: int) -> Edge:
        submit = sequence.request.submit
        while len(trail.edges) <= index:
            start = len(trail.edges) * self._page_tokens
            stop = start + self._page_tokens
            images = _images(sequence, start, stop)
            digest = sequence.request.computed_with(stop)
            public = stop <= submit.public_tokens and digest is None and not images
            tokens = array("i", sequence.tokens(start, stop)).tobytes()
            salt = PUBLIC if public else submit.tenant
            trail.edges.append((digest or "", salt, tokens + images))
        return trail.edges[index]

    def _enter(self, sequence: Sequence, trail: Trail) -> bool:
        """File its next page. False when what it lies on was distrusted meanwhile."""
        index = len(trail.path)
        parent = trail.path[-1] if trail.path else self._root
        if parent.parent is None and parent is not self._root:
            return False
        edge, page = self._edge(sequence, trail, index), sequence.pages[index]
        node = parent.children.get(edge)
        if node is None:
            node = self._link(parent, edge, page)
        elif node.page != page:  # computed twice at a time: one of them is enough
            self._pool.swap(sequence.owner, index, node.page)
            sequence.pages[index] = node.page
        trail.path.append(node)
        return True

    def _promise(self, sequence: Sequence, trail: Trail) -> None:
        self._retract(trail)
        index = len(trail.path)
        if self._enabled and index < self._prompt_pages(sequence):
            node = trail.path[-1] if trail.path else self._root
            trail.awaits = node, self._edge(sequence, trail, index)
            self._promised[trail.awaits] += 1

    def _retract(self, trail: Trail) -> None:
        if trail.awaits is not None:
            self._promised[trail.awaits] -= 1
            if not self._promised[trail.awaits]:
                del self._promised[trail.awaits]
            trail.awaits = None

    def _offer(self, node: Node) -> None:
        """Put it on the shelf if it can be evicted. Who fills the cache makes its own cheap."""
        if node.parent is None or node.children or not self._pool.rests(node.page):
            return
        share = self.nodes / len(self._salts) / self._salts[node.edge[1]]
        worth = self._eviction.worth(KV_PAGE_COST * min(1.0, share), node.uses, 1)
        node.number = next(self._numbers)
        if len(self._shelf) > 2 * self.nodes + FEW:
            self._tidy()
        heappush(self._shelf, (worth, node.number, node))

    def _tidy(self) -> None:
        """While there is room for all nobody takes from the shelf, and what is used again and again
        is put on it each time."""
        kept = []
        for entry in self._shelf:
            node = entry[2]
            if node.number != entry[1]:
                continue
            if node.children or not self._pool.rests(node.page):
                node.number = -1
            else:
                kept.append(entry)
        heapify(kept)
        self._shelf = kept

    def _link(self, parent: Node, edge: Edge, page: int) -> Node:
        node = parent.children[edge] = Node(parent, edge, page)
        self._pool.keep(page)
        self.nodes += 1
        self._salts[edge[1]] += 1
        if edge[0]:
            self._dependants.add(edge[0])
        return node

    def _cut(self, top: Node) -> None:
        parent, below = top.parent, [top]
        for node in below:  # grows while it is walked: parents come before children
            below += node.children.values()
        for node in reversed(below):
            self._unlink(node)
        assert parent is not None
        self._offer(parent)

    def _unlink(self, node: Node) -> None:
        assert node.parent is not None, "only what is in the tree leaves it"
        del node.parent.children[node.edge]
        node.parent, node.number = None, -1
        self.nodes -= 1
        self._salts[node.edge[1]] -= 1
        if not self._salts[node.edge[1]]:
            del self._salts[node.edge[1]]
        if node.edge[0]:
            self._dependants.remove(node.edge[0])
        self._pool.drop(node.page)


def _images(sequence: Sequence, start: int, stop: int) -> bytes:
    """Which images have a row in this page, and where they begin, perhaps before it."""
    if not sequence.request.submit.images:
        return b""
    return b"".join(
        array("i", [seen.first - seen.skip]).tobytes() + seen.image.digest
        for seen in sequence.seen(start, stop)
    )
