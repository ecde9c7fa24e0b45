"""Adapters in host memory: loaded once in the background, kept by bytes, least recent out.

The engine asks with ``request`` and looks with ``poll``; neither waits for a disk. A load is
shared by all who want the same digest. A failure is answered for ``error_ttl_s`` and then tried
again, so a file that arrives late is found.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Generic, Protocol, TypeVar

from adapters.errors import AdapterError, AdapterTooLarge
from adapters.manifest import AdapterManifest
from adapters.stores import Store

MAX_FAILURES = 1_000
HOLD_S = 10.0  # how long a loaded adapter is kept for its first poll


class Loaded(Protocol):
    """An adapter as it is kept."""

    @property
    def digest(self) -> str: ...
    @property
    def nbytes(self) -> int: ...


L = TypeVar("L", bound=Loaded)


class HostCache(Generic[L]):
    """Thread-safe. ``close`` ends its threads.

    ``load`` makes what is kept from a stored adapter, in threads of the cache; what it
    raises is why the adapter cannot be had.
    """

    def __init__(
        self,
        store: Store,
        load: Callable[[AdapterManifest], L],
        budget_bytes: int,
        *,
        workers: int = 2,
        error_ttl_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._make = store, load
        self._budget_bytes, self._error_ttl_s, self._clock = budget_bytes, error_ttl_s, clock
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="adapter-load")
        self._lock = threading.RLock()  # a load may end before its callback is added
        self._loading: set[str] = set()
        self._packed: OrderedDict[str, L] = OrderedDict()  # least recent first
        self._fresh: dict[str, float] = {}  # loaded when and not yet polled: not evicted at once
        self._failed: OrderedDict[str, tuple[float, AdapterError]] = OrderedDict()
        self._bytes = 0

    @property
    def nbytes(self) -> int:
        return self._bytes

    def request(self, digest: str) -> None:
        """Start loading unless it is here, on its way, or failed a moment ago."""
        with self._lock:
            self._request(digest)

    def poll(self, digest: str) -> L | AdapterError | None:
        """The adapter, why it cannot be had, or None while it loads (which this starts)."""
        with self._lock:
            packed = self._packed.get(digest)
            if packed is not None:
                self._packed.move_to_end(digest)
                self._fresh.pop(digest, None)
                self._evict()
                return packed
            self._request(digest)
            failure = self._failed.get(digest)
            return failure[1] if failure else None

    def holds(self, digest: str) -> bool:
        """Whether it is here. Starts nothing, and is no use of it."""
        return digest in self._packed

    def drop(self, digest: str) -> None:
        """Forget it, should it be here."""
        with self._lock:
            packed = self._packed.pop(digest, None)
            self._fresh.pop(digest, None)
            self._bytes -= packed.nbytes if packed else 0

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _request(self, digest: str) -> None:
        failure = self._failed.get(digest)
        if failure and self._clock() - failure[0] >= self._error_ttl_s:
            del self._failed[digest]
            failure = None
        if failure is None and digest not in self._packed and digest not in self._loading:
            self._loading.add(digest)
            future = self._pool.submit(self._load, digest)
            future.add_done_callback(partial(self._loaded, digest))

    def _load(self, digest: str) -> L:
        packed = self._make(self._store.open(digest))
        if packed.nbytes > self._budget_bytes:
            text = f"{packed.nbytes} bytes, the host cache has {self._budget_bytes}"
            raise AdapterTooLarge([f"adapter {digest}: {text}"])
        return packed

    def _loaded(self, digest: str, future: Future[L]) -> None:
        """Runs in the loading thread, or in ``close`` for a load that never started."""
        if future.cancelled():
            return
        error = future.exception()
        with self._lock:
            self._loading.discard(digest)
            if error is None:
                self._keep(future.result())
            elif isinstance(error, AdapterError):
                self._fail(digest, error)
            else:
                self._fail(digest, AdapterError(f"adapter {digest}: cannot be loaded ({error!r})"))

    def _keep(self, packed: L) -> None:
        self._packed[packed.digest] = packed
        self._fresh[packed.digest] = self._clock()
        self._bytes += packed.nbytes
        self._evict()

    def _fail(self, digest: str, error: AdapterError) -> None:
        self._failed[digest] = (self._clock(), error)
        while len(self._failed) > MAX_FAILURES:
            self._failed.popitem(last=False)

    def _evict(self) -> None:
        """Least recent first, but an adapter just loaded waits for whoever asked for it."""
        for digest in list(self._packed):
            if self._bytes <= self._budget_bytes:
                return
            if self._clock() - self._fresh.get(digest, float("-inf")) >= HOLD_S:
                self._fresh.pop(digest, None)
                self._bytes -= self._packed.pop(digest).nbytes
