"""What one PEFT adapter directory holds: modules, ranks, scales, and the adapter's identity.

The digest is a hash of meaning. It covers, per module in canonical order, the scale (in which r,
alpha, use_rslora and their patterns have their whole effect), and dtype, shape and bytes of A,
B and whatever else the module has; then which tokens' rows it trains, and which tokens invoke it.
File order, key spelling, training settings and metadata do not enter it, nor do copies of the
base's own weights.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import ne
from pathlib import Path

from adapters.config import MAX_CONFIG_BYTES, AdapterConfig, read_config
from adapters.errors import AdapterInvalid
from adapters.faults import PLAIN, declared_faults, shape_faults, with_copy
from adapters.keys import (
    EMBEDDING,
    HEAD,
    OUTER,
    OUTSIDE,
    Foreign,
    LoraKey,
    Part,
    Site,
    parse_key,
    trained_name,
)  # fmt: skip
from adapters.other_layouts import advice
from adapters.pattern_grammar import PatternRefused
from adapters.tensor_file import TensorFile, TensorInfo, open_regular, shown

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
DIGEST_VERSION = "adapter digest 1"
LISTED = 100  # names spelled out per problem


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleLora:
    """What an adapter does to one module.

    A linear layer: y = m ((W x + scale B A x) - b) + b', where m is DoRA's, b the base's bias and
    b' its replacement, each where it has one; without DoRA, scale times the LoRA bias is added.
    """

    site: Site
    rank: int  # 0 when it has no LoRA of its own
    scale: float
    parts: Mapping[Part, TensorInfo]

    @property
    def name(self) -> str:
        return self.site.name

    @property
    def a(self) -> TensorInfo:
        """[rank, input width]; of the embedding [rank, vocabulary]"""
        return self.parts[Part.A]

    @property
    def b(self) -> TensorInfo:
        """[output width, rank]"""
        return self.parts[Part.B]

    @property
    def acts(self) -> bool:
        """It has more than a copy of the base's own weight."""
        return self.parts.keys() != {Part.BASE_WEIGHT}

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterManifest:
    directory: Path
    digest: str  # 64 lowercase hexadecimal digits
    modules: Mapping[Site, ModuleLora]  # sorted
    base_model: str  # as the trainer named it
    base_fingerprint: str  # "" when nobody wrote it down
    tokens: Mapping[str, tuple[int, ...]]  # rows trained, of embed_tokens and lm_head
    invocation: tuple[int, ...]  # aLoRA: the tokens from which on it is active
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
        return sum(module.nbytes for module in self.modules.values())


class Draft:
    """A directory as far as it could be read, with every fault found on the way."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self.unmatched: list[str] = []  # tensors that mean nothing here
        self.modules: dict[Site, ModuleLora] = {}
        self._again: list[tuple[TensorInfo, TensorInfo]] = []  # saved twice, to be equal
        self.base_model = self.base_fingerprint = ""
        self._config = self._read_config()
        tensors = self._read_tensors()
        if self._config:
            self.base_model = self._config.base_model
            self.base_fingerprint = self._config.base_fingerprint
            self.warnings += self._config.warnings
        found = self._sorted_out(tensors)
        self._join_rows(found)
        try:
            self._build(found)
        except PatternRefused as error:
            self.problems.append(f"{CONFIG_FILE}: {error}")
        if self._config:
            self._check_outer(self._config)
            self._note_hints(self._config)
        self._compare_twins()

    @property
    def invocation(self) -> tuple[int, ...]:
        """The tokens from which on an activated LoRA (aLoRA) is active; () for any other."""
        return self._config.invocation if self._config else ()

    @property
    def tokens(self) -> Mapping[str, tuple[int, ...]]:
        """Those whose rows are trained, of embed_tokens and lm_head."""
        return self._config.tokens if self._config else {}

    @property
    def tied(self) -> bool:
        """Whether its changes to embeddings and head are one, where the base ties those."""
        return self._config is not None and self._config.tied

    @property
    def shares_tokens(self) -> bool:
        """Whether the head's rows are said to be the embeddings', which PEFT stores once."""
        rows, head = (self.tokens.get(name) for name in (EMBEDDING, HEAD))
        return rows is not None and rows == head and not self._has(HEAD, Part.TOKENS)

    def manifest(self) -> AdapterManifest:
        """Raises AdapterInvalid with all problems."""
        if self.problems:
            raise AdapterInvalid(self.problems)
        assert self._config is not None, "without a config there is a problem"
        return AdapterManifest(
            directory=self.directory,
            digest=self._digest(self._config),
            modules={site: module for site, module in self.modules.items() if module.acts},
            base_model=self.base_model,
            base_fingerprint=self.base_fingerprint,
            tokens=self._config.tokens,
            invocation=self._config.invocation,
            warnings=tuple(self.warnings),
        )

    def _digest(self, config: AdapterConfig) -> str:
        hasher = hashlib.sha256(DIGEST_VERSION.encode())
        with TensorFile.open(self.directory / WEIGHTS_FILE) as file:
            for module in filter(lambda module: module.acts, self.modules.values()):
                scale = (module.scale + 0.0).hex()  # -0.0 means 0.0
                hasher.update(f"\n{module.name} {scale}\n".encode())
                for part, tensor in sorted(module.parts.items()):
                    if file.tensors.get(tensor.name) != tensor:
                        raise AdapterInvalid([f"{WEIGHTS_FILE}: changed while it was read"])
                    if part is Part.BASE_WEIGHT:
                        continue
                    named = "" if part in PLAIN else f"{part} "
                    hasher.update(f"{named}{tensor.dtype} {tensor.shape}\n".encode())
                    for chunk in file.chunks(tensor):
                        hasher.update(chunk)
        for name, ids in sorted(config.tokens.items()):
            hasher.update(f"\ntokens {name} {list(ids)}\n".encode())
        if config.invocation:
            hasher.update(f"\ninvocation {list(config.invocation)}\n".encode())
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
            if not path.exists():
                self.problems += advice(self.directory)
            return {}

    def _sorted_out(self, tensors: Mapping[str, TensorInfo]) -> dict[Site, dict[Part, TensorInfo]]:
        """Tensors by module and part; those that have none become problems."""
        found: dict[Site, dict[Part, TensorInfo]] = {}
        foreign: dict[Foreign, list[str]] = {}
        twice: list[str] = []
        for name, tensor in tensors.items():
            key = parse_key(name)
            if not isinstance(key, LoraKey):
                foreign.setdefault(key, []).append(name)
            elif (twin := found.setdefault(key.site, {}).get(key.part)) is not None:
                if key.part is Part.WEIGHT and _alike(twin, tensor):
                    self._again.append((twin, tensor))
                else:
                    twice.append(name)
            else:
                found[key.site][key.part] = tensor
        self.unmatched = [shown(name) for names in foreign.values() for name in names]
        self._list_faults(((kind.value, names) for kind, names in foreign.items()), WEIGHTS_FILE)
        self._list_faults([("tensors given twice under two spellings", twice)], WEIGHTS_FILE)
        return dict(sorted(found.items()))

    def _build(self, found: dict[Site, dict[Part, TensorInfo]]) -> None:
        faults: dict[str, list[str]] = {}
        for site, stored in found.items():
            parts = with_copy(site, stored, self._config)
            broken = list(shape_faults(site, parts))
            for fault in [*broken, *declared_faults(site, parts, self._config)]:
                faults.setdefault(fault, []).append(site.name)
            if broken:
                continue
            rank = parts[Part.A].shape[0] if Part.A in parts else 0
            scale = self._scale(site, parts, self._config) if rank and self._config else 0.0
            self.modules[site] = ModuleLora(site=site, rank=rank, scale=scale, parts=parts)
        self._list_faults(faults.items(), WEIGHTS_FILE)
        if not (any(module.rank for module in self.modules.values()) or self.problems):
            self.problems.append(f"{WEIGHTS_FILE}: holds no LoRA tensors")

    def _check_outer(self, config: AdapterConfig) -> None:
        """What the config promises of embeddings and head must be in the file."""
        for name in config.saved:
            module = name.rpartition(".")[2]
            if module not in OUTER:
                text = f"{shown(name)}: only {' and '.join(OUTER)} can be served whole"
                self.problems.append(f"{CONFIG_FILE}: modules_to_save: {text}")
            else:
                self._require(module, Part.WEIGHT, "modules_to_save")
        for module in config.tokens:
            if not (module == HEAD and self.shares_tokens):
                self._require(module, Part.TOKENS, "trainable_token_indices")

    def _join_rows(self, found: dict[Site, dict[Part, TensorInfo]]) -> None:
        """Where a head is tied, PEFT may save its token rows beside the embeddings', which it
        shares with them."""
        mine, head = (found.get(Site(OUTSIDE, name), {}) for name in (EMBEDDING, HEAD))
        rows, again = mine.get(Part.TOKENS), head.get(Part.TOKENS)
        if rows and again and HEAD not in self.tokens and _alike(rows, again):
            self._again.append((rows, head.pop(Part.TOKENS)))
            if not head:
                del found[Site(OUTSIDE, HEAD)]

    def _compare_twins(self) -> None:
        """``save_embedding_layers`` beside ``modules_to_save`` writes the same weight twice."""
        if not self._again:
            return
        with TensorFile.open(self.directory / WEIGHTS_FILE) as file:
            differ = [
                second.name
                for first, second in self._again
                if any(map(ne, file.chunks(first), file.chunks(second)))
            ]
        text = "tensors given twice under two spellings, with other values"
        self._list_faults([(text, differ)], WEIGHTS_FILE)

    def _require(self, module: str, part: Part, field: str) -> None:
        if not self._has(module, part):
            self.problems.append(
                f"{CONFIG_FILE}: {field}: names {module}, but {WEIGHTS_FILE} has no {part} of it"
            )

    def _has(self, module: str, part: Part) -> bool:
        found = self.modules.get(Site(OUTSIDE, module))
        return found is not None and part in found.parts

    def _scale(self, site: Site, parts: Mapping[Part, TensorInfo], config: AdapterConfig) -> float:
        """Patterns were written for the names that the trainer's model had."""
        name, rank = trained_name(parts[Part.A].name, site), parts[Part.A].shape[0]
        ranks = config.ranks_of(name)
        if rank not in ranks:
            self.problems.append(f"{name}: rank {ranks[0]} by the config, {rank} by its tensors")
        elif ranks[0] != rank:
            # Saving sorts the keys, so overlapping patterns may come back in another order.
            self.warnings.append(f"{name}: rank_pattern is ambiguous; its tensors have rank {rank}")
        alphas = config.alphas_of(name)
        if len(set(alphas)) > 1:
            listed = ", ".join(f"{alpha:g}" for alpha in alphas)
            self.warnings.append(f"{name}: alpha_pattern is ambiguous ({listed}); the first counts")
        return config.scale(alphas[0], rank)

    def _note_hints(self, config: AdapterConfig) -> None:
        if config.targets is not None:
            untouched = [t for t in config.targets if not self._touched_by(t)]
            self._note("target_modules without tensors", untouched)
            acting = [site for site, module in self.modules.items() if module.rank]
            unnamed = [s.name for s in acting if not _targeted(s.name, config.targets)]
            self._note("applied though target_modules does not name them", unnamed)
        if config.layers is not None:
            outside = [
                site.name
                for site, module in self.modules.items()
                if module.rank and site.layer not in config.layers
            ]
            self._note("applied though layers_to_transform leaves them out", outside)
        for field, table in (("rank_pattern", config.ranks), ("alpha_pattern", config.alphas)):
            self._note(f"{field}: keys that match no module of the adapter", table.unused)

    def _touched_by(self, target: str) -> bool:
        return any(_targeted(site.name, [target]) for site in self.modules)

    def _note(self, text: str, names: list[str]) -> None:
        if names:
            self.warnings.append(f"{text}: {listed(names)}")

    def _list_faults(self, faults: Iterable[tuple[str, list[str]]], file: str) -> None:
        self.problems += [f"{file}: {text}: {listed(names)}" for text, names in faults if names]


def _alike(one: TensorInfo, other: TensorInfo) -> bool:
    return (one.dtype, one.shape) == (other.dtype, other.shape)


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
