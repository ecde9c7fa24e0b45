"""/tokenize, /detokenize and /tokenizer_info, in vLLM's shapes: what a prompt is to the model.

Nothing is generated and no token is billed; as a request it counts.
"""

from collections.abc import Mapping
from typing import Any

from gateway.errors import InvalidRequest
from gateway.fleet.fleet import Fleet
from gateway.identity.principal import Principal
from gateway.inference.body import Object
from gateway.inference.fields import Fields, checked_tokens, missing, wrong_type
from gateway.inference.intake import Names
from gateway.inference.messages import read_messages
from gateway.inference.options import read_model
from gateway.inference.prompt import Prompts
from gateway.inference.rendering import read_rendering
from gateway.inference.sight import Sight
from gateway.inference.support import refuse_unsupported


class Tokenization:
    """Its methods raise InvalidRequest and ModelNotFound."""

    def __init__(
        self,
        names: Names,
        prompts: Prompts,
        fleet: Fleet,
        sight: Sight | None = None,
        *,
        others: "Mapping[str, Tokenization] | None" = None,
    ) -> None:
        """``others``: of the bases beside the first, by their names."""
        self._others = others or {}
        self._sight = sight
        self._names = names
        self._prompts = prompts
        self._fleet = fleet

    async def tokens(self, body: Object, principal: Principal) -> dict[str, Any]:
        """Of a ``prompt``, or of a chat's ``messages`` as its template renders them."""
        fields = Fields(body)
        base = self._base(fields, principal)
        if (other := self._others.get(base or "")) is not None:
            return await other.tokens(body, principal)
        crew = self._fleet.first if base is None else self._fleet.of(base)
        spelled = fields.flag("return_token_strs")
        text = fields.text("prompt")
        if text is None and body.get("messages") is None:
            raise missing("prompt")
        if text is not None and body.get("messages") is not None:
            raise InvalidRequest("Give prompt or messages, not both.", param="prompt")
        if text is None:
            album = self._sight.album() if self._sight else None
            messages, how = read_messages(fields, album), read_rendering(fields)
            refuse_unsupported(fields)
            tokens = await self._prompts.of_chat(messages, how)
            if self._sight is not None and album is not None:
                tokens, _ = self._sight.spread(tokens, album.attachments)
        else:
            add_special = fields.flag("add_special_tokens", default=True)
            refuse_unsupported(fields)
            tokens = (
                await self._prompts.of_text(text, add_special=add_special) if text else list[int]()
            )
        name = self._prompts.tokenizer.text_of
        return {
            "count": len(tokens),
            "max_model_len": crew.context,
            "tokens": tokens,
            "token_strs": [name(token) for token in tokens] if spelled else None,
        }

    async def text(self, body: Object, principal: Principal) -> dict[str, Any]:
        fields = Fields(body)
        if (other := self._others.get(self._base(fields, principal) or "")) is not None:
            return await other.text(body, principal)
        values = fields.take("tokens")
        if values is None:
            raise missing("tokens")
        if not isinstance(values, list):
            raise wrong_type(values, "an array", "tokens")
        tokens = self._prompts.of_tokens(
            checked_tokens(values, "tokens") if values else (), "tokens"
        )
        return {"prompt": await self._prompts.text_of(tokens, special=True)}

    def info(self) -> dict[str, Any]:
        """What a client needs to render chats itself."""
        named = self._prompts.tokenizer.named_tokens
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **{name: named.get(name) for name in ("bos_token", "eos_token", "pad_token")},
            "chat_template": self._prompts.template,
            "model_max_length": self._fleet.first.context,
        }

    def _base(self, fields: Fields, principal: Principal) -> str | None:
        """All names of one base have one tokenizer; a name that is given must exist."""
        if "model" not in fields.unread:
            return None
        return self._names.resolve(principal, read_model(fields)).base_model
