"""What the local usage log holds: one Started when a request is admitted, one Finished at its end.

A Finished is durable before the last byte of the answer is sent. Both carry the request id, which
is the event id everywhere. Token counts are exact and integers.
"""

from enum import StrEnum

import msgspec


class Outcome(StrEnum):
    COMPLETED = "completed"
    CANCELLED = "cancelled"  # the client left
    FAILED = "failed"  # our fault or the engine's; tokens delivered until then are counted
    ENGINE_LOST = "engine_lost"
    DEADLINE = "deadline"


class Started(msgspec.Struct, frozen=True, tag="started", kw_only=True):
    request: str  # req_… (UUIDv7)
    organisation: str
    project: str
    key: str
    model: str  # public name
    base_model: str
    adapter_id: str | None
    digest: str | None
    endpoint: str  # "chat.completions" or "completions"
    prompt_tokens: int
    at_ns: int  # unix nanoseconds
    user: str = ""  # the tenant's own customer, where the request names one
    tier: str = "default"  # of service
    price: str = ""  # prc_…, by which it was admitted; "": the one in force by then


class Finished(msgspec.Struct, frozen=True, tag="finished", kw_only=True):
    request: str
    outcome: Outcome
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finish_reason: str | None
    engine: str  # which engine
    boot: str  # and which start of it
    at_ns: int
    first_ns: int = 0  # from admission to the first tokens; 0: there were none
    token_ns: int = 0  # the mean from one token of a choice to the next; 0: there was no next


Record = Started | Finished
