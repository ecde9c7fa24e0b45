"""Stored adapters are whole, unchanged, and found by digest alone."""

import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from adapters.errors import AdapterCorrupt, AdapterInvalid, AdapterMissing, AdapterTooLarge
from adapters.manifest import AdapterManifest
from adapters.store import AdapterStore
from tests.adapters.builders import PREFIX, config, lora, write_adapter

WEIGHTS = "adapter_model.safetensors"


@pytest.fixture
def store(tmp_path: Path) -> AdapterStore:
    return AdapterStore(tmp_path / "store")


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "adapter")


def left_over(store_root: Path) -> list[str]:
    return sorted(str(path.relative_to(store_root)) for path in store_root.rglob("*"))


def test_put_then_open(store, adapter, tmp_path):
    digest = store.put(adapter)
    assert digest == AdapterManifest.read(adapter).digest == store.open(digest).digest
    assert store.path(digest) == tmp_path / "store" / "sha256" / digest
    assert store.exists(digest)
    assert store.digests() == [digest]


def test_put_copies_the_two_files_and_nothing_else(store, adapter):
    (adapter / "README.md").write_text("hello")
    (adapter / "optimizer.pt").write_bytes(b"x")
    names = {path.name for path in store.path(store.put(adapter)).iterdir()}
    assert names == {"adapter_config.json", WEIGHTS}


def test_put_again_changes_nothing(store, adapter):
    place = store.path(store.put(adapter))
    before = (place / WEIGHTS).stat()
    store.put(adapter)
    after = (place / WEIGHTS).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_other_spelling_of_the_same_adapter_is_stored_once(store, adapter, tmp_path):
    bare = {name.removeprefix(PREFIX): value for name, value in lora().items()}
    assert store.put(adapter) == store.put(write_adapter(tmp_path / "bare", None, bare))
    assert len(store.digests()) == 1


def test_a_refused_put_leaves_nothing_behind(store, tmp_path):
    with pytest.raises(AdapterInvalid):
        store.put(write_adapter(tmp_path / "bad", config(use_dora=True)))
    assert left_over(tmp_path / "store") == ["incoming", "sha256"]


def test_a_put_cut_short_leaves_nothing_to_be_found(store, adapter, tmp_path):
    half = tmp_path / "store" / "incoming" / "tmpabc"
    write_adapter(half)
    assert store.digests() == []
    assert store.digests() != [store.put(adapter)]


@pytest.mark.parametrize("file", ["adapter_config.json", WEIGHTS])
def test_symlinks_are_not_followed_into_the_store(store, adapter, tmp_path, file):
    (adapter / file).rename(tmp_path / "secret")
    (adapter / file).symlink_to(tmp_path / "secret")
    with pytest.raises(AdapterInvalid, match="symbolic link"):
        store.put(adapter)


def test_files_above_the_limit_are_not_copied(adapter, tmp_path):
    store = AdapterStore(tmp_path / "small", max_bytes=500)
    with pytest.raises(AdapterTooLarge, match="bytes, more than 500"):
        store.put(adapter)


def flip_last_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda place: flip_last_bit(place / WEIGHTS), id="bit_flip"),
        pytest.param(lambda place: (place / WEIGHTS).write_bytes(b""), id="truncated"),
        pytest.param(lambda place: (place / WEIGHTS).unlink(), id="file_gone"),
        pytest.param(lambda place: (place / "adapter_config.json").write_text("{}"), id="config"),
    ],
)
def test_damage_is_found_on_open_and_healed_by_a_put(store, adapter, damage):
    digest = store.put(adapter)
    damage(store.path(digest))
    with pytest.raises(AdapterCorrupt, match=digest):
        store.open(digest)
    store.put(adapter)
    assert store.open(digest).digest == digest


@pytest.mark.parametrize(
    "digest",
    ["", "nope", "../../etc", "/etc/passwd", "a" * 63, "a" * 65, "A" * 64, "a" * 64 + "\n",
     "../" + "a" * 61, "a" * 64 + "/..", "0" * 64, "\0" * 64, "٣" * 64],
)  # fmt: skip
def test_names_that_are_not_stored_digests_are_missing(store, adapter, digest):
    store.put(adapter)
    assert not store.exists(digest)
    with pytest.raises(AdapterMissing):
        store.open(digest)
    with pytest.raises(AdapterMissing):
        store.path(digest)
    store.delete(digest)


def test_delete_is_complete_and_idempotent(store, adapter, tmp_path):
    digest = store.put(adapter)
    store.delete(digest)
    store.delete(digest)
    assert not store.exists(digest)
    assert left_over(tmp_path / "store") == ["incoming", "sha256"]


def test_threads_that_put_and_delete_the_same_adapter_never_see_half_of_it(store, adapter):
    digest = store.put(adapter)

    def churn(turn: int) -> None:
        if turn % 3 == 0:
            store.delete(digest)
        store.put(adapter)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(churn, range(60)))
    assert store.open(digest).digest == digest


def test_what_is_put_while_it_is_collected_is_there_afterwards(store, adapter):
    """It was old when both began, so either may be first; whoever named it may rely on it."""
    digest = store.put(adapter)
    for _ in range(25):
        os.utime(store.path(digest), (1, 1))
        with ThreadPoolExecutor(4) as pool:
            taken = [pool.submit(store.collect, digest, 3600.0) for _ in range(2)]
            put = [pool.submit(store.put, adapter) for _ in range(2)]
        assert {future.result() for future in put} == {digest}
        assert all(future.exception() is None for future in taken)
        assert store.open(digest).digest == digest
    assert not store.collect(digest, 3600.0)
    assert list((store.path(digest).parents[1] / "incoming").iterdir()) == []


def test_processes_may_put_the_same_adapter_at_once(store, adapter):
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert len(set(pool.map(store.put, [adapter] * 9))) == 1
    assert len(store.digests()) == 1
