"""Both stores keep one contract; the S3 one against a real S3 server over HTTP."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapters.errors import (
    AdapterCorrupt,
    AdapterInvalid,
    AdapterMissing,
    StoreUnavailable,
    StoreUnusable,
)
from adapters.s3 import Bucket
from adapters.s3_store import S3AdapterStore
from adapters.store import AdapterStore
from adapters.stores import Store, open_store
from tests.adapters.builders import config, lora, write_adapter
from tests.s3 import BUCKET, keys, s3, server

PREFIX = "fleet/adapters"
__all__ = ["s3", "server"]  # fixtures
ALWAYS, NEVER = -3600.0, 3600.0  # seconds: everything is older than the first, nothing than that
Opener = Callable[[str], Store]  # one machine's view of the store


@pytest.fixture(params=["directory", "s3"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    if request.param == "s3":
        request.getfixturevalue("s3")
        url = f"s3://{BUCKET}/{PREFIX}"
        return lambda machine: open_store(url, cache=tmp_path / machine)
    return lambda machine: open_store(tmp_path / "shared", cache=tmp_path / machine)


def adapter(path: Path, seed: int = 0) -> Path:
    return write_adapter(path, config(), lora(seed=seed))


def test_what_one_machine_puts_every_machine_opens(opener, tmp_path):
    digest = opener("a").put(adapter(tmp_path / "x"))
    there = opener("b")
    assert there.exists(digest)
    found = there.open(digest)
    assert (found.digest, found.rank) == (digest, 4)
    assert (found.directory / "adapter_config.json").read_bytes() == (
        tmp_path / "x" / "adapter_config.json"
    ).read_bytes()
    assert opener("a").put(tmp_path / "x") == digest


@pytest.mark.parametrize("digest", ["0" * 64, "../" + "0" * 61, "", "A" * 64, "0" * 63 + "\n"])
def test_what_is_not_there_is_missing_and_no_path(opener, tmp_path, digest):
    store = opener("a")
    store.put(adapter(tmp_path / "x"))
    assert not store.exists(digest)
    with pytest.raises(AdapterMissing):
        store.open(digest)


def test_what_is_no_adapter_leaves_nothing(opener, tmp_path):
    store = opener("a")
    with pytest.raises(AdapterInvalid):
        store.put(write_adapter(tmp_path / "x", config(r="?")))
    assert store.stale(ALWAYS) == []


def test_only_the_old_is_collected_and_what_is_put_again_is_young(opener, tmp_path):
    store = opener("a")
    digest, other = store.put(adapter(tmp_path / "x")), store.put(adapter(tmp_path / "y", 1))
    assert store.stale(NEVER) == []
    assert store.stale(ALWAYS) == sorted([digest, other])
    assert not store.collect(digest, NEVER)
    assert store.exists(digest)
    assert store.collect(digest, ALWAYS)
    assert store.collect(digest, ALWAYS)  # idempotent
    assert not store.exists(digest)
    with pytest.raises(AdapterMissing):
        opener("b").open(digest)
    assert store.exists(other)
    assert store.put(tmp_path / "x") == digest
    assert opener("b").open(digest).digest == digest


def store_of(s3: Any, tmp_path: Path, machine: str, **settings: Any) -> S3AdapterStore:
    cache = AdapterStore(tmp_path / machine)
    return S3AdapterStore(Bucket(s3, BUCKET, f"{PREFIX}/"), cache, **settings)


class Interrupted:
    """A client that lets something happen before one of its calls."""

    def __init__(self, client: Any, call: str, happens: Callable[[], object]) -> None:
        self._client, self._call, self._happens = client, call, happens

    def __getattr__(self, name: str) -> Any:
        if name == self._call and self._happens is not None:
            happens, self._happens = self._happens, None  # type: ignore[assignment]
            happens()
        return getattr(self._client, name)


def test_a_put_in_the_middle_of_a_collection_survives_it(s3, tmp_path):
    folder = adapter(tmp_path / "x")
    digest = store_of(s3, tmp_path, "a").put(folder)
    putting = store_of(s3, tmp_path, "b", young_s=ALWAYS)  # by now what is there is old
    watched = Interrupted(s3, "delete_object", lambda: putting.put(folder))
    store_of(watched, tmp_path, "c").collect(digest, ALWAYS)
    assert putting.exists(digest)
    assert store_of(s3, tmp_path, "d").open(digest).digest == digest
    assert len(keys(s3)) == 3


def test_a_young_generation_is_not_sent_again_and_an_old_one_is(s3, tmp_path):
    folder = adapter(tmp_path / "x")
    store_of(s3, tmp_path, "a").put(folder)
    before = keys(s3)
    store_of(s3, tmp_path, "b").put(folder)
    assert keys(s3) == before
    store_of(s3, tmp_path, "c", young_s=ALWAYS).put(folder)
    assert len(keys(s3)) == 6


def test_a_put_that_was_cut_short_is_not_there_and_is_cleared_away(s3, tmp_path):
    folder = adapter(tmp_path / "x")
    digest = store_of(s3, tmp_path, "a").put(folder)
    (marker,) = [key for key in keys(s3) if key.endswith("/complete")]
    s3.delete_object(Bucket=BUCKET, Key=marker)
    store = store_of(s3, tmp_path, "b")
    assert not store.exists(digest)
    assert store.stale(ALWAYS) == [digest]
    assert store.collect(digest, ALWAYS)
    assert keys(s3) == []


def test_a_generation_that_goes_while_it_is_read_is_looked_for_again(s3, tmp_path):
    folder = adapter(tmp_path / "x")
    first = store_of(s3, tmp_path, "a")
    digest = first.put(folder)

    def replaced() -> None:
        for key in keys(s3):
            s3.delete_object(Bucket=BUCKET, Key=key)
        store_of(s3, tmp_path, "b").put(folder)

    reader = store_of(Interrupted(s3, "download_file", replaced), tmp_path, "c")
    assert reader.open(digest).digest == digest


def test_other_bytes_under_a_digest_are_never_used(s3, tmp_path):
    digest = store_of(s3, tmp_path, "a").put(adapter(tmp_path / "x"))
    (weights,) = [key for key in keys(s3) if key.endswith(".safetensors")]
    s3.upload_file(str(adapter(tmp_path / "y", 1) / "adapter_model.safetensors"), BUCKET, weights)
    with pytest.raises(AdapterCorrupt, match="its bytes hash to"):
        store_of(s3, tmp_path, "b").open(digest)
    s3.put_object(Bucket=BUCKET, Key=weights, Body=b"not safetensors")
    with pytest.raises(AdapterCorrupt):
        store_of(s3, tmp_path, "c").open(digest)


def test_a_copy_that_was_damaged_here_is_fetched_again(s3, tmp_path):
    store = store_of(s3, tmp_path, "a")
    digest = store.put(adapter(tmp_path / "x"))
    copy = store.open(digest).directory / "adapter_model.safetensors"
    copy.write_bytes(copy.read_bytes()[:-4])
    assert store.open(digest).digest == digest


def test_copies_are_bounded_and_come_back(s3, tmp_path):
    size = sum(file.stat().st_size for file in adapter(tmp_path / "x").iterdir())
    store = store_of(s3, tmp_path, "a", cache_bytes=int(size * 1.5))
    first = store.put(tmp_path / "x")
    os.utime(AdapterStore(tmp_path / "a").path(first), (1, 1))
    second = store.put(adapter(tmp_path / "y", 1))
    assert AdapterStore(tmp_path / "a").digests() == [second]
    assert store.open(first).digest == first


def test_a_store_that_is_away_says_so_and_copies_still_serve(s3, tmp_path, monkeypatch):
    digest = store_of(s3, tmp_path, "a").put(adapter(tmp_path / "x"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    away = open_store(f"s3://{BUCKET}/{PREFIX}", cache=tmp_path / "a")
    assert away.open(digest).digest == digest
    with pytest.raises(StoreUnavailable, match="does not answer"):
        open_store("s3://nowhere", cache=tmp_path / "b").open(digest)


def test_a_bucket_that_does_not_exist_is_named_without_a_secret(s3, tmp_path):
    store = open_store("s3://absent/x", cache=tmp_path / "a")
    with pytest.raises(StoreUnavailable, match="NoSuchBucket") as caught:
        store.put(adapter(tmp_path / "x"))
    assert "secret-of-a-test" not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://", "http://host/x", "gs://b/x", "s3://key:secret@b/x"])
def test_what_is_no_store_is_refused_at_once(tmp_path, url):
    with pytest.raises(StoreUnusable) as caught:
        open_store(url, cache=tmp_path)
    assert "secret" not in str(caught.value) or "@" not in url
