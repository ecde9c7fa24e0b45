"""Which fields are understood: every documented field is in one of three classes.

It works; or it is ignored and named in ``x-ignored-params``; or it is refused with 400 and its
name. Unknown fields are ignored and named too, for clients send more every month, unless the
project has them refused. Besides OpenAI's fields this knows vLLM's.
"""

from collections.abc import Sequence
from typing import Any

from gateway.errors import UnknownParameter, UnsupportedParameter
from gateway.inference.fields import Fields

# Changes nothing about the answer here, so that it is safe to leave out.
IGNORED = frozenset({
    "cache_salt", "include_reasoning", "kv_transfer_params", "length_penalty",
    "parallel_tool_calls", "prediction", "priority", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention", "reasoning_effort", "request_id", "spaces_between_special_tokens",
    "store", "stream_options.include_obfuscation", "verbosity",
})  # fmt: skip
# Would change the answer, so that leaving it out silently would be wrong.
REFUSED = (
    "tools", "functions", "tool_choice", "function_call", "modalities", "audio",
    "web_search_options", "moderation", "suffix", "use_beam_search",
    "chat_template", "documents",
    "add_special_tokens", "echo", "logits_processors", "mm_processor_kwargs", "vllm_xargs",
)  # fmt: skip
# Values of refused fields that ask for what we do anyway.
HARMLESS: dict[str, Sequence[Any]] = {
    "add_special_tokens": (False,),  # of a chat: its template writes them
    "echo": (False,),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "suffix": ("",),
    "use_beam_search": (False,),
    "documents": ([],),
    "logits_processors": ([],),
    "mm_processor_kwargs": ({},),
    "vllm_xargs": ({},),
}


def require_known(ignored: Sequence[str]) -> None:
    """That all is documented which is ignored. Raises UnknownParameter."""
    for name in ignored:
        if name not in IGNORED:
            raise UnknownParameter(f"There is no parameter {name[:64]!r}.", param=name[:64])


def refuse_unsupported(fields: Fields) -> None:
    """Raises UnsupportedParameter."""
    if not fields.unread:
        return
    for name in REFUSED:
        if name in fields.unread and fields.take(name) not in HARMLESS.get(name, ()):
            raise UnsupportedParameter(f"{name} is not supported.", param=name)
