"""Where adapters are kept, chosen by one word: a directory, or ``s3://bucket/prefix``."""

from pathlib import Path
from typing import Protocol

from adapters.errors import StoreUnusable
from adapters.manifest import AdapterManifest
from adapters.store import MAX_BYTES, AdapterStore

S3 = "s3://"


class Store(Protocol):
    """Adapters under the hash of their content. Safe for several threads and processes.

    Whoever names an adapter does so within ``stale``'s age of having put it: nothing younger is
    ever collected.
    """

    def put(self, directory: Path | str) -> str:
        """Copy an adapter in; its digest. Raises AdapterInvalid, or AdapterError."""
        ...

    def exists(self, digest: str) -> bool: ...

    def open(self, digest: str) -> AdapterManifest:
        """On this machine, its bytes verified. Raises AdapterMissing or AdapterCorrupt."""
        ...

    def stale(self, older_than_s: float) -> list[str]:
        """Digests of adapters that were not put for so long, sorted."""
        ...

    def collect(self, digest: str, older_than_s: float) -> bool:
        """Delete an adapter unless it was put again meanwhile; whether it is gone."""
        ...


def open_store(location: str | Path, *, cache: Path, max_bytes: int = MAX_BYTES) -> Store:
    """``cache``: a directory for copies of what is kept elsewhere. Raises StoreUnusable."""
    text = str(location)
    if text.startswith(S3):
        try:
            from adapters.s3_store import S3AdapterStore
        except ImportError as error:
            raise StoreUnusable(
                f"{text}: this store needs the extra s3: pip install 'loratorio[s3]'"
            ) from error
        return S3AdapterStore.of(text, AdapterStore(cache, max_bytes=max_bytes))
    if "://" in text:
        raise StoreUnusable(f"{text}: an adapter store is a directory, or {S3}bucket/prefix")
    return AdapterStore(text, max_bytes=max_bytes)
