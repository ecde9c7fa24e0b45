"""What is wrong with the tensors that an adapter has for one module, the base unseen."""

from collections.abc import Iterator, Mapping

from adapters.config import AdapterConfig
from adapters.keys import EMBEDDING, Part, Site
from adapters.tensor_file import TensorInfo
from adapters.values import SERVED

PLAIN = (Part.A, Part.B)
MATRICES = (*PLAIN, Part.WEIGHT, Part.BASE_WEIGHT, Part.TOKENS)
# Parts of which a module may have no other.
ALONE = frozenset({Part.BIAS, Part.WEIGHT, Part.TOKENS, Part.BASE_WEIGHT})


def with_copy(
    site: Site, parts: dict[Part, TensorInfo], config: AdapterConfig | None
) -> Mapping[Part, TensorInfo]:
    """A whole weight that nothing says was trained is taken for a copy of the base's.

    PEFT writes such copies with ``save_embedding_layers``, and of its own accord where it believes
    that the vocabulary was resized.
    """
    if config is None or Part.WEIGHT not in parts or Part.BASE_WEIGHT in parts:
        return parts
    if _is_saved(site, config):
        return parts
    kept = dict(parts)
    kept[Part.BASE_WEIGHT] = kept.pop(Part.WEIGHT)
    return kept


def _is_saved(site: Site, config: AdapterConfig) -> bool:
    saved = {name.rpartition(".")[2] for name in config.saved}
    return site.module in saved or (config.tied and EMBEDDING in saved)


def shape_faults(site: Site, parts: Mapping[Part, TensorInfo]) -> Iterator[str]:
    """What is wrong with the tensors of one module, base and config unseen."""
    if (Part.A in parts) != (Part.B in parts):
        yield f"{Part.B if Part.A in parts else Part.A} is missing for"
    for part, tensor in parts.items():
        wanted = 2 if part in MATRICES else 1
        if tensor.dtype not in SERVED:
            yield f"dtype {tensor.dtype} of {part} (only {', '.join(SERVED)} are served) for"
        elif len(tensor.shape) != wanted or 0 in tensor.shape:
            count = "two positive dimensions" if wanted == 2 else "one positive dimension"
            yield f"{part} has shape {list(tensor.shape)}, not {count}, for"
    a, b = (parts[part].shape if part in parts else () for part in PLAIN)
    if len(a) == len(b) == 2 and a[0] != b[1]:
        yield f"A {list(a)} and B {list(b)} disagree on the rank of"
    if Part.A not in parts and ALONE.isdisjoint(parts):
        yield f"{' and '.join(sorted(parts))} without LoRA of"
    if Part.WEIGHT in parts and len(parts.keys() - {Part.BASE_WEIGHT}) > 1:
        yield "a whole weight beside other tensors of"


def declared_faults(
    site: Site, parts: Mapping[Part, TensorInfo], config: AdapterConfig | None
) -> Iterator[str]:
    """Where a module's tensors and the config contradict each other."""
    if config is None:
        return
    adapted = Part.A in parts
    for part, field, declared in (
        (Part.MAGNITUDE, "use_dora", config.use_dora),
        (Part.LORA_BIAS, "lora_bias", config.lora_bias),
    ):
        if part in parts and not declared:
            yield f"{part} though the config does not set {field}, for"
        elif declared and adapted and part not in parts:
            yield f"{part} is missing though the config sets {field}, for"
    if Part.MAGNITUDE in parts and site.outer:
        yield "DoRA is not supported on"
    if Part.BIAS in parts and (
        config.bias == "none" or (config.bias == "lora_only" and not adapted)
    ):
        yield f"a bias though the config says bias={config.bias}, for"
    if site.outer and parts.keys() & {Part.LORA_BIAS, Part.BIAS}:
        yield "a bias, which is not supported on"
    if Part.WEIGHT in parts and not _is_saved(site, config):
        yield "a whole weight that modules_to_save does not name, of"
    if Part.TOKENS in parts:
        ids, rows = config.tokens.get(site.module, ()), parts[Part.TOKENS].shape[0]
        if len(ids) != rows:
            yield f"{rows} token rows for {len(ids)} trainable_token_indices of"
    copied = parts.keys() == {Part.BASE_WEIGHT}
    inner = not site.outer and parts.keys() <= {*PLAIN, Part.LORA_BIAS}
    if config.invocation and not (inner or copied):
        yield "an activated LoRA (aLoRA) changes linear layers only, by A and B; other tensors of"
