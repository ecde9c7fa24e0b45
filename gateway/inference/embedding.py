"""Texts as vectors: what a client may ask, and the vectors as it gets them.

The engine pools the last hidden states of a prompt; here the vector is cut to the dimensions asked
for and brought to length 1, so that a dot product is the cosine. ``pooling`` is a field of ours:
``last`` (the default) takes the last token's state, ``mean`` the average over all.
"""

from base64 import b64encode
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from engine.protocol import Pooling, Sampling
from gateway.errors import InvalidRequest
from gateway.inference.body import Object
from gateway.inference.fields import Fields, checked_prompts, checked_text, missing
from gateway.inference.options import Options, read_audience, read_last_tokens, read_model

MOST_INPUTS = 2048
MOST_INPUT_TOKENS = 300_000  # of all inputs together
ENCODINGS = ("float", "base64")

Encoding = Literal["float", "base64"]
Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """How the vectors are made and written."""

    pooling: Pooling
    encoding: Encoding
    dimensions: int | None  # None: all there are


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequest:
    options: Options
    embedding: Embedding
    inputs: tuple[str | tuple[int, ...], ...]
    add_special: bool  # the tokens with which the model's prompts begin are added to a text


def read_embeddings(body: Object) -> EmbeddingRequest:
    """Raises InvalidRequest or one of its kinds."""
    fields = Fields(body)
    model = read_model(fields)
    inputs = _inputs(fields)
    embedding = Embedding(
        pooling=_pooling(fields),
        encoding="base64" if _one_of(fields, "encoding_format", ENCODINGS) == "base64" else "float",
        dimensions=fields.integer("dimensions", 1),
    )
    add_special = fields.flag("add_special_tokens", default=True)
    last_tokens = read_last_tokens(fields)
    audience = read_audience(fields)
    options = Options(
        model=model,
        sampling=Sampling(temperature=0.0),
        max_tokens=0,  # nothing is generated for the client
        n=1,
        candidates=1,
        stop=(),
        shows_stop=False,
        shows_special=False,
        shows_ids=False,
        last_tokens=last_tokens,
        stop_tokens=(),
        ignore_eos=True,
        logprobs=None,
        stream=False,
        include_usage=False,
        ignored=audience.ignored,
        tier=audience.tier,
        customer=audience.customer,
        tags=audience.tags,
    )
    return EmbeddingRequest(
        options=options, embedding=embedding, inputs=inputs, add_special=add_special
    )


def vector_of(raw: bytes, dimensions: int | None) -> Vector:
    """Of length 1, unless it is all zeros."""
    whole = np.frombuffer(raw, "<f4").astype(np.float64)[:dimensions]
    length = float(np.linalg.norm(whole))
    return (whole / length if length else whole).astype(np.float32)


def written(vector: Vector, encoding: Encoding) -> Any:
    """For orjson, which writes arrays as lists."""
    if encoding == "float":
        return vector
    return b64encode(vector.astype("<f4").tobytes()).decode()


def _inputs(fields: Fields) -> tuple[str | tuple[int, ...], ...]:
    """A string, several, token ids, or several of those; the first element decides."""
    value = fields.take("input")
    if value is None:
        raise missing("input")
    if isinstance(value, str):
        return (_text(value, "input"),)
    if not isinstance(value, list) or not value:
        raise InvalidRequest(
            "input must be a string, or an array, which is not empty, of strings or token ids.",
            param="input",
        )
    return checked_prompts(value, "input", most=MOST_INPUTS, noun="items", text=_text)


def _text(value: Any, path: str) -> str:
    text = checked_text(value, path)
    if not text:
        raise InvalidRequest(f"{path} must not be empty.", param=path)
    return text


def _pooling(fields: Fields) -> Pooling:
    return Pooling(_one_of(fields, "pooling", tuple(Pooling)) or Pooling.LAST)


def _one_of(fields: Fields, name: str, known: tuple[str, ...]) -> str | None:
    value = fields.name(name)
    if value is not None and value not in known:
        raise InvalidRequest(f"{name} must be one of {', '.join(known)}.", param=name)
    return value
