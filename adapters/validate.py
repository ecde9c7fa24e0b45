"""Does an adapter fit this base? Every tensor is accounted for, or the adapter is refused.

Shapes are compared module by module and every value is checked to be finite. Copies of the base's
own weights, which PEFT saves beside LoRA on embeddings and head, must be the base's. An adapter
that says it was trained on another base is refused too, unless the caller insists. Needs no torch.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from adapters.base_spec import BaseSpec, same_name, values_digest
from adapters.errors import AdapterInvalid, WrongBase
from adapters.keys import EMBEDDING, HEAD, Part
from adapters.manifest import CONFIG_FILE, WEIGHTS_FILE, AdapterManifest, Draft, ModuleLora, listed
from adapters.tensor_file import TensorFile
from adapters.values import largest

MAX_FLOAT16 = 65_504.0
MAX_FLOAT32 = 3.4e38
ROUNDED = (
    ". If they are the base's, rounded to bfloat16: save without them (save_embedding_layers=False)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleReport:
    name: str
    rank: int  # 0: no LoRA of its own, only what ``parts`` names
    scale: float
    parts: tuple[str, ...]  # lora_A, lora_B, lora_magnitude_vector, bias, weight ...
    tensors: tuple[str, ...]  # the parts as the file names them
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What was accepted. ``modules`` covers every tensor of the file."""

    digest: str
    rank: int  # the largest of any module
    targets: tuple[str, ...]
    modules: tuple[ModuleReport, ...]
    nbytes: int
    base_fingerprint: str
    trained_on: str  # as the trainer named the base
    invocation: tuple[int, ...]  # aLoRA: tokens from which on it is active
    unmatched: tuple[str, ...]  # always empty: an adapter with a foreign tensor is refused
    warnings: tuple[str, ...]

    @property
    def tensors(self) -> int:
        return sum(len(module.tensors) for module in self.modules)


def validate(
    source: AdapterManifest | Path | str,
    base: BaseSpec,
    *,
    fingerprint: str = "",
    force: bool = False,
) -> LoadReport:
    """Raises AdapterInvalid with everything that is wrong, not only the first fault.

    Args:
        fingerprint: of the base it was trained on, where the caller knows it.
        force: accept it although it names another base; raises no WrongBase.
    """
    directory = source.directory if isinstance(source, AdapterManifest) else Path(source)
    draft = Draft(directory)
    problems = draft.problems + shape_problems(draft.modules.values(), base)
    problems += _token_problems(draft, base) + _tied_problems(draft, base)
    warnings = list(draft.warnings)
    if draft.modules:
        value_problems, value_warnings = _check_values(draft, base)
        problems += value_problems
        warnings += value_warnings
    foreign, note = _compare_base(draft, base, fingerprint)
    if foreign and not force:
        kind = AdapterInvalid if problems else WrongBase
        raise kind([*problems, foreign])
    if problems:
        raise AdapterInvalid(problems)
    warnings += [text for text in (foreign, note) if text]
    manifest = draft.manifest()
    warnings += _tied_warnings(manifest, base)
    return _report(manifest, draft.modules.values(), base, tuple(warnings))


def examine(directory: Path) -> tuple[Draft, list[str], list[str]]:
    """The adapter as far as it can be read, its problems and warnings, whatever the base is."""
    draft = Draft(directory)
    problems, warnings = list(draft.problems), list(draft.warnings)
    if draft.modules:
        found, notes = _check_values(draft, None)
        problems += found
        warnings += notes
    return draft, problems, warnings


def shape_problems(modules: Iterable[ModuleLora], base: BaseSpec) -> list[str]:
    """One line per tensor whose layer or shape this base does not have."""
    problems = []
    for module in modules:
        if module.site.layer >= base.num_layers:
            problems.append(f"{module.name}: the base has {base.num_layers} layers")
            continue
        inputs, outputs = _shape(module, base)
        needed = _needed(module, inputs, outputs)
        for part, tensor in module.parts.items():
            if tensor.shape != needed[part]:
                text = f"{_letter(part)} is {list(tensor.shape)}, the base needs"
                problems.append(f"{module.name}: {text} {list(needed[part])}")
        if module.rank > max(inputs, outputs):
            problems.append(
                f"{module.name}: rank {module.rank} exceeds the module's width"
                f" of {max(inputs, outputs)}"
            )
    return problems


def _shape(module: ModuleLora, base: BaseSpec) -> tuple[int, int]:
    if module.site.outer:
        sizes = (base.vocab_size, base.hidden_size)
        return sizes if module.site.module == EMBEDDING else (sizes[1], sizes[0])
    return base.shape_of(module.site.module)


def _needed(module: ModuleLora, inputs: int, outputs: int) -> dict[Part, tuple[int, ...]]:
    whole = (inputs, outputs) if module.site.module == EMBEDDING else (outputs, inputs)
    rows = module.parts[Part.TOKENS].shape[0] if Part.TOKENS in module.parts else 0
    return {
        Part.A: (module.rank, inputs),
        Part.B: (outputs, module.rank),
        Part.LORA_BIAS: (outputs,),
        Part.MAGNITUDE: (outputs,),
        Part.BIAS: (outputs,),
        Part.WEIGHT: whole,
        Part.BASE_WEIGHT: whole,
        Part.TOKENS: (rows, whole[1]),
    }


def _token_problems(draft: Draft, base: BaseSpec) -> list[str]:
    """Tokens that the base has not: no row of its tables, and nothing a prompt could say."""
    named = {"alora_invocation_tokens": draft.invocation}
    named |= {f"trainable_token_indices of {name}": ids for name, ids in draft.tokens.items()}
    foreign = {
        field: [token for token in ids if token >= base.vocab_size] for field, ids in named.items()
    }
    return [
        f"{CONFIG_FILE}: {field}: {listed([str(token) for token in tokens])}:"
        f" the base has {base.vocab_size} tokens"
        for field, tokens in foreign.items()
        if tokens
    ]


def _tied_problems(draft: Draft, base: BaseSpec) -> list[str]:
    """What is said once and meant for embeddings and head, and would be applied to one of them."""
    if draft.shares_tokens and not base.tie_word_embeddings:
        return [
            f"{CONFIG_FILE}: trainable_token_indices: names {HEAD}, which this base does not tie to"
            f" {EMBEDDING}, but {WEIGHTS_FILE} has no {Part.TOKENS} of it"
        ]
    whole = {site.module for site, module in draft.modules.items() if site.outer and _tied(module)}
    if not (draft.tied and base.tie_word_embeddings and len(whole) == 1):
        return []
    (name,) = whole
    return [
        f"{CONFIG_FILE}: ensure_weight_tying: this base ties {EMBEDDING} and {HEAD}, but"
        f" {WEIGHTS_FILE} changes {name} alone"
    ]


def _tied(module: ModuleLora) -> bool:
    """Changed as a whole: of rows of tokens PEFT stores one copy."""
    return Part.A in module.parts or Part.WEIGHT in module.parts


def _letter(part: Part) -> str:
    return {Part.A: "A", Part.B: "B"}.get(part, str(part))


def _check_values(draft: Draft, base: BaseSpec | None) -> tuple[list[str], list[str]]:
    """Problems and warnings from one pass over all values."""
    problems: list[str] = []
    broken: list[str] = []
    wide: list[str] = []
    changes = False
    with TensorFile.open(draft.directory / WEIGHTS_FILE) as file:
        for module in draft.modules.values():
            peaks = {part: largest(file, tensor) for part, tensor in module.parts.items()}
            for part, peak in peaks.items():
                scaled = peak * (abs(module.scale) if part in (Part.B, Part.LORA_BIAS) else 1.0)
                if peak > MAX_FLOAT32:
                    broken.append(module.parts[part].name)
                elif scaled > MAX_FLOAT32:
                    broken.append(f"{module.parts[part].name} (after scaling by {module.scale:g})")
                elif scaled > MAX_FLOAT16:
                    wide.append(module.parts[part].name)
            changes = changes or _changes(module, peaks)
            problems += _copy_problems(file, module, base) if base else ()
    problems += [f"{WEIGHTS_FILE}: NaN or infinite values in {listed(broken)}"] if broken else []
    warnings = [f"too large for float16: {listed(wide)}"] if wide else []
    if not changes:
        warnings.append("A, B or the scale is zero everywhere: this adapter changes nothing")
    return problems, warnings


def _changes(module: ModuleLora, peaks: dict[Part, float]) -> bool:
    if peaks.keys() - {Part.A, Part.B, Part.LORA_BIAS, Part.BASE_WEIGHT}:
        return True
    low_rank = peaks.get(Part.A, 0) > 0 and peaks.get(Part.B, 0) > 0
    return module.scale != 0 and (low_rank or peaks.get(Part.LORA_BIAS, 0) > 0)


def _copy_problems(file: TensorFile, module: ModuleLora, base: BaseSpec) -> Iterator[str]:
    """PEFT would overwrite the base with these copies: here they must be what the base has."""
    copy = module.parts.get(Part.BASE_WEIGHT)
    known = base.head if module.site.module == HEAD else base.embeddings
    if copy is not None and not known and not module.acts:
        yield (
            f"{copy.name}: a whole weight that modules_to_save does not name, and the base has"
            " none to compare it with"
        )
    elif copy is not None and known and values_digest(file, copy.name) != known:
        yield (
            f"{copy.name}: differs from the base's own weights, so the adapter was trained on"
            " another base, or on embeddings that changed too; save those with modules_to_save"
            + (ROUNDED if copy.dtype == "BF16" else "")
        )


def _compare_base(draft: Draft, base: BaseSpec, fingerprint: str) -> tuple[str, str]:
    """(why this is another base or "", a warning or "")."""
    given = fingerprint or draft.base_fingerprint
    if given:
        if given == base.fingerprint:
            return "", ""
        text = f"trained on a base of fingerprint {given[:16]}; this base has"
        return f"{CONFIG_FILE}: {text} {base.fingerprint[:16]}", ""
    if not draft.base_model:
        return "", f"{CONFIG_FILE}: names no base; only shapes could be compared"
    if not same_name(draft.base_model, base):
        known = " or ".join(name.rstrip("/").rpartition("/")[2] for name in base.names)
        text = f"base_model_name_or_path: {draft.base_model}, but this base is {known}"
        return f"{CONFIG_FILE}: {text}", ""
    return "", (
        f"trained on {draft.base_model}: PEFT files carry no fingerprint of their base, so"
        " only its name and shapes could be compared"
    )


def _tied_warnings(manifest: AdapterManifest, base: BaseSpec) -> list[str]:
    touched = {site.module: module for site, module in manifest.modules.items() if site.outer}
    if not base.tie_word_embeddings or len(touched) != 1:
        return []
    ((name, module),) = touched.items()
    if Part.TOKENS in module.parts and name == EMBEDDING:
        return []
    other = HEAD if name == EMBEDDING else EMBEDDING
    return [f"{name} is tied to {other} in this base, but only {name} is changed, as in PEFT"]


def _report(
    manifest: AdapterManifest,
    read: Iterable[ModuleLora],
    base: BaseSpec,
    warnings: tuple[str, ...],
) -> LoadReport:
    """``read``: every module of the file, also those of which it only repeats the base's weight."""
    modules = tuple(
        ModuleReport(
            name=module.name,
            rank=module.rank,
            scale=module.scale,
            parts=tuple(map(str, module.parts)),
            tensors=tuple(tensor.name for tensor in module.parts.values()),
            nbytes=module.nbytes,
        )
        for module in read
    )
    return LoadReport(
        digest=manifest.digest,
        rank=manifest.rank,
        targets=manifest.targets,
        modules=modules,
        nbytes=manifest.nbytes,
        base_fingerprint=base.fingerprint,
        trained_on=manifest.base_model,
        invocation=manifest.invocation,
        unmatched=(),
        warnings=warnings,
    )
