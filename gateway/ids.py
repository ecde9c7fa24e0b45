"""Ids: a prefix that says what, then a UUIDv7, so that they sort by time of making."""

from typing import Literal

from uuid_utils import uuid7

Prefix = Literal[
    "org", "prj", "adp", "prc", "req", "log", "svc", "user", "quo", "bud", "plan", "crd", "alert",
    "msg", "audit", "upl", "file", "batch", "resp", "fc", "fco", "login", "use", "invite",
]  # fmt: skip


def made_ms(identity: str) -> int:
    """When an id was made, in unix milliseconds."""
    return int(identity.rpartition("_")[2][:12], 16)


def new_id(prefix: Prefix) -> str:
    """For example ``req_0193a6f2…``: 32 hexadecimal digits after the prefix."""
    return f"{prefix}_{uuid7().hex}"
