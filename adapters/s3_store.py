"""Adapters in S3, or in anything that speaks its protocol, shared by a whole fleet.

    prefix/sha256/<digest>/<generation>/adapter_config.json
    prefix/sha256/<digest>/<generation>/adapter_model.safetensors
    prefix/sha256/<digest>/<generation>/complete          written last: the generation is whole

Every put that finds no young generation writes one of its own, and only old generations are
collected. So a put and a collection never meet over the same object: no lock is needed, and no
conditional request, which not every server has. All ages are by the server's clock. A digest names
the bytes, so copies on this machine, in ``cache``, are always right; their bytes are verified.

Which server and who we are is the environment's, as in all AWS tools: AWS_ENDPOINT_URL,
AWS_ACCESS_KEY_ID and so on.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from adapters.errors import (
    AdapterCorrupt,
    AdapterInvalid,
    AdapterMissing,
    StoreUnavailable,
    StoreUnusable,
)
from adapters.manifest import CONFIG_FILE, WEIGHTS_FILE, AdapterManifest
from adapters.store import DIGEST, AdapterStore

FILES = (CONFIG_FILE, WEIGHTS_FILE)
COMPLETE = "complete"
YOUNG_S = 1200.0  # a generation that a put may rely on: its collection is still far away
CACHE_BYTES = 32 << 30  # of copies on this machine; those that came first leave first
TRANSFER = TransferConfig(
    multipart_threshold=16 << 20, multipart_chunksize=8 << 20, max_concurrency=4
)
CLIENT = Config(
    connect_timeout=5, read_timeout=60, retries={"mode": "standard", "total_max_attempts": 5}
)
MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
ATTEMPTS = 3  # at reading an adapter whose generation is collected meanwhile


@dataclass(frozen=True, slots=True)
class Generation:
    prefix: str  # of its keys, with a slash at the end
    complete: bool
    age_s: float  # of its youngest object


class S3AdapterStore:
    """Thread-safe, as its client is. See ``stores.Store``."""

    def __init__(
        self,
        client: Any,
        bucket: str,
        prefix: str,
        cache: AdapterStore,
        *,
        young_s: float = YOUNG_S,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        """``prefix``: empty, or with a slash at the end."""
        self._client, self._bucket, self._root = client, bucket, f"{prefix}sha256/"
        self._cache, self._young_s, self._cache_bytes = cache, young_s, cache_bytes

    @classmethod
    def of(cls, url: str, cache: AdapterStore) -> "S3AdapterStore":
        """``s3://bucket/prefix``. Raises StoreUnusable."""
        parts = urlsplit(url)
        if not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
            raise StoreUnusable(
                f"{parts.scheme}://{parts.hostname or ''}: write s3://bucket/prefix"
            )
        prefix = parts.path.strip("/")
        try:
            client = boto3.client("s3", config=CLIENT)
        except (BotoCoreError, ValueError) as error:
            raise StoreUnusable(f"s3://{parts.netloc}: {error}") from error
        return cls(client, parts.netloc, f"{prefix}/" if prefix else "", cache)

    def put(self, directory: Path | str) -> str:
        """The copy in the cache is what gets hashed and sent."""
        digest = self._cache.put(directory)
        with _named_failures():
            if any(g.complete and g.age_s < self._young_s for g in self._generations(digest)):
                return digest
            prefix = f"{self._root}{digest}/{uuid4().hex}/"
            folder = self._cache.path(digest)
            for name in FILES:
                self._client.upload_file(
                    str(folder / name), self._bucket, prefix + name, Config=TRANSFER
                )
            self._client.put_object(Bucket=self._bucket, Key=prefix + COMPLETE, Body=b"")
        self._cache.trim(self._cache_bytes, keep=digest)
        return digest

    def exists(self, digest: str) -> bool:
        if not DIGEST.fullmatch(digest):
            return False
        with _named_failures():
            return any(generation.complete for generation in self._generations(digest))

    def open(self, digest: str) -> AdapterManifest:
        if not DIGEST.fullmatch(digest):
            raise AdapterMissing(f"the store has no adapter {digest[:80]!r}")
        for _ in range(ATTEMPTS):
            try:
                return self._cache.open(digest)
            except AdapterMissing:
                self._fetch(digest)
            except AdapterCorrupt:
                self._cache.delete(digest)
                self._fetch(digest)
        return self._cache.open(digest)

    def stale(self, older_than_s: float) -> list[str]:
        found: dict[str, float] = {}
        with _named_failures():
            for prefix, age in self._objects(self._root):
                digest = prefix.removeprefix(self._root).partition("/")[0]
                if DIGEST.fullmatch(digest):
                    found[digest] = min(age, found.get(digest, age))
        return sorted(digest for digest, age in found.items() if age > older_than_s)

    def collect(self, digest: str, older_than_s: float) -> bool:
        """Deletes its old generations, those that were never completed too."""
        left = False
        with _named_failures():
            for generation in self._generations(digest):
                if generation.age_s <= older_than_s:
                    left = True
                    continue
                # First what makes it whole, so that no reader begins on half of it.
                for name in (COMPLETE, *FILES):
                    self._client.delete_object(Bucket=self._bucket, Key=generation.prefix + name)
        if not left:
            self._cache.delete(digest)
        return not left

    def _fetch(self, digest: str) -> None:
        """Into the cache. Raises AdapterMissing, AdapterCorrupt or StoreUnavailable."""
        with _named_failures():
            whole = [g for g in self._generations(digest) if g.complete]
        if not whole:
            raise AdapterMissing(f"the store has no adapter {digest[:80]!r}")
        newest = min(whole, key=lambda generation: generation.age_s)
        with tempfile.TemporaryDirectory(prefix="adapter-") as scratch, _named_failures():
            for name in FILES:
                try:
                    self._client.download_file(
                        self._bucket, newest.prefix + name, f"{scratch}/{name}", Config=TRANSFER
                    )
                except ClientError as error:
                    if _code(error) in MISSING:
                        return  # collected meanwhile: the next attempt looks again
                    raise
            found = self._kept(digest, Path(scratch))
        if found != digest:
            self._cache.delete(found)
            raise AdapterCorrupt(f"stored adapter {digest}: its bytes hash to {found}")
        self._cache.trim(self._cache_bytes, keep=digest)

    def _kept(self, digest: str, folder: Path) -> str:
        try:
            return self._cache.put(folder)
        except AdapterInvalid as error:
            raise AdapterCorrupt(f"stored adapter {digest}: {error}") from error

    def _generations(self, digest: str) -> list[Generation]:
        assert DIGEST.fullmatch(digest)
        ages: dict[str, float] = {}
        complete: set[str] = set()
        for key, age in self._objects(f"{self._root}{digest}/"):
            prefix, _, name = key.rpartition("/")
            ages[f"{prefix}/"] = min(age, ages.get(f"{prefix}/", age))
            if name == COMPLETE:
                complete.add(f"{prefix}/")
        return [Generation(prefix, prefix in complete, age) for prefix, age in ages.items()]

    def _objects(self, prefix: str) -> Iterator[tuple[str, float]]:
        """Keys and ages in seconds, as the server counts them."""
        pages = self._client.get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=self._bucket, Prefix=prefix):
            now = _server_time(page)
            for found in page.get("Contents", ()):
                yield found["Key"], (now - found["LastModified"]).total_seconds()


@contextmanager
def _named_failures() -> Iterator[None]:
    """What the client raises is that the store is away, not that an adapter is wrong."""
    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise StoreUnavailable(f"the adapter store does not answer: {error}") from error
    except boto3.exceptions.Boto3Error as error:
        raise StoreUnavailable(f"the adapter store does not take it: {error}") from error


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _server_time(page: dict[str, Any]) -> datetime:
    try:
        return parsedate_to_datetime(page["ResponseMetadata"]["HTTPHeaders"]["date"])
    except (KeyError, TypeError, ValueError):
        return datetime.now(UTC)
