"""One load serves all who ask, memory stays in its budget, and failures are retried."""

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from adapters.errors import (
    AdapterCorrupt,
    AdapterError,
    AdapterInvalid,
    AdapterMissing,
    AdapterTooLarge,
)
from adapters.host_cache import HOLD_S, HostCache
from adapters.manifest import AdapterManifest
from adapters.pack import PackedAdapter, pack
from adapters.store import AdapterStore
from tests.adapters.builders import BASE, config, lora, write_adapter

ONE = 4 * (24 + 24) * 4  # bytes of one packed float32 adapter of rank 4 on q_proj


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class CountingStore(AdapterStore):
    """Counts opens other than its own, and holds them back while ``gate`` is closed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.opens, self.gate = 0, threading.Event()
        self.gate.set()

    def open(self, digest: str) -> AdapterManifest:
        self.opens += 1
        assert self.gate.wait(10)
        return super().open(digest)

    def put(self, directory: Path | str) -> str:
        before = self.opens
        digest = super().put(directory)
        self.opens = before
        return digest


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    return CountingStore(tmp_path / "store")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(store: CountingStore, clock: Clock) -> Iterator[Callable[[int], HostCache[PackedAdapter]]]:
    made: list[HostCache[PackedAdapter]] = []

    def cache(budget_bytes: int) -> HostCache[PackedAdapter]:
        load = partial(pack, base=BASE, dtype=torch.float32)
        made.append(HostCache(store, load, budget_bytes, clock=clock))
        return made[-1]

    yield cache
    store.gate.set()
    for each in made:
        each.close()


@pytest.fixture
def digests(store: CountingStore, tmp_path: Path) -> list[str]:
    return [
        store.put(write_adapter(tmp_path / str(seed), None, lora(seed=seed))) for seed in range(3)
    ]


def wait(cache: HostCache[PackedAdapter], digest: str) -> PackedAdapter | AdapterError:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if (found := cache.poll(digest)) is not None:
            return found
        time.sleep(0.002)
    raise TimeoutError(digest)


def test_many_requests_share_one_load(make, store, digests):
    cache = make(10 * ONE)
    store.gate.clear()
    for _ in range(50):
        cache.request(digests[0])
        assert cache.poll(digests[0]) is None
    store.gate.set()
    packed = wait(cache, digests[0])
    assert isinstance(packed, PackedAdapter)
    assert (packed.digest, packed.rank, packed.nbytes) == (digests[0], 4, ONE)
    assert cache.poll(digests[0]) is packed
    assert store.opens == 1


def test_the_least_recently_polled_leaves_first(make, store, digests):
    cache = make(2 * ONE)
    wait(cache, digests[0])
    wait(cache, digests[1])
    cache.poll(digests[0])
    wait(cache, digests[2])
    assert cache.nbytes == 2 * ONE
    assert store.opens == 3
    assert isinstance(cache.poll(digests[0]), PackedAdapter)
    assert cache.poll(digests[1]) is None


def test_what_was_just_loaded_waits_for_its_first_poll(make, store, digests):
    """Else two adapters could push each other out of a small cache for ever."""
    cache = make(ONE)
    for digest in digests:
        cache.request(digest)
    assert all(isinstance(wait(cache, digest), PackedAdapter) for digest in digests)
    assert store.opens == 3
    assert cache.nbytes == ONE


def test_a_prefetched_adapter_nobody_takes_does_not_stay_for_ever(make, clock, digests):
    cache = make(ONE)
    for digest in digests[:2]:
        cache.request(digest)
    while cache.nbytes < 2 * ONE:
        time.sleep(0.002)
    clock.now += HOLD_S
    wait(cache, digests[2])
    assert cache.nbytes == ONE


def test_an_adapter_above_the_budget_is_a_typed_error(make, digests):
    error = wait(make(ONE - 1), digests[0])
    assert isinstance(error, AdapterTooLarge)
    assert f"{ONE} bytes, the host cache has {ONE - 1}" in str(error)


def test_a_failure_is_kept_for_a_while_and_then_tried_again(make, store, clock, tmp_path, digests):
    cache = make(10 * ONE)
    store.delete(digests[0])
    assert isinstance(wait(cache, digests[0]), AdapterMissing)
    store.put(tmp_path / "0")
    assert isinstance(cache.poll(digests[0]), AdapterMissing)
    assert store.opens == 1
    clock.now += 6
    assert cache.poll(digests[0]) is None
    assert isinstance(wait(cache, digests[0]), PackedAdapter)


def test_corruption_and_misfits_are_typed(make, store, tmp_path, digests):
    cache = make(10 * ONE)
    weights = store.path(digests[0]) / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert isinstance(wait(cache, digests[0]), AdapterCorrupt)
    other_base = store.put(write_adapter(tmp_path / "deep", config(), lora(layer=99)))
    assert isinstance(wait(cache, other_base), AdapterInvalid)


def test_an_unexpected_failure_still_answers_and_spares_the_rest(make, store, digests):
    cache = make(10 * ONE)
    opened = store.open

    def broken(digest: str) -> AdapterManifest:
        if digest == digests[0]:
            raise RuntimeError("surprise")
        return opened(digest)

    store.open = broken
    error = wait(cache, digests[0])
    assert type(error) is AdapterError
    assert "surprise" in str(error)
    assert isinstance(wait(cache, digests[1]), PackedAdapter)
