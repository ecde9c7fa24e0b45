"""What a giver and a taker say to each other over TCP.

    taker  Challenge
    giver  Offer      proves that it knows the ticket's secret
    taker  Begin      likewise, once there is room for the pages
    giver  Page …     each followed by the page's bytes, or by nothing where it is only shown
    taker  Read …     for each that was shown; the giver answers Kept while it still holds it
    giver  Drawn      after the last page
    taker  Done

Either may say Failed instead. A frame is MessagePack behind its length. The secret itself never
travels here.
"""

import hmac

import msgspec

from engine.protocol import TokenLogprobs

VERSION = 1
MAX_FRAME = 1 << 20  # bytes, of a frame without its page
HEADER_BYTES = 4
NONCE_BYTES = 32
LEAST_SECRET = 16  # bytes


class Frame(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Base of every frame: positional, tagged with its class name."""


class Challenge(Frame, frozen=True):
    version: int
    nonce: bytes


class Offer(Frame, frozen=True):
    ticket: str
    nonce: bytes
    proof: bytes
    layout: str  # of pages; engines of another cannot take them
    key: bytes  # what the pages are computed from
    cached: int
    pool: bytes = b""


class Begin(Frame, frozen=True):
    proof: bytes
    first: int
    direct: bool = False


class Page(Frame, frozen=True):
    index: int
    page: int | None = None  # of the giver's pool; None: its bytes follow


class Read(Frame, frozen=True):
    index: int


class Kept(Frame, frozen=True):
    index: int


class Drawn(Frame, frozen=True):
    token: int
    logprobs: TokenLogprobs | None = None


class Done(Frame, frozen=True):
    """Everything arrived."""


class Failed(Frame, frozen=True):
    reason: str


AnyFrame = Challenge | Offer | Begin | Page | Read | Kept | Drawn | Done | Failed


def proof(secret: bytes, who: str, ticket: str, theirs: bytes, ours: bytes) -> bytes:
    """That whoever sends it knows the secret. ``who`` keeps one side's from being sent back."""
    said = b"/".join((who.encode(), ticket.encode(), theirs, ours))
    return hmac.digest(secret, said, "sha256")
