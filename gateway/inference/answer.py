"""The answer to one request while it grows: its choices, its counts, and what went wrong.

Choices are numbered over all prompts: the ``n`` choices of the first prompt, then of the next.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from typing import TypeVar

import msgspec
from msgspec import structs

from engine.protocol import Finish, Output, TokenLogprobs
from gateway.errors import DeadlineExceeded, EngineFailed, GatewayError
from gateway.inference.choice import Choice, Delta
from gateway.inference.detokenize import Detokenizer
from gateway.inference.logprobs import TokenChance
from gateway.inference.order import Order
from gateway.inference.stop import StopStrings
from gateway.inference.tokenizer import Tokenizer

T = TypeVar("T")


class Counts(msgspec.Struct, frozen=True):
    """Tokens of a whole request. A prompt counts once, however many choices it has."""

    prompt: int
    cached: int
    completion: int

    @property
    def total(self) -> int:
        return self.prompt + self.completion


@dataclass(slots=True)
class Call:
    """A function to be called."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Written:
    """All of one choice, for an answer that is sent whole."""

    texts: list[str] = field(default_factory=list)
    chances: list[TokenChance] = field(default_factory=list)
    finish: str | None = None
    why: dict[str, str] | None = None
    calls: list[Call] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    embedding: bytes = b""
    prompt: Sequence[TokenLogprobs] | None = None  # of the prompt's tokens but the first

    def add(self, delta: Delta) -> None:
        self.texts.append(delta.text)
        if delta.plain:
            return
        self.tokens += delta.tokens
        for gained in delta.calls:
            if gained.id is not None:
                self.calls.append(Call(gained.id, gained.name or ""))
            self.calls[gained.index].arguments += gained.arguments
        self.chances += delta.chances
        self.finish = delta.finish or self.finish
        self.why = delta.why or self.why
        self.embedding = delta.embedding or self.embedding
        self.prompt = delta.prompt or self.prompt

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Answer:
    """Belongs to one request."""

    def __init__(self, order: Order, tokenizer: Tokenizer) -> None:
        self._order = order
        self._score_only = order.score_only
        self._tokenizer = tokenizer
        options = order.options
        stops = StopStrings(options.stop) if options.stop else None
        self.choices = [
            Choice(
                position * options.candidates + index,
                tokenizer,
                stops=stops,
                shows_stop=options.shows_stop,
                shows_special=options.shows_special,
                shows_tokens=options.shows_tokens,
                min_tokens=options.sampling.min_tokens,
                offset=len(order.echoes[position]) if order.echoes else 0,
                reader=order.calling.reader() if order.calling else None,
                spelled=order.calling.style.marks if order.calling else (),
            )
            for position in range(len(order.prompts))
            for index in range(options.candidates)
        ]
        self._open = len(self.choices)  # without a finish reason
        self._only = self.choices[0] if order.plain else None
        keeps = order.principal.text_days > 0
        self._said: list[list[str]] | None = [[] for _ in self.choices] if keeps else None
        self._unechoed = set(range(len(order.prompts))) if order.echoes else set()

    @property
    def plain(self) -> bool:
        """Text of one choice, and nothing else: see ``Order.plain``."""
        return self._only is not None

    @property
    def complete(self) -> bool:
        """Every choice has a finish reason: nothing more is to be shown."""
        return self._open == 0

    def gain(self, outputs: Sequence[Output]) -> str:
        """What the only choice of a plain answer gained, while it goes on."""
        assert self._only is not None, "it is plain"
        text = self._only.gain(_tokens_of(outputs))
        if self._said is not None:
            self._said[0].append(text)
        return text

    def feed(self, position: int, outputs: Sequence[Output]) -> list[tuple[int, Delta]]:
        """What the choices of one prompt gained by some outputs. Raises GatewayError where one
        failed."""
        gained: list[tuple[int, Delta]] = []
        if self._only is not None:
            ended = outputs[-1].finish is not None
            if plain := outputs[:-1] if ended else outputs:
                gained.append((0, Delta(self._only.gain(_tokens_of(plain)), plain=True)))
            if not ended:
                self._note(gained)
                return gained
            outputs = outputs[-1:]
        if position in self._unechoed:
            known = next((o.prompt_logprobs for o in outputs if o.prompt_logprobs), ())
            gained += self._echo(position, known)
        first = position * self._order.options.candidates
        if self._order.options.prompt_logprobs is not None:
            gained += self._told(position, outputs)
        for output in outputs:
            if (
                output.finish is not None
                and self.choices[first + output.index].finish is None
                and (failure := _failure(output))
            ):
                self.count(position, (output,))
                raise failure
            delta = self._shortened(self._fed(first + output.index, output))
            delta.embedding = output.embedding
            gained.append((first + output.index, delta))
        self._note(gained)
        return gained

    @property
    def said(self) -> list[str]:
        """What each choice said, for a project that wants it kept."""
        return ["".join(pieces) for pieces in self._said or ()]

    def _note(self, gained: Iterable[tuple[int, Delta]]) -> None:
        if self._said is None:
            return
        for index, delta in gained:
            for call in delta.calls:
                self._said[index] += [f"\n{call.name}: " if call.name else "", call.arguments]
            self._said[index].append(delta.text)

    def _told(self, position: int, outputs: Sequence[Output]) -> list[tuple[int, Delta]]:
        """What is known of the prompt, to each of its choices."""
        each = self._order.options.candidates
        known = next((o.prompt_logprobs for o in outputs if o.prompt_logprobs), None)
        if known is None:
            return []
        return [(position * each + index, Delta(prompt=known)) for index in range(each)]

    def stopped(self, position: int) -> list[int]:
        """Choices of a prompt that ended here, by a stop string, while the engine goes on."""
        each = self._order.options.candidates
        mine = self.choices[position * each : (position + 1) * each]
        return [
            index
            for index, choice in enumerate(mine)
            if choice.finish is not None and choice.usage is None
        ]

    def cut(self, why: dict[str, str]) -> list[tuple[int, Delta]]:
        """End what has not ended."""
        ended = [
            (index, choice.cut(why))
            for index, choice in enumerate(self.choices)
            if choice.finish is None
        ]
        self._open = 0
        self._note(ended)
        return ended

    def count(self, position: int, outputs: Iterable[Output]) -> None:
        """Take the counts of outputs that nobody will be shown."""
        for output in outputs:
            self._fed(position * self._order.options.candidates + output.index, output)

    def _fed(self, index: int, output: Output) -> Delta:
        choice = self.choices[index]
        was_open = choice.finish is None
        delta = choice.feed(output)
        self._open -= was_open and choice.finish is not None
        return delta

    def best(self, written: Sequence[Written]) -> list[Written]:
        """The ``n`` choices of each prompt whose tokens were likeliest, the likeliest first."""
        if not self._order.chooses:
            return list(written)
        ranked = [
            sorted(group, key=lambda pair: -pair[0].mean_logprob)
            for group in self._by_prompt(list(zip(self.choices, written, strict=True)))
        ]
        return [one for group in ranked for _, one in group[: self._order.options.n]]

    def counts(self) -> Counts:
        """The engine's numbers where it gave them, else what arrived from it."""
        if (only := self._only) is not None and (told := only.usage) is not None:
            return Counts(told.prompt_tokens, told.cached_tokens, only.completion_tokens)
        groups = self._by_prompt(self.choices)
        prompt = cached = 0
        for choices, tokens in zip(groups, self._order.prompts, strict=True):
            usages = [choice.usage for choice in choices if choice.usage]
            if usages:
                prompt += max(usage.prompt_tokens for usage in usages)
                cached += max(usage.cached_tokens for usage in usages)
            elif any(choice.completion_tokens for choice in choices):
                prompt += len(tokens)
        generated = sum(choice.completion_tokens for choice in self.choices)
        return Counts(prompt, cached, 0 if self._score_only else generated)

    @property
    def finish(self) -> str | None:
        return self.choices[0].finish

    def _by_prompt(self, items: Sequence[T]) -> list[Sequence[T]]:
        each = self._order.options.candidates
        return [items[i : i + each] for i in range(0, len(items), each)]

    def _shortened(self, delta: Delta) -> Delta:
        """``max_tokens`` of 0 asks for the echo, or a vector, alone; the engine made one token all
        the same."""
        return Delta(finish=delta.finish) if self._score_only else delta

    def _echo(self, position: int, known: Sequence[TokenLogprobs]) -> list[tuple[int, Delta]]:
        self._unechoed.discard(position)
        chances: list[TokenChance] = []
        if self._order.options.logprobs is not None:
            detokenizer, offset = Detokenizer(self._tokenizer), 0
            prompt = self._order.prompts[position]
            known = [structs.replace(k, top=k.top[: self._order.options.logprobs]) for k in known]
            aligned = islice(chain((None,), known, repeat(None)), len(prompt))  # first has none
            for token, chance in zip(prompt, aligned, strict=True):
                chances.append(TokenChance(token, offset, chance))
                offset += len(detokenizer.feed((token,)))
        n, text = self._order.options.candidates, self._order.echoes[position]
        return [(position * n + index, Delta(text, chances)) for index in range(n)]


def _tokens_of(outputs: Sequence[Output]) -> list[int]:
    if len(outputs) == 1:
        return outputs[0].tokens
    return [token for output in outputs for token in output.tokens]


def _failure(output: Output) -> GatewayError | None:
    match output.finish:
        case Finish.ERROR:
            return EngineFailed(f"The engine failed on this request: {output.error[:300]}")
        case Finish.DEADLINE:
            return DeadlineExceeded("The answer was not complete in time.")
        case Finish.CANCELLED:
            return EngineFailed("The engine gave up this request.")
    return None
