"""What a gateway and an engine say to each other.

Every message is one MessagePack frame. The two unions at the bottom are the whole contract:
a gateway may send any ``ToEngine``, an engine any ``ToGateway``. This module imports nothing
but msgspec, so a gateway never loads torch.

Rules
-----
* First frames: ``Hello`` then ``Welcome``; anything else closes the connection.
* Every ``Submit`` is answered by exactly one terminal: a ``Refused``, or for each of its ``n``
  choices one ``Output`` with ``finish`` set. ``Refused`` means *not started*: sending the
  request to another engine is safe.
* A closed connection cancels everything submitted on it.
* At most ``Welcome.credits`` requests of one connection may be open at a time.
* Tenants are opaque: a fairness key and a cache salt, never a name.

Compatibility: fields are only ever appended, with a default. Removing a field, changing its meaning
or adding a message raises ``VERSION``, and ``Hello`` is refused.
"""

from enum import StrEnum

import msgspec

VERSION = 4


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Base of every frame: positional on the wire, tagged with its class name."""


class Fact(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of the records that frames carry."""


class Finish(StrEnum):
    STOP = "stop"  # end-of-sequence or stop token; stop strings are the gateway's
    LENGTH = "length"  # reached max_tokens or the context window
    GRANT = "grant"  # the granted tokens ran out and no Grant arrived in time
    CANCELLED = "cancelled"  # the gateway asked, or its connection closed
    DEADLINE = "deadline"  # deadline_ms elapsed before completion
    ERROR = "error"  # this request failed inside the engine; Output.error says why


class Pooling(StrEnum):
    """What becomes of a prompt's last hidden states, normed as the head reads them."""

    MEAN = "mean"  # over its tokens
    LAST = "last"  # its last token's


class Role(StrEnum):
    """What an engine is there for. Each can do all; a gateway sends it this alone."""

    BOTH = "both"
    PREFILL = "prefill"  # computes prompts, whose pages it gives to others
    DECODE = "decode"  # generates; takes pages of long prompts


class RefusalCode(StrEnum):
    QUEUE_FULL = "queue_full"  # retry after retry_ms, here or elsewhere
    DRAINING = "draining"  # this engine is leaving; send it elsewhere
    ADAPTER_MISSING = "adapter_missing"  # the store has no such digest
    ADAPTER_INVALID = "adapter_invalid"  # the adapter cannot be loaded on this base
    PROMPT_TOO_LONG = "prompt_too_long"  # prompt plus one token exceeds the context
    NEVER_FITS = "never_fits"  # needs more pages than this engine has
    INVALID = "invalid"  # a field is outside its range; detail names it


class AdapterRef(Fact, frozen=True):
    digest: str  # hash of the canonical content; the identity everywhere
    rank: int  # the largest rank of any module
    invocation: tuple[int, ...] = ()  # aLoRA: active from the last occurrence of these tokens on


class Sampling(Fact, frozen=True):
    """How the next token is chosen. Defaults change nothing.

    Order: penalties and bias, then temperature, top_k, top_p, min_p, then one draw whose random
    number depends on (seed, position) alone.
    """

    temperature: float = 1.0  # 0 means the most likely token
    top_p: float = 1.0
    top_k: int = 0  # 0 means no limit
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: list[tuple[int, float]] = []  # (token, added to its logit)
    min_tokens: int = 0  # end-of-sequence and stop tokens are barred before this many
    allowed: list[int] = []  # the only tokens that may be drawn; empty: any
    bad_words: list[list[int]] = []  # runs of tokens of which none is completed

    @property
    def looks_back(self) -> bool:
        """What may come next depends on the tokens before it, besides by what the model makes."""
        penalised = self.frequency_penalty or self.presence_penalty
        return bool(self.repetition_penalty != 1.0 or penalised or self.bad_words)


class Hello(Message, frozen=True):
    gateway: str
    version: int = VERSION
    token: str | None = None  # of an engine that asks for one

    def __repr__(self) -> str:  # a token is nobody's to read
        return f"Hello(gateway={self.gateway!r}, version={self.version})"


class BaseInfo(Fact, frozen=True):
    """The served base model, as far as a gateway needs to know it."""

    fingerprint: str
    architecture: str
    vocab_size: int
    quantization: str  # "gptq", "awq", "compressed-tensors" or "none"
    dtype: str
    hidden_size: int = 0  # numbers of a pooled prompt's vector
    image_tokens: int = 0  # placeholders that an image takes in a prompt; 0: it reads text alone
    image_side: int = 0  # pixels


class Welcome(Message, frozen=True):
    engine: str
    boot: str  # changes with every start of the engine
    base: BaseInfo
    max_model_len: int  # tokens, prompt plus completion
    page_tokens: int
    credits: int
    role: Role = Role.BOTH
    takes: str = ""  # tcp:HOST:PORT where it takes pages of prompts; empty: nowhere
    seats: int = 0  # sequences of a pass, of all gateways together; 0: not said


class Image(Fact, frozen=True):
    """An image in a prompt, cut to the tower's size. Its vectors stand for the placeholders'."""

    start: int  # position of its first placeholder
    tokens: int  # placeholders, one after the other
    digest: bytes  # SHA-256 of the pixels
    pixels: bytes  # [side, side, 3], 8 bits of red, green and blue each


class Ticket(Fact, frozen=True):
    """For a prompt that one engine computes and another goes on from.

    The one that takes its pages is told first, then the one that gives them, the same request
    with one token to generate. Both have to be given a seed.
    """

    name: str  # no other has it
    secret: bytes  # by which the two engines know each other; nobody else's
    to: str = ""  # where its pages go; empty: they come to the engine that is told this


class Submit(Message, frozen=True):
    request: str
    tenant: str
    tokens: list[int]
    max_tokens: int
    sampling: Sampling = Sampling()
    adapter: AdapterRef | None = None
    n: int = 1
    stop_tokens: list[int] = []  # besides the model's own end-of-sequence tokens
    ignore_eos: bool = False
    logprobs: int | None = None  # how many alternatives per token; 0 gives the token's own
    prompt_logprobs: int | None = None
    granted: int | None = None  # tokens all choices may generate before a Grant; None: no limit
    deadline_ms: int | None = None  # relative, so clocks need not agree
    priority: int = 0  # larger goes first
    public_tokens: int = 0  # first tokens that are no secret: their KV is shared by all tenants
    weight: float = 1.0  # the tenant's share of the engine, against other tenants' weights
    grammar: str | None = None  # what each choice must match, as llguidance writes it; None: any
    pooling: Pooling | None = None  # its prompt as one vector; with n=1 and max_tokens=1
    images: list[Image] = []  # by position; only where BaseInfo.image_tokens says what they take
    traceparent: str = ""  # W3C's, of the span that this is part of; "": it is not traced
    ticket: Ticket | None = None  # its prompt is computed by one engine for another


class Forgo(Message, frozen=True):
    """Of a request with a ticket: no pages will come, or no more. Its prompt is computed here."""

    request: str


class Grant(Message, frozen=True):
    request: str
    granted: int  # new total of tokens that may be generated, over all choices


class Cancel(Message, frozen=True):
    request: str
    choices: list[int] = []  # the only ones that end; empty: all of them


class Prefetch(Message, frozen=True):
    """Bring an adapter closer before it is needed. Not answered."""

    adapter: AdapterRef


class Retire(Message, frozen=True):
    """An adapter that nobody will name again: give back what it takes once nobody uses it.

    Not answered; ``Load.resident`` shows when it is gone.
    """

    digest: str


class AskReference(Message, frozen=True):
    """What this model is by its definition, in float32. Answered by one Verdict."""

    request: str
    adapter: AdapterRef
    tokens: list[int]
    tops: list[list[int]]  # per position, whose log-probabilities as the next token are wanted


class Drain(Message, frozen=True):
    """Refuse new work, finish what runs, then say Goodbye."""


class AskMetrics(Message, frozen=True):
    """Answered by one Metrics."""


class AskCounts(Message, frozen=True):
    """Answered by one Counts for each named request, in order."""

    requests: list[str]


class AskRecorded(Message, frozen=True):
    """A page of the engine's own record, oldest first. Answered by one Recorded."""

    start: int  # how many to pass over
    most: int


class TokenLogprobs(Fact, frozen=True):
    logprob: float  # of the token itself, after penalties, before temperature
    top: list[tuple[int, float]] = []  # (token, logprob), most likely first


class Usage(Fact, frozen=True):
    """What a choice cost. Prompt and cached tokens are the request's: count them once."""

    prompt_tokens: int  # computed so far; fewer than the prompt's where it ended early
    cached_tokens: int = 0
    completion_tokens: int = 0  # of this choice, its stop token included


class Output(Fact, frozen=True):
    """Tokens of one choice of one request; terminal when ``finish`` is set."""

    request: str
    tokens: list[int]
    finish: Finish | None = None
    index: int = 0  # the choice
    logprobs: list[TokenLogprobs] | None = None  # one per token
    usage: Usage | None = None  # on terminals
    stop_token: int | None = None  # the token that stopped it; not part of tokens
    error: str = ""
    prompt_logprobs: list[TokenLogprobs] | None = None  # choice 0's first Output, from position 1
    wants: int | None = None  # asks for a Grant of this total, ahead of need
    embedding: bytes = b""  # on the terminal, where pooling was asked for: float32, little-endian


class Step(Message, frozen=True):
    """All tokens one forward pass produced for this gateway."""

    outputs: list[Output]


class Refused(Message, frozen=True):
    """The request was never started; sending it to another engine is safe."""

    request: str
    code: RefusalCode
    detail: str
    retry_ms: int | None = None


class Load(Message, frozen=True):
    """Pushed on change, at most every 100 ms."""

    running: int
    waiting: int
    free_pages: int  # what rests, prefixes and adapters alike, counts as free
    total_pages: int
    resident: list[str] = []  # digests of adapters on the device
    draining: bool = False  # it finishes what it has; nothing new is to be sent


class Metrics(Message, frozen=True):
    text: str  # Prometheus text format


class Counts(Message, frozen=True):
    """What the engine's own record says about a request. All zero when unknown."""

    request: str
    boot: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0  # over all choices
    finished: bool = False
    cached_tokens: int = 0  # of the prompt tokens, those found computed


class Recorded(Message, frozen=True):
    """Requests of this boot and of earlier ones that are still kept; empty past the end."""

    counts: list[Counts]


class Verdict(Message, frozen=True):
    request: str
    logprobs: list[list[float]] = []  # as asked
    pages: int | None = None  # that the adapter takes in this engine
    error: str = ""  # why there is no answer
    base: list[list[float]] = []  # the same without the adapter


class Goodbye(Message, frozen=True):
    reason: str
    version: int = 0  # that the engine speaks, where that is the reason


ToEngine = (
    AskReference
    | Hello
    | Submit
    | Forgo
    | Grant
    | Cancel
    | Prefetch
    | Retire
    | Drain
    | AskMetrics
    | AskCounts
    | AskRecorded
)
ToGateway = Verdict | Welcome | Step | Refused | Load | Metrics | Counts | Recorded | Goodbye
