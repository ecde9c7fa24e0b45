"""What is to be generated for one request: everything known once it is admitted."""

from collections.abc import Sequence

import msgspec

from engine.protocol import Image, Submit
from gateway.catalog.target import Target
from gateway.identity.principal import Principal
from gateway.inference.calling import Calling
from gateway.inference.embedding import Embedding
from gateway.inference.meter import FIRST_BLOCK, Purse
from gateway.inference.options import Options
from gateway.inference.public import PublicBeginnings
from gateway.inference.responding import Responding
from gateway.inference.tier import Tier
from gateway.limits.lease import Demand, Price
from gateway.limits.rules import Use

UNSAID_TOKENS = 1024  # reserved for an answer whose client gave no max_tokens


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A struct: a dataclass of so many fields takes ten times as long to make."""

    id: str  # req_…
    principal: Principal
    target: Target
    options: Options
    prompts: Sequence[Sequence[int]]
    room: int  # tokens that fit after the longest prompt
    deadline_ms: int
    token_limit: int | None = None  # the smallest limit of tokens that holds for it
    tier: Tier | None = None  # as it is served; None: the client named none
    priority: int = 0  # larger goes first
    public: PublicBeginnings = msgspec.field(default_factory=PublicBeginnings)
    calling: Calling | None = None  # None: what an answer says is text
    grammar: str | None = None  # what every choice must match, as engines read it
    attempt: str = ""  # which one, at a line of a batch; else nobody asks twice under one id
    echoes: Sequence[str] = ()  # text of each prompt, where it is to be repeated
    embedding: Embedding | None = None  # the prompts are wanted as vectors, and nothing else
    responding: Responding | None = None  # what a response repeats, and what is kept of it
    images: Sequence[Image] = ()  # in the one prompt

    traceparent: str = ""  # of the span that engines' work is part of

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def choices(self) -> int:
        """That are generated; where the best of several are the answer, more than are shown."""
        return self.options.candidates * len(self.prompts)

    @property
    def chooses(self) -> bool:
        return self.options.candidates > self.options.n

    @property
    def plain(self) -> bool:
        """One choice of one prompt, of which its text is wanted as it comes, and nothing more."""
        options = self.options
        return (
            self.choices == 1
            and options.max_tokens != 0
            and options.logprobs is None
            and options.prompt_logprobs is None
            and not (options.stop or options.shows_tokens or self.echoes)
            and self.calling is None
            and self.embedding is None
        )

    @property
    def score_only(self) -> bool:
        return self.options.max_tokens == 0

    @property
    def max_tokens(self) -> int:
        """Of each choice. More than the context leaves is clamped; engines make at least one."""
        wanted = self.options.max_tokens
        return self.room if wanted is None else min(max(wanted, 1), self.room)

    @property
    def reserved_tokens(self) -> int:
        """What is taken from the tokens per minute until the true number is known.

        A client that names no maximum could mean all of the context; reserving that would shut
        a small limit at once. The difference is settled at the end either way.
        """
        each = self.max_tokens
        if self.options.max_tokens is None:
            each = min(each, UNSAID_TOKENS, self._affordable())
        return self.prompt_tokens + each * self.choices

    def _affordable(self) -> int:
        limit = self.token_limit
        if limit is None:
            return UNSAID_TOKENS
        return max((limit - self.prompt_tokens) // self.choices, 1)

    @property
    def use(self) -> Use:
        options = self.options
        return Use(self.target.name or self.target.public_name, options.customer, options.tags)

    def demand(self, price: Price | None) -> Demand:
        """What it may cost."""
        choices = self.choices
        most = self.max_tokens * choices
        return Demand(
            price=price,
            prompt=self.prompt_tokens,
            block=min(most, FIRST_BLOCK * choices),
            most=most,
            slack=choices,  # the token that ends a choice may not be counted in time
        )

    def submits(self, purse: Purse | None = None) -> list[Submit]:
        """One per prompt; with several, their ids are the request's and a number."""
        several = len(self.prompts) > 1
        name = f"{self.id}~{self.attempt}" if self.attempt else self.id
        return [
            self._submit(
                f"{name}-{position}" if several else name,
                prompt,
                purse.granted(position) if purse else None,
            )
            for position, prompt in enumerate(self.prompts)
        ]

    @property
    def _prompt_logprobs(self) -> int | None:
        """For an echo, and for whoever asks by that name: as many as either wants."""
        options = self.options
        wanted = (options.logprobs if self.echoes else None, options.prompt_logprobs)
        return max((count for count in wanted if count is not None), default=None)

    def _public_tokens(self, prompt: Sequence[int]) -> int:
        """Until it is invoked, what an aLoRA goes on from is the base's work."""
        adapter = self.target.adapter
        plain = adapter is not None and not adapter.invocation
        return 0 if plain else self.public.length(prompt)

    def _submit(self, request: str, prompt: Sequence[int], granted: int | None) -> Submit:
        options = self.options
        return Submit(
            request=request,
            tenant=self.principal.tenant,
            tokens=list(prompt),
            max_tokens=self.max_tokens,
            sampling=options.sampling,
            adapter=self.target.adapter,
            n=options.candidates,
            stop_tokens=list(options.stop_tokens),
            ignore_eos=options.ignore_eos,
            logprobs=0 if options.logprobs is None and self.chooses else options.logprobs,
            prompt_logprobs=self._prompt_logprobs,
            granted=granted,
            deadline_ms=self.deadline_ms,
            grammar=self.grammar,
            priority=self.priority,
            weight=self.principal.weight,
            public_tokens=self._public_tokens(prompt),
            pooling=self.embedding.pooling if self.embedding else None,
            images=list(self.images),
            traceparent=self.traceparent,
        )
