"""Where adapters are kept, chosen by one word: a directory, or ``s3://bucket/prefix``."""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from adapters.errors import StoreUnusable
from adapters.manifest import AdapterManifest
from adapters.parts import DirectoryParts, Parts
from adapters.store import MAX_BYTES, AdapterStore

if TYPE_CHECKING:
    from adapters.s3 import Bucket

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
    bucket = _bucket(str(location))
    if bucket is None:
        return AdapterStore(location, max_bytes=max_bytes)
    from adapters.s3_store import S3AdapterStore

    return S3AdapterStore(bucket, AdapterStore(cache, max_bytes=max_bytes))


def open_parts(location: str | Path, *, local: Path) -> Parts:
    """Parts of uploads where adapters are stored, so that all gateways of a fleet have them.

    ``local``: a directory on this machine. Beside a directory of adapters it holds the parts;
    else it holds drafts alone. Raises StoreUnusable.
    """
    bucket = _bucket(str(location))
    if bucket is None:
        return DirectoryParts(local)
    from adapters.s3_parts import S3Parts

    return S3Parts(bucket, local)


def _bucket(text: str) -> "Bucket | None":
    """None: a directory. Raises StoreUnusable."""
    if not text.startswith(S3):
        if "://" in text:
            raise StoreUnusable(f"{text}: an adapter store is a directory, or {S3}bucket/prefix")
        return None
    try:
        from adapters.s3 import Bucket
    except ImportError as error:
        raise StoreUnusable(
            f"{text}: this store needs the extra s3: pip install 'loratorio[s3]'"
        ) from error
    return Bucket.of(text)
