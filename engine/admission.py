"""Whether a Submit may start at all, decided before it takes any room.

Everything refused here was never started, so the gateway may send it elsewhere. Fields are
checked once, at this edge; nothing further in checks them again.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from engine.handoff.frames import LEAST_SECRET
from engine.protocol import RefusalCode, Sampling, Submit
from engine.seeing import CHANNELS

DIGEST_BYTES = 32
MAX_CHOICES = 128
MAX_LOGPROBS = 20


class Refusal(Exception):
    """Why a request does not start."""

    def __init__(self, code: RefusalCode, detail: str, retry_ms: int | None = None) -> None:
        super().__init__(detail)
        self.code, self.detail, self.retry_ms = code, detail, retry_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What this engine can take."""

    vocab_size: int
    max_model_len: int  # tokens
    num_pages: int
    page_tokens: int
    adapters: bool  # whether there is a store to load them from
    grammars: bool = False  # whether answers can be held to any
    image_tokens: int = 0  # that an image takes; 0: prompts are text alone
    image_side: int = 0  # pixels
    gives: bool = False  # whether it computes prompts for other engines
    takes: bool = False  # whether others' pages can come

    def admit(self, submit: Submit) -> int:
        """Tokens each choice may generate: max_tokens or what the context leaves.

        Raises Refusal.
        """
        problems = (
            _problems(submit, self.vocab_size),
            self._unseen(submit),
            self._unhanded(submit),
        )
        for problem in chain.from_iterable(problems):
            raise Refusal(RefusalCode.INVALID, problem)
        prompt = len(submit.tokens)
        # A vector is read where the prompt ends: what is drawn there is never computed.
        room = self.max_model_len - prompt + (submit.pooling is not None)
        if room < 1:
            more = "; with one more to generate" if submit.pooling is None else ";"
            raise Refusal(
                RefusalCode.PROMPT_TOO_LONG,
                f"the prompt has {prompt} tokens{more} it exceeds the context "
                f"of {self.max_model_len}",
            )
        if submit.adapter and not self.adapters:
            raise Refusal(RefusalCode.ADAPTER_MISSING, "this engine has no adapter store")
        if submit.grammar is not None and not self.grammars:
            raise Refusal(RefusalCode.INVALID, "this engine can hold an answer to no grammar")
        limit = min(submit.max_tokens, room)
        pages = -(-(prompt + limit - 1) // self.page_tokens)
        if pages > self.num_pages:
            raise Refusal(
                RefusalCode.NEVER_FITS,
                f"{prompt} prompt tokens and {limit} more need {pages} pages of "
                f"{self.page_tokens} tokens; this engine has {self.num_pages}",
            )
        return limit

    def _unseen(self, submit: Submit) -> Iterator[str]:
        """What is wrong with its images."""
        free, size = 0, self.image_side**2 * CHANNELS
        for i, image in enumerate(submit.images):
            if not self.image_tokens:
                yield f"images[{i}]: this model reads text only"
                return
            end = image.start + image.tokens
            if image.tokens != self.image_tokens or len(image.pixels) != size:
                yield (
                    f"images[{i}] has {image.tokens} tokens and {len(image.pixels)} bytes of "
                    f"pixels, not {self.image_tokens} and {size}"
                )
            elif image.start < free or end > len(submit.tokens):
                yield f"images[{i}] at {image.start} leaves the prompt or overlaps the one before"
            elif len(image.digest) != DIGEST_BYTES:
                yield f"images[{i}].digest has {len(image.digest)} bytes, not {DIGEST_BYTES}"
            free = end

    def _unhanded(self, submit: Submit) -> Iterator[str]:
        """What is wrong with its ticket."""
        ticket = submit.ticket
        if ticket is None:
            return
        if not (self.gives if ticket.to else self.takes):
            yield f"ticket: this engine {'gives' if ticket.to else 'takes'} no pages"
        if len(ticket.secret) < LEAST_SECRET:
            yield f"ticket.secret has {len(ticket.secret)} bytes, it needs {LEAST_SECRET}"
        if submit.sampling.seed is None:
            yield "ticket: sampling.seed has to be given, to both engines the same"
        if submit.pooling is not None or submit.prompt_logprobs is not None:
            yield "ticket: every token of a prompt that is pooled or reported is computed here"
        if ticket.to and (submit.n, submit.max_tokens) != (1, 1):
            yield f"ticket.to needs n=1 and max_tokens=1, not {submit.n} and {submit.max_tokens}"


def _problems(submit: Submit, vocab_size: int) -> Iterator[str]:
    tokens = submit.tokens
    if not tokens:
        yield "tokens is empty"
    elif min(tokens) < 0 or max(tokens) >= vocab_size:
        yield f"tokens has an id outside 0..{vocab_size - 1}"
    if submit.max_tokens < 1:
        yield f"max_tokens={submit.max_tokens} must be at least 1"
    if not 1 <= submit.n <= MAX_CHOICES:
        yield f"n={submit.n} must be in 1..{MAX_CHOICES}"
    for name, value in (
        ("logprobs", submit.logprobs),
        ("prompt_logprobs", submit.prompt_logprobs),
    ):
        if value is not None and not 0 <= value <= MAX_LOGPROBS:
            yield f"{name}={value} must be in 0..{MAX_LOGPROBS}"
    if submit.pooling is not None and (submit.n, submit.max_tokens) != (1, 1):
        yield f"pooling needs n=1 and max_tokens=1, not {submit.n} and {submit.max_tokens}"
    if submit.public_tokens < 0:
        yield f"public_tokens={submit.public_tokens} must not be negative"
    if not 0 < submit.weight < math.inf:
        yield f"weight={submit.weight} must be above 0 and finite"
    if submit.granted is not None and submit.granted < 0:
        yield f"granted={submit.granted} must not be negative"
    yield from _sampling_problems(submit.sampling, vocab_size)


def _sampling_problems(sampling: Sampling, vocab_size: int) -> Iterator[str]:
    finite = (sampling.temperature, sampling.presence_penalty, sampling.frequency_penalty)
    if not all(map(math.isfinite, finite)) or sampling.temperature < 0:
        yield "sampling.temperature and penalties must be finite, temperature not negative"
    if not 0 < sampling.top_p <= 1:
        yield f"sampling.top_p={sampling.top_p} must be above 0 and at most 1"
    if not 0 <= sampling.min_p <= 1:
        yield f"sampling.min_p={sampling.min_p} must be in 0..1"
    if sampling.top_k < 0:
        yield f"sampling.top_k={sampling.top_k} must not be negative"
    if not 0 < sampling.repetition_penalty < math.inf:
        yield f"sampling.repetition_penalty={sampling.repetition_penalty} must be above 0"
    if sampling.min_tokens < 0:
        yield f"sampling.min_tokens={sampling.min_tokens} must not be negative"
    for name, tokens in (("allowed", sampling.allowed), *_runs(sampling)):
        if any(not 0 <= token < vocab_size for token in tokens):
            yield f"sampling.{name} has an id outside 0..{vocab_size - 1}"
    for token, bias in sampling.logit_bias:
        if not 0 <= token < vocab_size or math.isnan(bias):
            yield f"sampling.logit_bias: token {token} of {vocab_size} cannot have bias {bias}"


def _runs(sampling: Sampling) -> Iterator[tuple[str, list[int]]]:
    return ((f"bad_words[{i}]", run) for i, run in enumerate(sampling.bad_words) if run)
