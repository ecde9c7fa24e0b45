"""The hot routes in OpenAPI's words: they are raw ASGI, so nothing derives this for us."""

from typing import Any

from engine.protocol import Pooling
from gateway.inference.embedding import ENCODINGS
from gateway.inference.options import MOST_CHOICES, MOST_PROMPT_ALTERNATIVES, MOST_STOPS
from gateway.inference.recommended import REPETITION
from gateway.inference.sampling import MOST_BAD_WORDS
from gateway.inference.support import IGNORED, REFUSED
from gateway.inference.tier import TIERS
from gateway.inference.tools import MOST_TOOLS
from gateway.inference.wire import MOST_ALTERNATIVES

Schema = dict[str, Any]


def number(low: float, high: float, default: float) -> Schema:
    return {"type": "number", "minimum": low, "maximum": high, "default": default}


def recommended(shape: Schema) -> Schema:
    """The default is that of a checkpoint that says nothing."""
    return shape | {"description": "Where nothing is said, as the base's makers recommend."}


def integer(low: int | None = None, high: int | None = None) -> Schema:
    limits = {"minimum": low, "maximum": high}
    return {"type": "integer", **{k: v for k, v in limits.items() if v is not None}}


def strings(most: int) -> Schema:
    listed = {"type": "array", "items": {"type": "string"}, "maxItems": most}
    return {"oneOf": [{"type": "string"}, listed]}


FLAG: Schema = {"type": "boolean", "default": False}
FORMATS = ("text", "json_object", "json_schema", "structural_tag")
STRUCTURES: dict[str, Schema] = {  # what an answer must match
    "json": {"type": "object", "description": "A JSON schema."},
    "regex": {"type": "string"},
    "choice": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    "grammar": {"type": "string", "description": "In Lark's notation, or GBNF."},
    "json_object": FLAG,
}
SHARED: dict[str, Schema] = {
    "model": {"type": "string", "description": "The base, or an adapter of your project."},
    "temperature": recommended(number(0, 2, 1)),
    "top_p": recommended(number(0, 1, 1)),
    "top_k": recommended(integer(-1)),
    "min_p": recommended(number(0, 1, 0)),
    "presence_penalty": number(-2, 2, 0),
    "frequency_penalty": number(-2, 2, 0),
    "repetition_penalty": recommended(number(*REPETITION, 1)),
    "seed": {"type": "integer", "format": "int64"},
    "max_tokens": integer(0),
    "min_tokens": integer(0),
    "allowed_token_ids": {"type": "array", "items": integer(0), "minItems": 1},
    "bad_words": {"type": "array", "items": {"type": "string"}, "maxItems": MOST_BAD_WORDS},
    "prompt_logprobs": integer(0, MOST_PROMPT_ALTERNATIVES),
    "n": integer(1, MOST_CHOICES),
    "stop": strings(MOST_STOPS),
    "stop_token_ids": {"type": "array", "items": integer(0)},
    "include_stop_str_in_output": FLAG,
    "ignore_eos": FLAG,
    "return_token_ids": FLAG,
    "return_tokens_as_token_ids": FLAG,
    "skip_special_tokens": {"type": "boolean", "default": True},
    "truncate_prompt_tokens": integer(-1),
    "service_tier": {"type": "string", "enum": list(TIERS)},
    "logit_bias": {"type": "object", "additionalProperties": number(-100, 100, 0)},
    "response_format": {"type": "object", "properties": {"type": {"enum": list(FORMATS)}}},
    "structured_outputs": {"type": "object", "properties": STRUCTURES},
    **{f"guided_{name}": shape for name, shape in STRUCTURES.items()},
    "stream": FLAG,
    "stream_options": {"type": "object", "properties": {"include_usage": FLAG}},
}
CHAT: dict[str, Schema] = {
    "messages": {"type": "array", "minItems": 1, "items": {"type": "object"}},
    "max_completion_tokens": integer(1),
    "add_generation_prompt": {"type": "boolean", "default": True},
    "continue_final_message": FLAG,
    "chat_template_kwargs": {"type": "object"},
    "tools": {"type": "array", "items": {"type": "object"}, "maxItems": MOST_TOOLS},
    "tool_choice": {"description": "none, auto, required, or a function by its name."},
    "parallel_tool_calls": {"type": "boolean", "default": True},
    "functions": {"type": "array", "items": {"type": "object"}, "maxItems": MOST_TOOLS},
    "function_call": {"description": "none, auto, or a function by its name: the older form."},
    "logprobs": FLAG,
    "top_logprobs": integer(0, MOST_ALTERNATIVES),
}
COMPLETION: dict[str, Schema] = {
    "best_of": integer(1, MOST_CHOICES),
    "prompt": {"description": "Text, token ids, or an array of either."},
    "add_special_tokens": {"type": "boolean", "default": True},
    "echo": FLAG,
    "logprobs": integer(0, MOST_ALTERNATIVES),
}
EMBEDDING: dict[str, Schema] = {
    "model": SHARED["model"],
    "input": {"description": "Text, token ids, or an array of either."},
    "encoding_format": {"type": "string", "enum": list(ENCODINGS)},
    "dimensions": integer(1),
    "pooling": {"type": "string", "enum": list(Pooling)},
    "add_special_tokens": {"type": "boolean", "default": True},
    "truncate_prompt_tokens": integer(-1),
    "service_tier": SHARED["service_tier"],
}
RESPONSE: dict[str, Schema] = {
    **{
        name: SHARED[name]
        for name in ("model", "temperature", "top_p", "top_k", "seed", "stop", "stream")
    },
    "input": {"description": "Text, or items: messages, function calls and their outputs."},
    "instructions": {"type": "string"},
    "max_output_tokens": integer(1),
    "previous_response_id": {"type": "string"},
    "store": {"type": "boolean", "default": True},
    "text": {"type": "object", "properties": {"format": SHARED["response_format"]}},
    "tools": {"type": "array", "items": {"type": "object"}},
    "tool_choice": {"description": "none, auto, required, or an object that names functions."},
    "top_logprobs": integer(0, MOST_ALTERNATIVES),
    "metadata": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 512}},
}

TOKENIZE: dict[str, Schema] = {
    "model": SHARED["model"],
    "prompt": {"type": "string"},
    "messages": CHAT["messages"],
    "add_special_tokens": {"type": "boolean"},
    "add_generation_prompt": {"type": "boolean", "default": True},
    "continue_final_message": FLAG,
    "chat_template_kwargs": {"type": "object"},
    "return_token_strs": FLAG,
}
DETOKENIZE: dict[str, Schema] = {
    "model": SHARED["model"],
    "tokens": {"type": "array", "items": integer(0)},
}


ONCE = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Sent again with the same body within a day: the same answer, done once.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[\\x21-\\x7e]+$"},
}


def paths() -> dict[str, Any]:
    """For the ``paths`` of an OpenAPI document."""
    return {
        "/v1/chat/completions": {"post": _generating("Answer a chat", CHAT, "messages")},
        "/v1/completions": {"post": _generating("Continue a text", COMPLETION, "prompt")},
        "/v1/embeddings": {"post": _asking("Texts as vectors", EMBEDDING, "model", "input")},
        "/v1/responses": {
            "post": _asking("Answer, and keep it to go on from", RESPONSE, "model", "input")
        },
        "/v1/responses/input_tokens": {
            "post": _asking("How many tokens that would be", RESPONSE, "model", "input")
        },
        "/tokenize": {"post": _asking("The tokens of a prompt or a chat", TOKENIZE)},
        "/detokenize": {"post": _asking("The text of tokens", DETOKENIZE, "tokens")},
        "/tokenizer_info": {"get": _operation("Special tokens and the chat template")},
        "/v1/models": {"get": _operation("The base and your adapters")},
        "/v1/models/{model}": {
            "get": {
                **_operation("One of them"),
                "parameters": [
                    {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
                ],
            }
        },
        "/healthz": {"get": {**_operation("Whether this process runs"), "security": []}},
        "/readyz": {"get": {**_operation("Whether it can answer"), "security": []}},
    }


def _generating(summary: str, own: dict[str, Schema], required: str) -> dict[str, Any]:
    ignored = ", ".join(sorted(IGNORED - own.keys()))
    refused = ", ".join(sorted(set(REFUSED) - own.keys()))
    schema = _object({**SHARED, **own}, "model", required)
    return {
        **_operation(summary),
        "parameters": [ONCE],
        "description": (
            f"Accepted, ignored and named in x-ignored-params: {ignored}, and unknown fields."
            f" Refused with 400: {refused}."
        ),
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
    }


def _object(properties: dict[str, Schema], *required: str) -> Schema:
    """Null is absent."""
    return {
        "type": "object",
        "required": list(required),
        "properties": {
            name: schema if name in required else {"anyOf": [schema, {"type": "null"}]}
            for name, schema in properties.items()
        },
    }


def _asking(summary: str, properties: dict[str, Schema], *required: str) -> dict[str, Any]:
    schema = _object(properties, *required)
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {**_operation(summary), "requestBody": body}


def _operation(summary: str) -> dict[str, Any]:
    answers = {"200": {"description": "The answer"}, "default": {"description": "An error object"}}
    return {"summary": summary, "responses": answers, "security": [{"key": []}]}
