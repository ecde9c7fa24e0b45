"""The families we serve, by the architecture their config.json names; the rest is refused."""

from collections.abc import Callable, Mapping

from adapters.language_part import architecture
from engine.errors import CheckpointInvalid
from engine.models import llama, mistral, qwen2, qwen3
from engine.models.fields import Config
from engine.models.refusals import EXPERTS, what_it_needs
from engine.models.traits import Traits

FAMILIES: Mapping[str, Callable[[Config], Traits]] = {
    "LlamaForCausalLM": llama.traits,
    "MistralForCausalLM": mistral.traits,
    "Qwen2ForCausalLM": qwen2.traits,
    "Qwen3ForCausalLM": qwen3.traits,
}
EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


def architecture_of(config: Config) -> str:
    """ "?" where none is named."""
    return architecture(config) or "?"


def read_traits(config: Config) -> Traits:
    """Raises CheckpointInvalid for an architecture we do not serve, saying what it would need."""
    name = architecture_of(config)
    if name not in FAMILIES:
        need = what_it_needs(name)
        raise CheckpointInvalid(
            f"config.json: architecture {name!r} is not served; expected "
            f"{' or '.join(FAMILIES)}" + (f". It would need {need}" if need else "")
        )
    for key in EXPERT_COUNTS:
        if config.get(key):
            raise CheckpointInvalid(
                f"config.json: {key}={config[key]}; mixtures of experts are not supported: "
                f"it would need {EXPERTS}"
            )
    return FAMILIES[name](config)
