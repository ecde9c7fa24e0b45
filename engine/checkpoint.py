"""A checkpoint on disk: one directory, its ``config.json`` and its safetensors.

Tensors are looked up by name across shards and read lazily from memory maps; nothing is copied
before it is asked for. Pickled weights are refused, and so is an index that does not match its
shards. ``config`` and the tensors' names are a language model's, also where a tower for images is
stored beside it (``adapters.language_part``); ``whole_config`` is the file's.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from adapters.language_part import language_config, plain_name, sees
from adapters.shards import INDEX, index_name
from adapters.tensor_file import LFS_POINTER, POINTER, is_pointer
from engine.errors import CheckpointInvalid

OTHERS = {"*.bin": "a pickle", "*.pt": "a pickle", "*.pth": "a pickle", "*.gguf": "a GGUF file"}
TYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    dtype: str  # as safetensors spells it: F16, BF16, F32, I32 ...
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


class Checkpoint:
    """Read access to the tensors and JSON files of one directory.

    Raises CheckpointInvalid for a directory that is not a safetensors checkpoint.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise CheckpointInvalid(f"{self.path}: no such directory")
        self.whole_config = self.json("config.json")
        if not self.whole_config:
            raise CheckpointInvalid(f"{self.path}: config.json is missing or empty")
        self.config = language_config(self.whole_config)
        self._files: dict[str, tuple[Any, str]] = {}  # name -> the open shard, the name in it
        self._tensors: dict[str, TensorInfo] = {}
        for shard, wanted in self._shards().items():
            self._open(shard, wanted)

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._tensors

    @property
    def dtype(self) -> str:
        """Of the embeddings, as config.json would say it."""
        found = self._tensors.get("model.embed_tokens.weight")
        return TYPES.get(found.dtype, "float16") if found else "float16"

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor, on the CPU, as stored."""
        file, stored = self._files[name]
        found: torch.Tensor = file.get_tensor(stored)
        return found

    def json(self, name: str) -> dict[str, Any]:
        """A JSON object of this directory; empty when there is no such file."""
        file = self.path / name
        if not file.is_file():
            return {}
        try:
            found = json.loads(file.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointInvalid(f"{file}: not readable JSON ({error})") from error
        if not isinstance(found, dict):
            raise CheckpointInvalid(f"{file}: expected a JSON object, found {type(found).__name__}")
        return found

    def _shards(self) -> dict[str, set[str] | None]:
        """File names, each with the tensors the index expects in it (None: whatever it holds)."""
        name = index_name(self.path)
        index = self.json(name).get("weight_map")
        if (self.path / name).is_file() and not (isinstance(index, dict) and index):
            raise CheckpointInvalid(f"{self.path / name}: weight_map names no tensors")
        if isinstance(index, dict):
            shards: dict[str, set[str] | None] = {}
            for name, shard in index.items():
                wanted = shards.setdefault(_plain_name(shard), set())
                assert wanted is not None
                wanted.add(name)
            return shards
        files = sorted(file.name for file in self.path.glob("*.safetensors"))
        if "model.safetensors" in files:
            return {"model.safetensors": None}
        if len(files) == 1:
            return {files[0]: None}
        found = f"{len(files)} safetensors files and no {INDEX}" if files else "no safetensors file"
        others = (
            f"; {next(self.path.glob(pattern)).name} is {what}, which is not read"
            for pattern, what in OTHERS.items()
            if any(self.path.glob(pattern))
        )
        raise CheckpointInvalid(f"{self.path}: {found}{next(others, '')}")

    def _is_pointer(self, shard: str) -> bool:
        try:
            with (self.path / shard).open("rb") as file:
                return is_pointer(file.read(len(LFS_POINTER)))
        except OSError:
            return False

    def _open(self, shard: str, wanted: set[str] | None) -> None:
        try:
            handle: Any = safe_open(str(self.path / shard), framework="pt")
            names = set(handle.keys())
        except (OSError, SafetensorError) as error:
            why = POINTER if self._is_pointer(shard) else f"cannot be read ({error})"
            raise CheckpointInvalid(f"{self.path / shard}: {why}") from error
        missing = sorted((wanted or set()) - names)
        if missing:
            raise CheckpointInvalid(f"{self.path / shard}: {missing[0]} is indexed but not there")
        seeing = sees(self.whole_config)
        for stored in names if wanted is None else wanted:
            part = handle.get_slice(stored)
            name = plain_name(stored) if seeing else stored
            self._files[name] = handle, stored
            self._tensors[name] = TensorInfo(part.get_dtype(), tuple(part.get_shape()))


def _plain_name(shard: object) -> str:
    """A shard's file name. An index must not lead out of its directory."""
    if not isinstance(shard, str) or Path(shard).name != shard:
        raise CheckpointInvalid(f"{INDEX} names {shard!r}; expected a file in the same directory")
    return shard
