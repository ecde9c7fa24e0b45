"""The shape of a base model, and a fingerprint that survives quantisation. Needs no torch."""

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np

from adapters.errors import AdapterInvalid, BaseUnreadable
from adapters.language_part import architecture, language_config
from adapters.language_part import plain_name as plain_tensor
from adapters.shards import index_name
from adapters.tensor_file import TensorFile
from adapters.values import as_float32

MAX_HEADER_BYTES = 64 << 20
PLAIN = ("F16", "BF16", "F32")  # a head of other types is quantised
MAX_TENSORS = 1 << 20
CARD = 8192  # characters of README.md that are looked at
# The tensors quantisers leave alone.
KEPT = re.compile(
    r"^(model\.)?(embed_tokens|norm|layers\.\d+\.(\w*norm|self_attn\.[qk]_norm))\.weight$"
)
HEAD_DIMS = {"Qwen3ForCausalLM": 128}  # where config.json gives none
NOT_SHAPE = (
    "tie_word_embeddings", "max_position", "fingerprint", "embeddings", "head", "names",
)  # fmt: skip
EMBEDDINGS, LM_HEAD = "embed_tokens.weight", "lm_head.weight"
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
# Words of a model's name that say how its weights are stored, not which weights they are.
STORAGE = frozenset({
    "128g", "32g", "4bit", "64g", "8bit", "asym", "auto", "autoround", "awq", "bf16", "bnb",
    "dynamic", "fp16", "fp8", "g128", "g32", "g64", "gguf", "gptq", "gptqmodel", "hf", "inc",
    "int4", "int8", "marlin", "meta", "quantized", "round", "sym", "unsloth", "w4a16", "w4g128",
    "w4g32", "w4g64", "w8a16", "w8a8",
})  # fmt: skip


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
    embeddings: str = ""  # digest of their values alone; "" when unknown
    head: str = ""  # of the output head's, where it is not quantised
    names: tuple[str, ...] = field(default=(), compare=False)  # known as, see ``same_name``

    @classmethod
    def from_checkpoint(cls, directory: Path | str) -> Self:
        """Raises BaseUnreadable, naming the file and the field."""
        directory = Path(directory)
        config = language_config(_read_json(directory / "config.json"))
        spec = cls._from_config(config)
        parts = _kept_digests(directory)
        head = parts.pop(LM_HEAD, "")
        embeddings = parts.get(EMBEDDINGS, "")
        return replace(
            spec,
            fingerprint=_fingerprint(spec, parts),
            embeddings=embeddings,
            head=embeddings if spec.tie_word_embeddings else head,
            names=_names(directory, config),
        )

    @classmethod
    def _from_config(cls, config: dict[str, object]) -> Self:
        name = architecture(config)
        if name is None:
            raise BaseUnreadable("config.json: architectures: names no model class")
        hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
        return cls(
            architecture=name,
            hidden_size=hidden,
            intermediate_size=_size(config, "intermediate_size"),
            num_layers=_size(config, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=_size(config, "num_key_value_heads", heads),
            head_dim=_size(config, "head_dim", HEAD_DIMS.get(name, hidden // heads)),
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


def _fingerprint(spec: BaseSpec, parts: dict[str, str]) -> str:
    shape = {key: value for key, value in asdict(spec).items() if key not in NOT_SHAPE}
    return hashlib.sha256(json.dumps([shape, parts], sort_keys=True).encode()).hexdigest()


def _kept_digests(directory: Path) -> dict[str, str]:
    """Digests of the tensors that quantisers leave alone, and of a head that one left alone."""
    parts: dict[str, str] = {}
    try:
        for file in _weight_files(directory):
            with TensorFile.open(
                file,
                follow_symlinks=True,
                max_header_bytes=MAX_HEADER_BYTES,
                max_tensors=MAX_TENSORS,
            ) as weights:
                for stored in weights.tensors:
                    name = plain_tensor(stored)
                    plain = weights.tensors[stored].dtype in PLAIN
                    if (name == LM_HEAD and plain) or KEPT.match(name):
                        parts[name.removeprefix("model.")] = values_digest(weights, stored)
    except AdapterInvalid as error:
        raise BaseUnreadable(f"{directory}: {error}") from error
    if not parts.keys() - {LM_HEAD}:
        raise BaseUnreadable(f"{directory}: no embeddings or norms in its safetensors files")
    return parts


def _names(directory: Path, config: dict[str, object]) -> tuple[str, ...]:
    """From the config, the card's ``base_model`` and the directory, which may be a hub's cache."""
    found = [config.get("_name_or_path"), directory.resolve().as_posix()]
    try:
        card = (directory / "README.md").read_text(encoding="utf-8", errors="replace")[:CARD]
        found += re.findall(r"^base_model:\s*[\"']?([\w./-]+)", card, re.MULTILINE)
    except OSError:
        pass  # most have none
    return tuple(dict.fromkeys(name for name in found if isinstance(name, str) and name))


def plain_name(name: str) -> str:
    """A model's name without its owner, path and way of storage; "" when it says nothing."""
    words = name.replace("\\", "/").rstrip("/").split("/")
    cached = next((word for word in words if word.startswith("models--")), None)
    last = cached.rpartition("--")[2] if cached else words[-1]
    parts = [part for part in re.split(r"[^a-z0-9]+", last.lower()) if part not in STORAGE]
    plain = "".join(parts)
    return "" if re.fullmatch(r"[0-9a-f]{40}", plain) else plain


def same_name(name: str, base: BaseSpec) -> bool:
    """Whether this may be the base's name.

    Only a hub's name, ``owner/name``, can say no: a path says where somebody kept the model.
    """
    if not HUB_NAME.fullmatch(name):
        return True
    known = {plain_name(each) for each in base.names} - {""}
    wanted = plain_name(name)
    return not (wanted and known) or wanted in known


def values_digest(file: TensorFile, name: str) -> str:
    """Values are hashed as float16, so fp32, bf16 and fp16 copies of one base agree."""
    tensor = file.tensors[name]
    digest = hashlib.sha256(repr(tensor.shape).encode())
    for chunk in file.chunks(tensor):
        with np.errstate(over="ignore"):
            digest.update(as_float32(chunk, tensor.dtype).astype(np.float16).tobytes())
    return digest.hexdigest()


def _weight_files(directory: Path) -> list[Path]:
    index = directory / index_name(directory)
    if not index.exists():  # of several files it is the one of the usual name, as for the engine
        usual = directory / "model.safetensors"
        return [usual] if usual.exists() else sorted(directory.glob("*.safetensors"))
    shards = _read_json(index).get("weight_map")
    if not isinstance(shards, dict):
        raise BaseUnreadable(f"{index}: no weight_map")
    files = sorted({str(file) for file in shards.values()})
    if any(Path(file).name != file for file in files):
        raise BaseUnreadable(f"{index}: weight_map leads out of the directory")
    return [directory / file for file in files]
