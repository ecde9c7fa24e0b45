"""What ``adapter_config.json`` says, as far as it changes an adapter's result.

PEFT accepts much that is probably a mistake (a missing alpha becomes 8, a NaN loads); here each of
those is a named problem. Settings that matter only in training are ignored. Which modules are
touched is decided by the tensors: ``target_modules`` and ``layers_to_transform`` are hints.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from adapters.keys import EMBEDDING, OUTER
from adapters.pattern import PatternTable
from adapters.pattern_grammar import PatternRefused
from adapters.tensor_file import shown, unique_pairs

MAX_CONFIG_BYTES = 1 << 20
MAX_PATTERNS = 4_096
MAX_RANK = 65_536
MAX_ALPHA = 1e9

# Initialisations that only choose where training starts. The others also change the base's
# weights when the adapter is loaded, so its tensors mean nothing on the base as it is.
PLAIN_INITS = frozenset({"gaussian", "eva", "mica", "orthogonal"})

BIASES = ("none", "all", "lora_only")
MAX_TOKENS = 65_536  # trainable ones
MAX_INVOCATION = 1024  # tokens; every request that names the adapter carries them
MAX_TOKEN = 1 << 24

REFUSED_WHEN_SET = {
    "layer_replication": "replicated layers are not supported",
    "target_parameters": "LoRA on bare parameters is not supported",
    "arrow_config": "Arrow routing is not supported",
    "kasa_config": "KaSA is not supported",
    "use_bdlora": "block-diagonal LoRA is not supported",
    "monteclora_config": "MonteCLoRA is not supported",
    "velora_config": "VeLoRA is not supported",
}

# Of no effect on the result: training, bookkeeping, hints, or read elsewhere in this module.
IGNORED = frozenset({
    "alora_invocation_string", "alora_invocation_tokens", "alpha_pattern", "auto_mapping",
    "base_fingerprint", "base_model_name_or_path", "bias", "corda_config",
    "ensure_weight_tying", "eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode",
    "init_lora_weights", "layers_pattern", "layers_to_transform", "loftq_config", "lora_alpha",
    "lora_bias", "lora_dropout", "lora_ga_config", "megatron_config", "megatron_core",
    "modules_to_save", "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern",
    "revision", "runtime_config", "target_modules", "task_type", "trainable_token_indices",
    "use_dora", "use_qalora", "use_rslora",
})  # fmt: skip
V = TypeVar("V", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    rank: int
    alpha: float
    use_rslora: bool
    ranks: PatternTable[int]
    alphas: PatternTable[float]
    targets: tuple[str, ...] | None  # when given as a plain list
    layers: frozenset[int] | None
    base_model: str  # as the trainer named it; "" when it did not
    base_fingerprint: str  # "" unless somebody wrote it there; PEFT does not
    use_dora: bool
    lora_bias: bool
    bias: str  # of BIASES
    saved: tuple[str, ...]  # modules_to_save
    tied: bool  # ensure_weight_tying: where the base ties its head, the adapter's changes are one
    tokens: Mapping[str, tuple[int, ...]]  # trainable rows of embed_tokens and lm_head
    invocation: tuple[int, ...]  # aLoRA: active from these tokens on; () is plain LoRA
    warnings: tuple[str, ...]

    def ranks_of(self, module: str) -> list[int]:
        """At least one. The first is PEFT's; others are of patterns that match as well."""
        return self.ranks.find(module) or [self.rank]

    def alphas_of(self, module: str) -> list[float]:
        """As ``ranks_of``."""
        return self.alphas.find(module) or [self.alpha]

    def scale(self, alpha: float, rank: int) -> float:
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank


def read_config(data: bytes) -> tuple[AdapterConfig | None, list[str]]:
    """The config and everything wrong with it; None when ranks and scales cannot be known."""
    try:
        raw = json.loads(data, object_pairs_hook=unique_pairs)
    except (ValueError, RecursionError) as error:
        return None, [f"adapter_config.json: not valid JSON ({shown(str(error))})"]
    if not isinstance(raw, dict):
        return None, ["adapter_config.json: not a JSON object"]
    reader = _Reader(raw)
    config = reader.config()
    return (config if reader.scalable else None), reader.problems


class _Reader:
    """Reads one config and collects what is wrong instead of stopping at the first fault."""

    def __init__(self, raw: dict[str, object]) -> None:
        self._raw = raw
        self.problems: list[str] = []
        self.scalable = True  # every number and pattern could be read
        self._warnings: list[str] = []

    def config(self) -> AdapterConfig:
        self._check_kind()
        self._check_features()
        self._note_unknown()
        return AdapterConfig(
            rank=self._number("r", _rank, "a positive integer", 1),
            alpha=self._number("lora_alpha", _alpha, "a finite number", 0.0),
            use_rslora=self._flag("use_rslora"),
            ranks=self._patterns("rank_pattern", _rank, "a positive integer"),
            alphas=self._patterns("alpha_pattern", _alpha, "a finite number"),
            targets=self._targets(),
            layers=self._layers(),
            base_model=self._text("base_model_name_or_path"),
            base_fingerprint=self._text("base_fingerprint"),
            use_dora=self._flag("use_dora"),
            lora_bias=self._flag("lora_bias"),
            bias=self._bias(),
            saved=self._names("modules_to_save"),
            tied=self._flag("ensure_weight_tying"),
            tokens=self._tokens(),
            invocation=self._token_list("alora_invocation_tokens", None, most=MAX_INVOCATION),
            warnings=tuple(self._warnings),
        )

    def _fault(self, key: str, text: str) -> None:
        self.problems.append(f"adapter_config.json: {key}: {text}")

    def _unscalable(self, key: str, text: str) -> None:
        self.scalable = False
        self._fault(key, text)

    def _check_kind(self) -> None:
        kind = self._raw.get("peft_type")
        if kind != "LORA":
            self._fault("peft_type", f"{_shown(kind)}; only LORA is supported")
        task = self._raw.get("task_type")
        if task not in (None, "CAUSAL_LM"):
            self._warnings.append(f"task_type is {_shown(task)}; served for text generation")

    def _check_features(self) -> None:
        for key, text in REFUSED_WHEN_SET.items():
            if self._raw.get(key) not in (None, False, []):  # {} is a method at its defaults
                self._fault(key, text)
        if self._raw.get("use_dora") is True and self._raw.get("lora_bias") is True:
            self._fault("lora_bias", "DoRA has no LoRA biases; PEFT refuses both at once")
        if self._raw.get("use_dora") is True and self._raw.get("alora_invocation_tokens"):
            self._fault("alora_invocation_tokens", "an activated LoRA cannot use DoRA")
        if self._raw.get("alora_invocation_string") and not self._raw.get(
            "alora_invocation_tokens"
        ):
            text = "only alora_invocation_tokens are followed; write the string's tokens there"
            self._fault("alora_invocation_string", text)
        init = self._raw.get("init_lora_weights", True)
        plain = (
            init.lower() in PLAIN_INITS if isinstance(init, str) else isinstance(init, bool | None)
        )
        if not plain:
            self._fault(
                "init_lora_weights",
                f"{_shown(init)} changes the base's weights when the adapter is loaded; convert it"
                " to plain LoRA (save_pretrained with path_initial_model_for_weight_conversion)",
            )
        if self._raw.get("use_qalora"):
            self._warnings.append("use_qalora is ignored: tensors of full width are plain LoRA")

    def _note_unknown(self) -> None:
        known = IGNORED | REFUSED_WHEN_SET.keys()
        unknown = [key for key, value in self._raw.items() if key not in known and value]
        if unknown:
            listed = ", ".join(map(shown, unknown[:20]))
            self._warnings.append(f"adapter_config.json: settings not known here: {listed}")

    def _number(self, key: str, read: Callable[[object], V | None], need: str, fallback: V) -> V:
        if key not in self._raw:
            text = "missing; PEFT would assume 8, but a wrong guess scales the adapter wrongly"
            self._unscalable(key, text)
            return fallback
        value = read(self._raw[key])
        if value is None:
            self._unscalable(key, f"{_shown(self._raw[key])} is not {need} of usable size")
            return fallback
        return value

    def _flag(self, key: str) -> bool:
        value = self._raw.get(key)
        if value is not None and not isinstance(value, bool):
            self._unscalable(key, f"{_shown(value)} is neither true nor false")
        return value is True

    def _patterns(self, key: str, read: Callable[[object], V | None], need: str) -> PatternTable[V]:
        raw = self._raw.get(key) or {}
        if not isinstance(raw, dict) or len(raw) > MAX_PATTERNS:
            self._unscalable(key, f"must be an object of at most {MAX_PATTERNS} entries")
            return PatternTable([])
        pairs: list[tuple[str, V]] = []
        for name, item in raw.items():
            value = read(item)
            if value is None:
                self._unscalable(key, f"{shown(name)}: {_shown(item)} is not {need} of usable size")
            else:
                pairs.append((name, value))
        try:
            return PatternTable(pairs)
        except PatternRefused as error:
            self._unscalable(key, str(error))
            return PatternTable([])

    def _targets(self) -> tuple[str, ...] | None:
        raw = self._raw.get("target_modules")
        if isinstance(raw, list) and all(isinstance(item, str) for item in raw):
            return None if "all-linear" in raw else tuple(raw)
        if raw is not None and not isinstance(raw, str | dict):
            self._fault("target_modules", f"{_shown(raw)} is neither a list of names nor a pattern")
        return None

    def _layers(self) -> frozenset[int] | None:
        raw = self._raw.get("layers_to_transform")
        layers = [raw] if isinstance(raw, int) and not isinstance(raw, bool) else raw
        if layers is None:
            return None
        if isinstance(layers, list) and all(type(item) is int for item in layers):
            return frozenset(layers)
        self._fault("layers_to_transform", f"{_shown(raw)} is not a list of layer numbers")
        return None

    def _text(self, key: str) -> str:
        raw = self._raw.get(key)
        return shown(raw) if isinstance(raw, str) else ""

    def _bias(self) -> str:
        raw = self._raw.get("bias") or "none"
        if raw not in BIASES:
            self._fault("bias", f"{_shown(raw)} is none of {', '.join(BIASES)}")
            return "none"
        return str(raw)

    def _names(self, key: str) -> tuple[str, ...]:
        raw = self._raw.get(key) or []
        if isinstance(raw, list) and all(isinstance(item, str) for item in raw):
            return tuple(raw)
        self._fault(key, f"{_shown(raw)} is not a list of names")
        return ()

    def _tokens(self) -> dict[str, tuple[int, ...]]:
        """PEFT: a list means the embeddings; an object names modules by their last word."""
        key, raw = "trainable_token_indices", self._raw.get("trainable_token_indices") or {}
        lists = raw if isinstance(raw, dict) else {EMBEDDING: raw}
        found: dict[str, tuple[int, ...]] = {}
        for name, items in lists.items():
            module = name.rpartition(".")[2]
            if module not in OUTER:
                self._fault(key, f"{shown(name)}: only {' and '.join(OUTER)} have token rows")
            elif module in found:
                self._fault(key, f"{module} is given twice")
            else:
                found[module] = self._token_list(key, items)
        return found

    def _token_list(self, key: str, items: object, *, most: int = MAX_TOKENS) -> tuple[int, ...]:
        raw = self._raw.get(key) if items is None else items
        if raw is None:
            return ()
        if not isinstance(raw, list) or len(raw) > most:
            self._fault(key, f"must be a list of at most {most} token ids")
            return ()
        if not all(type(item) is int and 0 <= item < MAX_TOKEN for item in raw):
            self._fault(key, f"{_shown(raw)} is not a list of token ids")
            return ()
        if items is not None and len(set(raw)) < len(raw):
            self._fault(key, "names a token twice")
        return tuple(raw)


def _rank(value: object) -> int | None:
    return value if type(value) is int and 0 < value <= MAX_RANK else None


def _alpha(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= MAX_ALPHA else None  # NaN compares false


def _shown(value: object) -> str:
    """A JSON value, short."""
    try:
        return shown(json.dumps(value))
    except (ValueError, RecursionError):  # an integer with too many digits
        return "a value too large to show"
