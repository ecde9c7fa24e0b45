"""A parsed body to an Order: fields checked, name resolved, words turned into tokens."""

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from msgspec import structs

from engine.protocol import Image
from gateway.catalog.target import Subject, Target
from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.fleet.crew import Crew
from gateway.fleet.fleet import Fleet
from gateway.identity.principal import Principal
from gateway.inference.body import Object
from gateway.inference.calling import Calling, CallSupport
from gateway.inference.embedding import MOST_INPUT_TOKENS, read_embeddings
from gateway.inference.fields import out_of_range
from gateway.inference.grammars import Grammar, GrammarCheck
from gateway.inference.options import Options
from gateway.inference.order import Order
from gateway.inference.prompt import Prompts, require_room
from gateway.inference.public import PublicBeginnings
from gateway.inference.recommended import Recommended
from gateway.inference.sampling import UNSAID, spelled
from gateway.inference.sight import Sight
from gateway.inference.structure import Structure
from gateway.inference.support import require_known
from gateway.inference.tier import Tier
from gateway.inference.wire import read_chat, read_completion

MOST_SUBJECT = 2000  # characters


class Names(Protocol):
    def resolve(self, principal: Principal, name: str, subject: Subject = ...) -> Target:
        """``subject``: who asks, for a canary's share. Raises ModelNotFound."""
        ...


class Intake:
    """``chat``, ``completion`` and ``embedding`` raise ModelNotFound, InvalidRequest, NoEngine."""

    def __init__(
        self,
        names: Names,
        prompts: Prompts,
        fleet: Fleet,
        *,
        grammars: GrammarCheck,
        calls: CallSupport,
        deadline_ms: int,
        priority_tier: bool = False,
        public: PublicBeginnings | None = None,
        sight: Sight | None = None,
        unsaid: Recommended = UNSAID,
    ) -> None:
        """``priority_tier``: whether a client may ask to go before others; ``sight``: None where
        the model reads text alone; ``unsaid``: how tokens are chosen where a client does not say.
        """
        self._unsaid = unsaid
        self._sight = sight
        self._public = public or PublicBeginnings()
        self._names = names
        self._prompts = prompts
        self._fleet = fleet
        self._grammars, self._calls = grammars, calls
        self._deadline_ms = deadline_ms
        self._priority_tier = priority_tier

    async def chat(self, body: Object, principal: Principal, request_id: str) -> Order:
        album = self._sight.album() if self._sight else None
        asked = read_chat(body, album, self._unsaid)
        target = self._names.resolve(principal, asked.options.model, partial(subject_of, body))
        crew = self._fleet.of(target.base_model)
        calling = self._calls.calling(asked.tools)
        structure = self._calls.structure(calling, asked.options.structure)
        messages, how = self._calls.prompt(asked.messages, asked.rendering, calling)
        options = asked.options
        if calling is not None and (unheld := calling.unheld):
            options = structs.replace(options, ignored=(*options.ignored, *unheld))
        tokens = await self._prompts.of_chat(messages, how)
        images: list[Image] = []
        if self._sight is not None and album is not None and album.attachments:
            self._require_seen(crew, self._sight, options)
            context = crew.context
            tokens, images = await self._sight.images(tokens, album, context=context)
        tokens = _kept(tokens, options, crew)
        order = self._order(
            request_id,
            principal,
            target,
            options=options,
            prompts=[tokens],
            grammar=await self._followed(structure, principal),
            calling=calling,
            param="messages",
        )
        return structs.replace(order, images=images) if images else order

    def _require_seen(self, crew: Crew, sight: Sight, options: Options) -> None:
        if crew.image_tokens != sight.seeing.tokens:
            raise UnsupportedParameter("The engines here read text only.", param="messages")
        if options.last_tokens is not None:
            raise InvalidRequest(
                "truncate_prompt_tokens could cut an image; leave it out where messages show any.",
                param="truncate_prompt_tokens",
            )

    async def completion(self, body: Object, principal: Principal, request_id: str) -> Order:
        asked = read_completion(body, self._unsaid)
        target = self._names.resolve(principal, asked.options.model, partial(subject_of, body))
        several = len(asked.prompts) > 1
        prompts: list[list[int]] = []
        echoes: list[str] = []
        for i, prompt in enumerate(asked.prompts):
            path = f"prompt[{i}]" if several else "prompt"
            tokens = (
                await self._prompts.of_text(prompt, path, add_special=asked.add_special)
                if isinstance(prompt, str)
                else self._prompts.of_tokens(prompt, path)
            )
            kept = _kept(tokens, asked.options, self._fleet.of(target.base_model))
            prompts.append(kept)
            if asked.echo:
                as_written = isinstance(prompt, str) and len(kept) == len(tokens)
                echoes.append(str(prompt) if as_written else await self._prompts.text_of(kept))
        return self._order(
            request_id,
            principal,
            target,
            options=asked.options,
            prompts=prompts,
            echoes=echoes,
            grammar=await self._followed(asked.options.structure, principal),
            param="prompt",
        )

    async def embedding(self, body: Object, principal: Principal, request_id: str) -> Order:
        asked = read_embeddings(body)
        target = self._names.resolve(principal, asked.options.model, partial(subject_of, body))
        crew = self._fleet.of(target.base_model)
        _require_dimensions(asked.embedding.dimensions, crew)
        several = len(asked.inputs) > 1
        prompts: list[list[int]] = []
        for i, text in enumerate(asked.inputs):
            path = f"input[{i}]" if several else "input"
            tokens = (
                await self._prompts.of_text(text, path, add_special=asked.add_special)
                if isinstance(text, str)
                else self._prompts.of_tokens(text, path)
            )
            kept = _kept(tokens, asked.options, crew)
            require_room(len(kept), crew.context, param=path, answered=False)
            prompts.append(kept)
        if (total := sum(map(len, prompts))) > MOST_INPUT_TOKENS:
            raise out_of_range(f"{total} tokens long", f"at most {MOST_INPUT_TOKENS}", "input")
        order = self._order(
            request_id,
            principal,
            target,
            options=asked.options,
            prompts=prompts,
            grammar=None,
            param="input",
            answered=False,
        )
        return structs.replace(order, embedding=asked.embedding)

    def _order(
        self,
        request_id: str,
        principal: Principal,
        target: Target,
        *,
        options: Options,
        prompts: Sequence[Sequence[int]],
        echoes: Sequence[str] = (),
        grammar: Grammar | None,
        calling: Calling | None = None,
        param: str,
        answered: bool = True,
    ) -> Order:
        self._require_known(options)
        if principal.strict:
            require_known(options.ignored)
        options = self._spelled(options, grammar)
        if grammar is not None and grammar.ignored:
            options = structs.replace(options, ignored=(*options.ignored, *grammar.ignored))
        longest = max(map(len, prompts))
        tier = self._served(options.tier)
        return Order(
            id=request_id,
            principal=principal,
            target=target,
            options=options,
            prompts=prompts,
            room=require_room(
                longest,
                self._fleet.of(target.base_model).context,
                param=param,
                answered=answered,
            ),
            deadline_ms=self._deadline_ms,
            tier=tier,
            priority=tier.priority if tier else 0,
            public=self._public,
            grammar=None if grammar is None else grammar.text,
            calling=calling,
            echoes=echoes,
        )

    def _spelled(self, options: Options, grammar: Grammar | None) -> Options:
        """Bad words as tokens. What a grammar asks for must not be ruled out."""
        for name, given in (
            ("bad_words", options.bad_words),
            ("allowed_token_ids", options.sampling.allowed),
        ):
            if given and grammar is not None:
                raise InvalidRequest(
                    f"{name} cannot be used where the answer is held to a form.", param=name
                )
        if not options.bad_words:
            return options
        runs = spelled(options.bad_words, self._prompts.tokenizer)
        return structs.replace(options, sampling=structs.replace(options.sampling, bad_words=runs))

    async def _followed(self, structure: Structure | None, principal: Principal) -> Grammar | None:
        if structure is None:
            return None
        return await self._grammars.require(structure, principal.tenant)

    def _served(self, asked: Tier | None) -> Tier | None:
        return Tier.DEFAULT if asked is Tier.PRIORITY and not self._priority_tier else asked

    def _require_known(self, options: Options) -> None:
        size, sampling = self._prompts.tokenizer.vocab_size, options.sampling
        if not (sampling.logit_bias or options.stop_tokens or sampling.allowed):
            return
        named = {
            "logit_bias": (token for token, _ in sampling.logit_bias),
            "stop_token_ids": iter(options.stop_tokens),
            "allowed_token_ids": iter(sampling.allowed),
        }
        for field, tokens in named.items():
            for token in tokens:
                if token >= size:
                    raise InvalidRequest(
                        f"{field} names token {token}; the vocabulary has {size} tokens.",
                        param=field,
                    )


def _kept(tokens: list[int], options: Options, crew: Crew) -> list[int]:
    """The end of a prompt, where the client would rather lose its beginning."""
    count = options.last_tokens
    if count is None:
        return tokens
    if count < 0:
        count = max(crew.context - max(options.max_tokens or 1, 1), 1)
    return tokens[-count:]


def _require_dimensions(wanted: int | None, crew: Crew) -> None:
    most = crew.hidden_size
    if wanted is not None and wanted > most:
        raise out_of_range(wanted, f"at most {most}, as this model has", "dimensions")


def subject_of(body: Object) -> str:
    """Who asks, for a canary: the end user, else the conversation by how it began."""
    for field in ("user", "safety_identifier", "prompt_cache_key"):
        if isinstance(named := body.get(field), str) and named:
            return named
    messages = body.get("messages")
    if isinstance(messages, list):
        return repr(_begun(messages[:2]))[:MOST_SUBJECT]
    return repr(_begun(body.get("prompt", body.get("input"))))[:MOST_SUBJECT]


def _begun(value: object, depth: int = 5) -> object:
    """No more of a value than can be told: an image is megabytes of text."""
    if isinstance(value, str):
        return value[:MOST_SUBJECT]
    if isinstance(value, list) and depth:
        return [_begun(item, depth - 1) for item in value[:MOST_SUBJECT]]
    if isinstance(value, dict) and depth:
        return {key: _begun(item, depth - 1) for key, item in value.items()}
    return value
