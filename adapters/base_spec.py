"""The shape of a base model, and a fingerprint that survives quantisation. Needs no torch."""

import hashlib
import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from adapters.errors import AdapterInvalid, BaseUnreadable
from adapters.tensor_file import TensorFile
from adapters.values import as_float32

MAX_HEADER_BYTES = 64 << 20
MAX_TENSORS = 1 << 20
# The tensors quantisers leave alone.
KEPT = re.compile(
    r"^(model\.)?(embed_tokens|norm|layers\.\d+\.(\w*norm|self_attn\.[qk]_norm))\.weight$"
)
HEAD_DIMS = {"Qwen3ForCausalLM": 128}  # where config.json gives none
NOT_SHAPE = ("tie_word_embeddings", "max_position", "fingerprint")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseSpec:
    architecture: str  # e.g. LlamaForCausalLM
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tie_word_embeddings: bool
    max_position: int
    fingerprint: str = ""  # sha256 over the shape and the values of embeddings and norms

    @classmethod
    def from_checkpoint(cls, directory: Path | str) -> Self:
        """Raises BaseUnreadable, naming the file and the field."""
        directory = Path(directory)
        spec = cls._from_config(_read_json(directory / "config.json"))
        return replace(spec, fingerprint=_fingerprint(directory, spec))

    @classmethod
    def _from_config(cls, config: dict[str, object]) -> Self:
        names = config.get("architectures")
        if not (isinstance(names, list) and names and isinstance(names[0], str)):
            raise BaseUnreadable("config.json: architectures: names no model class")
        hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
        return cls(
            architecture=names[0],
            hidden_size=hidden,
            intermediate_size=_size(config, "intermediate_size"),
            num_layers=_size(config, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=_size(config, "num_key_value_heads", heads),
            head_dim=_size(config, "head_dim", HEAD_DIMS.get(names[0], hidden // heads)),
            vocab_size=_size(config, "vocab_size"),
            tie_word_embeddings=config.get("tie_word_embeddings") is True,
            max_position=_size(config, "max_position_embeddings", 2048),
        )

    def shape_of(self, module: str) -> tuple[int, int]:
        """(input width, output width) of a linear layer of every block."""
        hidden, inner = self.hidden_size, self.intermediate_size
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return {
            "q_proj": (hidden, queries),
            "k_proj": (hidden, keys),
            "v_proj": (hidden, keys),
            "o_proj": (queries, hidden),
            "gate_proj": (hidden, inner),
            "up_proj": (hidden, inner),
            "down_proj": (inner, hidden),
        }[module]


def _read_json(path: Path) -> dict[str, object]:
    try:
        raw = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise BaseUnreadable(f"{path}: not found") from error
    except (OSError, ValueError, RecursionError) as error:
        raise BaseUnreadable(f"{path}: cannot be read ({error})") from error
    if not isinstance(raw, dict):
        raise BaseUnreadable(f"{path}: not a JSON object")
    return raw


def _size(config: dict[str, object], key: str, fallback: int | None = None) -> int:
    value = config.get(key)
    value = fallback if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise BaseUnreadable(f"config.json: {key}: {value!r} is not a positive integer")
    return value


def _fingerprint(directory: Path, spec: BaseSpec) -> str:
    parts: dict[str, str] = {}
    try:
        for file in _weight_files(directory):
            with TensorFile.open(
                file,
                follow_symlinks=True,
                max_header_bytes=MAX_HEADER_BYTES,
                max_tensors=MAX_TENSORS,
            ) as weights:
                for name in filter(KEPT.match, weights.tensors):
                    parts[name.removeprefix("model.")] = _values_digest(weights, name)
    except AdapterInvalid as error:
        raise BaseUnreadable(f"{directory}: {error}") from error
    if not parts:
        raise BaseUnreadable(f"{directory}: no embeddings or norms in its safetensors files")
    shape = {key: value for key, value in asdict(spec).items() if key not in NOT_SHAPE}
    return hashlib.sha256(json.dumps([shape, parts], sort_keys=True).encode()).hexdigest()


def _values_digest(file: TensorFile, name: str) -> str:
    """Values are hashed as float16, so fp32, bf16 and fp16 copies of one base agree."""
    tensor = file.tensors[name]
    digest = hashlib.sha256(repr(tensor.shape).encode())
    for chunk in file.chunks(tensor):
        with np.errstate(over="ignore"):
            digest.update(as_float32(chunk, tensor.dtype).astype(np.float16).tobytes())
    return digest.hexdigest()


def _weight_files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return sorted(directory.glob("*.safetensors"))
    shards = _read_json(index).get("weight_map")
    if not isinstance(shards, dict):
        raise BaseUnreadable(f"{index}: no weight_map")
    files = sorted({str(file) for file in shards.values()})
    if any(Path(file).name != file for file in files):
        raise BaseUnreadable(f"{index}: weight_map leads out of the directory")
    return [directory / file for file in files]
