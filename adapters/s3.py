"""What all that is kept in S3 has in common: the client, and what its failures mean.

Which server and who we are is the environment's, as in all AWS tools: AWS_ENDPOINT_URL,
AWS_ACCESS_KEY_ID and so on.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from adapters.errors import StoreUnavailable, StoreUnusable

TRANSFER = TransferConfig(
    multipart_threshold=16 << 20, multipart_chunksize=8 << 20, max_concurrency=4
)
CLIENT = Config(
    connect_timeout=5, read_timeout=60, retries={"mode": "standard", "total_max_attempts": 5}
)
MISSING = frozenset({"404", "NoSuchKey", "NotFound"})


@dataclass(frozen=True, slots=True)
class Stored:
    key: str
    nbytes: int
    age_s: float  # as the server counts it


@dataclass(frozen=True, slots=True)
class Bucket:
    """A part of a bucket: all keys begin with ``prefix``. Thread-safe, as its client is."""

    client: Any
    name: str
    prefix: str = ""  # empty, or with a slash at the end

    @classmethod
    def of(cls, url: str) -> "Bucket":
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
        return cls(client, parts.netloc, f"{prefix}/" if prefix else "")

    def objects(self, prefix: str) -> Iterator[Stored]:
        """``prefix``: the whole beginning of the keys."""
        pages = self.client.get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=self.name, Prefix=prefix):
            now = _server_time(page)
            for found in page.get("Contents", ()):
                age = (now - found["LastModified"]).total_seconds()
                yield Stored(found["Key"], found["Size"], age)

    def upload(self, path: str, key: str) -> None:
        self.client.upload_file(path, self.name, key, Config=TRANSFER)

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=key)


@contextmanager
def named_failures() -> Iterator[None]:
    """What the client raises is that the store is away, not that an adapter is wrong."""
    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise StoreUnavailable(f"the adapter store does not answer: {error}") from error
    except boto3.exceptions.Boto3Error as error:
        raise StoreUnavailable(f"the adapter store does not take it: {error}") from error


def is_missing(error: ClientError) -> bool:
    return str(error.response.get("Error", {}).get("Code", "")) in MISSING


def _server_time(page: dict[str, Any]) -> datetime:
    try:
        return parsedate_to_datetime(page["ResponseMetadata"]["HTTPHeaders"]["date"])
    except (KeyError, TypeError, ValueError):
        return datetime.now(UTC)
