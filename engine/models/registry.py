"""The models we serve, by the architecture their config.json names."""

from collections.abc import Mapping

from engine.errors import CheckpointInvalid
from engine.models.llama import Llama

MODELS: Mapping[str, type[Llama]] = {"LlamaForCausalLM": Llama}


def model_type(architecture: str) -> type[Llama]:
    """Raises CheckpointInvalid for an architecture we do not serve."""
    if architecture not in MODELS:
        raise CheckpointInvalid(
            f"config.json: architecture {architecture!r}; expected {' or '.join(MODELS)}"
        )
    return MODELS[architecture]
