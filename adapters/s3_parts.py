"""Uploads on their way in S3, so that any gateway may take any part of any of them.

    prefix/uploads/<upload id>/<file>.<part number>

Drafts are written on this machine first: a part whose checksum is wrong never reaches the store.
"""

from collections.abc import Collection, Iterator
from pathlib import Path
from uuid import uuid4

from botocore.exceptions import ClientError

from adapters.errors import UploadGone
from adapters.parts import COPY_BYTES, DirectoryParts
from adapters.s3 import Bucket, is_missing, named_failures


class S3Parts:
    """Thread-safe, as its client is. See ``parts.Parts``."""

    def __init__(self, bucket: Bucket, drafts: Path) -> None:
        self._bucket, self._drafts = bucket, drafts
        self._root = f"{bucket.prefix}uploads/"

    def begin(self, upload: str) -> None:
        """A bucket has no directories."""

    def draft(self, upload: str) -> Path:
        self._drafts.mkdir(parents=True, exist_ok=True)
        return self._drafts / f".{uuid4().hex}"

    def put(self, upload: str, name: str, draft: Path) -> None:
        with named_failures():
            self._bucket.upload(str(draft), self._key(upload, name))
        draft.unlink(missing_ok=True)

    def sizes(self, upload: str) -> dict[str, int]:
        prefix = self._key(upload, "")
        with named_failures():
            found = list(self._bucket.objects(prefix))
        return {stored.key.removeprefix(prefix): stored.nbytes for stored in found}

    def read(self, upload: str, name: str) -> Iterator[bytes]:
        with named_failures():
            try:
                found = self._bucket.client.get_object(
                    Bucket=self._bucket.name, Key=self._key(upload, name)
                )
            except ClientError as error:
                if is_missing(error):
                    raise UploadGone(upload) from error
                raise
            yield from found["Body"].iter_chunks(COPY_BYTES)

    def remove(self, upload: str, name: str) -> None:
        with named_failures():
            self._bucket.delete(self._key(upload, name))

    def discard(self, upload: str) -> None:
        for name in self.sizes(upload):
            self.remove(upload, name)

    def clear(self, known: Collection[str], *, older_than_s: float) -> int:
        """And drafts that a killed process left on this machine."""
        youngest: dict[str, float] = {}
        with named_failures():
            for stored in self._bucket.objects(self._root):
                upload = stored.key.removeprefix(self._root).partition("/")[0]
                youngest[upload] = min(stored.age_s, youngest.get(upload, stored.age_s))
        lost = [u for u, age in youngest.items() if u not in known and age > older_than_s]
        for upload in lost:
            self.discard(upload)
        return len(lost) + DirectoryParts(self._drafts).clear(known, older_than_s=older_than_s)

    def _key(self, upload: str, name: str) -> str:
        return f"{self._root}{upload}/{name}"
