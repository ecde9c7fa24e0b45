"""Where a checkpoint says which of its files holds which tensor."""

from pathlib import Path

INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"


def index_name(directory: Path) -> str:
    """The index's file name. Some quantisers call files after their settings, the index too."""
    if (directory / INDEX).exists() or (directory / WHOLE).exists():
        return INDEX
    found = [path.name for path in directory.glob("*.safetensors.index.json")]
    return found[0] if len(found) == 1 else INDEX
