"""Where an activated LoRA (aLoRA) begins to act: at the last occurrence, in the prompt, of the
tokens that invoke it. Before that every row is the base model's, and so is its KV."""

import sys
from collections.abc import Sequence

import numpy as np

NEVER = sys.maxsize  # no position is that far


def active_from(prompt: Sequence[int], invocation: Sequence[int]) -> int:
    """The position from which an adapter acts: 0 for a plain LoRA, NEVER where nothing invokes it.

    Tokens that are generated do not invoke. As the loop's thread asks this of prompts that tenants
    write, it is a search for a substring, whose time is bounded by their lengths added up.
    """
    if not invocation:
        return 0
    at = _text(prompt).find(_text(invocation))
    return NEVER if at < 0 else len(prompt) - len(invocation) - at


def _text(tokens: Sequence[int]) -> str:
    """A character for each, from the last to the first: ``find`` is linear, ``rfind`` is not."""
    return np.asarray(tokens, dtype="<u4")[::-1].tobytes().decode("utf-32-le", "surrogatepass")
