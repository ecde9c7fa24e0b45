"""What one PEFT adapter directory holds: modules, ranks, scales, and the adapter's identity.

The digest is a hash of meaning. It covers, per module in canonical order, the scale (in which r,
alpha, use_rslora and their patterns have their whole effect), and dtype, shape and bytes of A
and B. File order, key spelling, training settings and metadata do not enter it.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from adapters.config import MAX_CONFIG_BYTES, AdapterConfig, read_config
from adapters.errors import AdapterInvalid
from adapters.keys import Foreign, LoraKey, Part, Site, parse_key
from adapters.pattern_grammar import PatternRefused
from adapters.tensor_file import TensorFile, TensorInfo, open_regular, shown
from adapters.values import SERVED

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
PICKLE_FILE = "adapter_model.bin"
DIGEST_VERSION = "adapter digest 1"
LISTED = 12  # names spelled out per problem


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleLora:
    """One adapted linear layer: y += scale * x A^T B^T."""

    site: Site
    rank: int
    scale: float
    a: TensorInfo  # [rank, input width]
    b: TensorInfo  # [output width, rank]

    @property
    def name(self) -> str:
        return self.site.name


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterManifest:
    directory: Path
    digest: str  # 64 lowercase hexadecimal digits
    modules: Mapping[Site, ModuleLora]  # sorted
    base_model: str  # as the trainer named it
    warnings: tuple[str, ...]

    @staticmethod
    def read(directory: Path | str) -> "AdapterManifest":
        """Everything that can be known without a base. Raises AdapterInvalid with all faults."""
        return Draft(Path(directory)).manifest()

    @property
    def rank(self) -> int:
        return max(module.rank for module in self.modules.values())

    @property
    def targets(self) -> tuple[str, ...]:
        """Kinds of modules it touches, e.g. ("k_proj", "q_proj")."""
        return tuple(sorted({site.module for site in self.modules}))

    @property
    def nbytes(self) -> int:
        return sum(module.a.nbytes + module.b.nbytes for module in self.modules.values())


class Draft:
    """A directory as far as it could be read, with every fault found on the way."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self.modules: dict[Site, ModuleLora] = {}
        self.base_model = ""
        config = self._read_config()
        tensors = self._read_tensors()
        if config:
            self.base_model = config.base_model
            self.warnings += config.warnings
        pairs = self._pair(tensors)
        try:
            self._build(pairs, config)
        except PatternRefused as error:
            self.problems.append(f"{CONFIG_FILE}: {shown(str(error))}")
        if config:
            self._note_hints(config)

    def manifest(self) -> AdapterManifest:
        """Raises AdapterInvalid with all problems."""
        if self.problems:
            raise AdapterInvalid(self.problems)
        return AdapterManifest(
            directory=self.directory,
            digest=self._digest(),
            modules=self.modules,
            base_model=self.base_model,
            warnings=tuple(self.warnings),
        )

    def _digest(self) -> str:
        hasher = hashlib.sha256(DIGEST_VERSION.encode())
        with TensorFile.open(self.directory / WEIGHTS_FILE) as file:
            for module in self.modules.values():
                scale = (module.scale + 0.0).hex()  # -0.0 means 0.0
                hasher.update(f"\n{module.name} {scale}\n".encode())
                for tensor in (module.a, module.b):
                    if file.tensors.get(tensor.name) != tensor:
                        raise AdapterInvalid([f"{WEIGHTS_FILE}: changed while it was read"])
                    hasher.update(f"{tensor.dtype} {tensor.shape}\n".encode())
                    for chunk in file.chunks(tensor):
                        hasher.update(chunk)
        return hasher.hexdigest()

    def _read_config(self) -> AdapterConfig | None:
        try:
            data = read_small_file(self.directory / CONFIG_FILE, MAX_CONFIG_BYTES)
        except AdapterInvalid as error:
            self.problems += error.problems
            return None
        config, problems = read_config(data)
        self.problems += problems
        return config

    def _read_tensors(self) -> Mapping[str, TensorInfo]:
        path = self.directory / WEIGHTS_FILE
        try:
            with TensorFile.open(path) as file:
                return file.tensors
        except AdapterInvalid as error:
            self.problems += error.problems
            if not path.exists() and (self.directory / PICKLE_FILE).exists():
                text = "pickles are not read; save with safe_serialization=True"
                self.problems.append(f"{PICKLE_FILE}: {text}")
            return {}

    def _pair(self, tensors: Mapping[str, TensorInfo]) -> dict[Site, dict[Part, TensorInfo]]:
        pairs: dict[Site, dict[Part, TensorInfo]] = {}
        foreign: dict[Foreign, list[str]] = {}
        twice: list[str] = []
        for name, tensor in tensors.items():
            key = parse_key(name)
            if not isinstance(key, LoraKey):
                foreign.setdefault(key, []).append(name)
            elif key.part in pairs.setdefault(key.site, {}):
                twice.append(name)
            else:
                pairs[key.site][key.part] = tensor
        self._list_faults(((kind.value, names) for kind, names in foreign.items()), WEIGHTS_FILE)
        self._list_faults([("tensors given twice under two spellings", twice)], WEIGHTS_FILE)
        return dict(sorted(pairs.items()))

    def _build(
        self, pairs: dict[Site, dict[Part, TensorInfo]], config: AdapterConfig | None
    ) -> None:
        faults: dict[str, list[str]] = {}
        for site, parts in pairs.items():
            fault = _pair_fault(parts)
            if fault:
                faults.setdefault(fault, []).append(site.name)
                continue
            a, b = parts[Part.A], parts[Part.B]
            rank = a.shape[0]
            scale = self._scale(site.name, rank, config) if config else 0.0
            self.modules[site] = ModuleLora(site=site, rank=rank, scale=scale, a=a, b=b)
        self._list_faults(faults.items(), WEIGHTS_FILE)
        if not (self.modules or self.problems):
            self.problems.append(f"{WEIGHTS_FILE}: holds no LoRA tensors")

    def _scale(self, name: str, rank: int, config: AdapterConfig) -> float:
        ranks = config.ranks.find(name) or [config.rank]
        if rank not in ranks:
            self.problems.append(f"{name}: rank {ranks[0]} by the config, {rank} by its tensors")
        elif ranks[0] != rank:
            # Saving sorts the keys, so overlapping patterns may come back in another order.
            self.warnings.append(f"{name}: rank_pattern is ambiguous; its tensors have rank {rank}")
        alphas = config.alphas.find(name) or [config.alpha]
        if len(set(alphas)) > 1:
            listed = ", ".join(f"{alpha:g}" for alpha in alphas)
            self.warnings.append(f"{name}: alpha_pattern is ambiguous ({listed}); the first counts")
        return config.scale(alphas[0], rank)

    def _note_hints(self, config: AdapterConfig) -> None:
        if config.targets is not None:
            untouched = [t for t in config.targets if not self._touched_by(t)]
            self._note("target_modules without tensors", untouched)
            unnamed = [s.name for s in self.modules if not _targeted(s.name, config.targets)]
            self._note("applied though target_modules does not name them", unnamed)
        if config.layers is not None:
            outside = [site.name for site in self.modules if site.layer not in config.layers]
            self._note("applied though layers_to_transform leaves them out", outside)

    def _touched_by(self, target: str) -> bool:
        return any(_targeted(site.name, [target]) for site in self.modules)

    def _note(self, text: str, names: list[str]) -> None:
        if names:
            self.warnings.append(f"{text}: {listed(names)}")

    def _list_faults(self, faults: Iterable[tuple[str, list[str]]], file: str) -> None:
        self.problems += [f"{file}: {text}: {listed(names)}" for text, names in faults if names]


def listed(names: list[str]) -> str:
    """Names for a message: some of them, and how many more."""
    more = len(names) - LISTED
    text = ", ".join(map(shown, names[:LISTED]))
    return f"{text} and {more} more" if more > 0 else text


def read_small_file(path: Path, limit: int) -> bytes:
    """Raises AdapterInvalid for a symlink, a missing file, or one above ``limit`` bytes."""
    descriptor = open_regular(path)
    try:
        data = os.read(descriptor, limit + 1)
    finally:
        os.close(descriptor)
    if len(data) > limit:
        raise AdapterInvalid([f"{path.name}: more than {limit} bytes"])
    return data


def _targeted(name: str, targets: Iterable[str]) -> bool:
    """PEFT's rule for a list: the exact name or its end after a dot."""
    return any(name == target or name.endswith(f".{target}") for target in targets)


def _pair_fault(parts: Mapping[Part, TensorInfo]) -> str:
    """What is wrong with A and B of one module, base unseen; empty when nothing is."""
    for part in Part:
        if part not in parts:
            return f"{part} is missing for"
        tensor = parts[part]
        if tensor.dtype not in SERVED:
            return f"dtype {tensor.dtype} of {part} (only {', '.join(SERVED)} are served) for"
        if len(tensor.shape) != 2 or 0 in tensor.shape:
            return f"{part} has shape {list(tensor.shape)}, not two positive dimensions, for"
    a, b = parts[Part.A], parts[Part.B]
    if a.shape[0] != b.shape[1]:
        return f"A {list(a.shape)} and B {list(b.shape)} disagree on the rank of"
    return ""
