"""Adapters in S3, or in anything that speaks its protocol, shared by a whole fleet.

    prefix/sha256/<digest>/<generation>/adapter_config.json
    prefix/sha256/<digest>/<generation>/adapter_model.safetensors
    prefix/sha256/<digest>/<generation>/complete          written last: the generation is whole

Every put that finds no young generation writes one of its own, and only old generations are
collected. So a put and a collection never meet over the same object: no lock is needed, and no
conditional request, which not every server has. All ages are by the server's clock. A digest names
the bytes, so copies on this machine, in ``cache``, are always right; their bytes are verified.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from botocore.exceptions import ClientError

from adapters.errors import AdapterCorrupt, AdapterInvalid, AdapterMissing
from adapters.manifest import CONFIG_FILE, WEIGHTS_FILE, AdapterManifest
from adapters.s3 import TRANSFER, Bucket, is_missing, named_failures
from adapters.store import DIGEST, AdapterStore

FILES = (CONFIG_FILE, WEIGHTS_FILE)
COMPLETE = "complete"
YOUNG_S = 1200.0  # a generation that a put may rely on: its collection is still far away
CACHE_BYTES = 32 << 30  # of copies on this machine; those that came first leave first
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
        bucket: Bucket,
        cache: AdapterStore,
        *,
        young_s: float = YOUNG_S,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._bucket, self._root = bucket, f"{bucket.prefix}sha256/"
        self._cache, self._young_s, self._cache_bytes = cache, young_s, cache_bytes

    def put(self, directory: Path | str) -> str:
        """The copy in the cache is what gets hashed and sent."""
        digest = self._cache.put(directory)
        with named_failures():
            if any(g.complete and g.age_s < self._young_s for g in self._generations(digest)):
                return digest
            prefix = f"{self._root}{digest}/{uuid4().hex}/"
            folder = self._cache.path(digest)
            for name in FILES:
                self._bucket.upload(str(folder / name), prefix + name)
            client, bucket = self._bucket.client, self._bucket.name
            client.put_object(Bucket=bucket, Key=prefix + COMPLETE, Body=b"")
        self._cache.trim(self._cache_bytes, keep=digest)
        return digest

    def exists(self, digest: str) -> bool:
        if not DIGEST.fullmatch(digest):
            return False
        with named_failures():
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
        with named_failures():
            for stored in self._bucket.objects(self._root):
                digest = stored.key.removeprefix(self._root).partition("/")[0]
                if DIGEST.fullmatch(digest):
                    found[digest] = min(stored.age_s, found.get(digest, stored.age_s))
        return sorted(digest for digest, age in found.items() if age > older_than_s)

    def collect(self, digest: str, older_than_s: float) -> bool:
        """Deletes its old generations, those that were never completed too."""
        left = False
        with named_failures():
            for generation in self._generations(digest):
                if generation.age_s <= older_than_s:
                    left = True
                    continue
                # First what makes it whole, so that no reader begins on half of it.
                for name in (COMPLETE, *FILES):
                    self._bucket.delete(generation.prefix + name)
        if not left:
            self._cache.delete(digest)
        return not left

    def _fetch(self, digest: str) -> None:
        """Into the cache. Raises AdapterMissing, AdapterCorrupt or StoreUnavailable."""
        with named_failures():
            whole = [g for g in self._generations(digest) if g.complete]
        if not whole:
            raise AdapterMissing(f"the store has no adapter {digest[:80]!r}")
        newest = min(whole, key=lambda generation: generation.age_s)
        with tempfile.TemporaryDirectory(prefix="adapter-") as scratch, named_failures():
            for name in FILES:
                try:
                    self._bucket.client.download_file(
                        self._bucket.name, newest.prefix + name, f"{scratch}/{name}",
                        Config=TRANSFER,
                    )  # fmt: skip
                except ClientError as error:
                    if is_missing(error):
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
        for stored in self._bucket.objects(f"{self._root}{digest}/"):
            prefix, _, name = stored.key.rpartition("/")
            ages[f"{prefix}/"] = min(stored.age_s, ages.get(f"{prefix}/", stored.age_s))
            if name == COMPLETE:
                complete.add(f"{prefix}/")
        return [Generation(prefix, prefix in complete, age) for prefix, age in ages.items()]
