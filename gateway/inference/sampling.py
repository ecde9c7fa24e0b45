"""How a client wants tokens chosen.

A ``top_p`` of 0 means greedy, and so does a temperature so small that logits divided by it would
overflow; ``seed`` is any 64-bit integer. ``top_k``, ``min_p``, ``repetition_penalty`` and
``min_tokens`` are vLLM's.
"""

from engine.protocol import Sampling
from gateway.errors import InvalidRequest
from gateway.inference.fields import MOST_TOKEN_ID, Fields, out_of_range

MOST_BIASES = 1024
LEAST_TEMPERATURE = 1e-5
REPETITION = (0.01, 10)  # smaller ones make logits overflow


def read_sampling(fields: Fields) -> Sampling:
    """Raises InvalidRequest."""
    temperature = fields.number("temperature", 0, 2, default=1)
    top_p = fields.number("top_p", 0, 1, default=1)
    if top_p == 0 or temperature < LEAST_TEMPERATURE:
        temperature, top_p = 0.0, 1.0
    return Sampling(
        temperature=temperature,
        top_p=top_p,
        top_k=max(fields.integer("top_k", -1, MOST_TOKEN_ID) or 0, 0),
        min_p=fields.number("min_p", 0, 1, default=0),
        seed=fields.integer("seed"),
        presence_penalty=fields.number("presence_penalty", -2, 2, default=0),
        frequency_penalty=fields.number("frequency_penalty", -2, 2, default=0),
        repetition_penalty=fields.number("repetition_penalty", *REPETITION, default=1),
        logit_bias=_logit_bias(fields),
        min_tokens=fields.integer("min_tokens", 0, MOST_TOKEN_ID) or 0,
    )


def _logit_bias(fields: Fields) -> list[tuple[int, float]]:
    biases = fields.object("logit_bias")
    if biases is None:
        return []
    if len(biases.unread) > MOST_BIASES:
        raise out_of_range(len(biases.unread), f"at most {MOST_BIASES} entries long", "logit_bias")
    pairs = []
    for name in sorted(biases.unread):
        if not (name.isascii() and name.isdigit() and len(name) <= 10):
            raise InvalidRequest(
                f"logit_bias has the key {name[:50]!r}; keys are token ids.", param="logit_bias"
            )
        pairs.append((int(name), biases.number(name, -100, 100, default=0)))
    return pairs
