"""Files that hold an adapter in another layout than PEFT's safetensors: what to do about each."""

from collections.abc import Mapping
from pathlib import Path

from adapters.tensor_file import shown

PICKLE = "pickles are not read; save with safe_serialization=True"
# The first that fits a name speaks for it.
ADVICE: Mapping[str, str] = {
    "adapter_model.safetensors.index.json": "adapters in several files are not read; save one",
    "adapters.safetensors": (
        "MLX's own layout is not read; convert it to PEFT's, where A and B are transposed and"
        " lora_alpha is scale times rank"
    ),
    "pytorch_lora_weights.safetensors": "an adapter of Diffusers, for models of images",
    "*.gguf": "GGUF is not read; add the adapter that it was converted from",
    "ggml-adapter-model.bin": "GGML is not read; add the adapter that it was converted from",
    "*.bin": PICKLE,
    "*.pt": PICKLE,
    "*.pth": PICKLE,
    "*.nemo": "NeMo's archives are not read; export the adapter to Hugging Face's layout",
}


def advice(directory: Path) -> list[str]:
    """One line for the first file of a kind we know; none where there is no such file."""
    for pattern, text in ADVICE.items():
        found = sorted(path.name for path in directory.glob(pattern))
        if found:
            return [f"{shown(found[0])}: {text}"]
    return []
