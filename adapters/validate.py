"""Does an adapter fit this base? Every tensor is accounted for, or the adapter is refused.

Shapes are compared module by module and every value is checked to be finite. Needs no torch.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from adapters.base_spec import BaseSpec
from adapters.errors import AdapterInvalid
from adapters.manifest import WEIGHTS_FILE, AdapterManifest, Draft, ModuleLora, listed
from adapters.tensor_file import TensorFile
from adapters.values import largest

MAX_FLOAT16 = 65_504.0
MAX_FLOAT32 = 3.4e38


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleReport:
    name: str
    rank: int
    scale: float
    tensors: tuple[str, str]  # A and B as the file names them
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
    warnings: tuple[str, ...]

    @property
    def tensors(self) -> int:
        return 2 * len(self.modules)


def validate(source: AdapterManifest | Path | str, base: BaseSpec) -> LoadReport:
    """Raises AdapterInvalid with everything that is wrong, not only the first fault."""
    directory = source.directory if isinstance(source, AdapterManifest) else Path(source)
    draft = Draft(directory)
    problems = draft.problems + shape_problems(draft.modules.values(), base)
    warnings = list(draft.warnings)
    if draft.modules:
        value_problems, value_warnings = _check_values(draft)
        problems += value_problems
        warnings += value_warnings
    if problems:
        raise AdapterInvalid(problems)
    if draft.base_model:
        warnings.append(
            f"trained on {draft.base_model}: PEFT files carry no fingerprint of their base, so"
            " only shapes could be compared"
        )
    return _report(draft.manifest(), base, tuple(warnings))


def shape_problems(modules: Iterable[ModuleLora], base: BaseSpec) -> list[str]:
    """One line per module whose layer or tensor shapes this base does not have."""
    problems = []
    for module in modules:
        if module.site.layer >= base.num_layers:
            problems.append(f"{module.name}: the base has {base.num_layers} layers")
            continue
        inputs, outputs = base.shape_of(module.site.module)
        for letter, found, needed in (
            ("A", module.a.shape, (module.rank, inputs)),
            ("B", module.b.shape, (outputs, module.rank)),
        ):
            if found != needed:
                text = f"{letter} is {list(found)}, the base needs {list(needed)}"
                problems.append(f"{module.name}: {text}")
        if module.rank > min(inputs, outputs):
            problems.append(f"{module.name}: rank {module.rank} exceeds the module's own width")
    return problems


def _check_values(draft: Draft) -> tuple[list[str], list[str]]:
    """Problems and warnings from one pass over all values."""
    broken: list[str] = []
    wide: list[str] = []
    changes = False
    with TensorFile.open(draft.directory / WEIGHTS_FILE) as file:
        for module in draft.modules.values():
            peaks = [largest(file, tensor) for tensor in (module.a, module.b)]
            if max(peaks) > MAX_FLOAT32:
                broken.append(module.name)
            scaled = peaks[1] * abs(module.scale)
            if scaled > MAX_FLOAT32:
                broken.append(f"{module.name} (after scaling by {module.scale:g})")
            if max(peaks[0], scaled) > MAX_FLOAT16:
                wide.append(module.name)
            changes = changes or (peaks[0] > 0 and scaled > 0)
    problems = [f"{WEIGHTS_FILE}: NaN or infinite values in {listed(broken)}"] if broken else []
    warnings = [f"too large for float16: {listed(wide)}"] if wide else []
    if not changes:
        warnings.append("A, B or the scale is zero everywhere: this adapter changes nothing")
    return problems, warnings


def _report(manifest: AdapterManifest, base: BaseSpec, warnings: tuple[str, ...]) -> LoadReport:
    modules = tuple(
        ModuleReport(
            name=module.name,
            rank=module.rank,
            scale=module.scale,
            tensors=(module.a.name, module.b.name),
            nbytes=module.a.nbytes + module.b.nbytes,
        )
        for module in manifest.modules.values()
    )
    return LoadReport(
        digest=manifest.digest,
        rank=manifest.rank,
        targets=manifest.targets,
        modules=modules,
        nbytes=manifest.nbytes,
        base_fingerprint=base.fingerprint,
        warnings=warnings,
    )
