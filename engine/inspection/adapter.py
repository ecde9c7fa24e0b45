"""Would this adapter be served, on a base or on any? The upload's own validation says."""

from pathlib import Path

import msgspec

from adapters.base_spec import BaseSpec
from adapters.errors import AdapterInvalid, BaseUnreadable
from adapters.manifest import CONFIG_FILE, Draft
from adapters.validate import examine, validate
from engine.inspection.finding import Finding, amount

NO_BASE = "no base was named (--base DIR): only the files themselves were checked"


def inspect_adapter(path: Path, base: BaseSpec | None, *, force: bool = False) -> Finding:
    draft, reasons, warnings = examine(path)
    facts = _facts(draft)
    if base is None:
        warnings = [*warnings, NO_BASE]
    else:
        facts["base fingerprint"] = base.fingerprint
        try:
            report = validate(path, base, force=force)
            reasons, warnings = [], list(report.warnings)
        except AdapterInvalid as error:
            reasons = list(error.problems)
    if not reasons:
        facts["digest"] = draft.manifest().digest
    return Finding(kind="adapter", path=str(path), facts=facts, reasons=reasons, warnings=warnings)


def read_base(path: Path) -> BaseSpec:
    """A checkpoint's directory, or the ``base.json`` that a server wrote. Raises BaseUnreadable."""
    if path.is_dir():
        return BaseSpec.from_checkpoint(path)
    try:
        return msgspec.json.decode(path.read_bytes(), type=BaseSpec)
    except (OSError, msgspec.DecodeError) as error:
        raise BaseUnreadable(f"{path}: neither a checkpoint nor a base.json ({error})") from error


def _facts(draft: Draft) -> dict[str, str | int]:
    modules = list(draft.modules.values())
    ranks = sorted({module.rank for module in modules if module.rank})
    scales = sorted({module.scale for module in modules if module.rank})
    layers = sorted({module.site.layer for module in modules if not module.site.outer})
    facts: dict[str, str | int] = {
        "trained on": draft.base_model or f"not said in {CONFIG_FILE}",
        "modules": len(modules),
        "targets": ", ".join(sorted({module.site.module for module in modules})) or "none",
        "ranks": _span(ranks),
        "scales": _span(scales),
    }
    if layers:
        facts["layers"] = f"{layers[0]} to {layers[-1]}"
    if draft.invocation:
        facts["invoked by tokens"] = ", ".join(map(str, draft.invocation))
    parts = sorted({str(part) for module in modules for part in module.parts})
    facts["tensors"] = ", ".join(parts) or "none"
    facts["size"] = amount(sum(module.nbytes for module in modules))
    return facts


def _span(values: list[int] | list[float]) -> str:
    if not values:
        return "none"
    texts = [f"{value:g}" for value in values]
    return ", ".join(texts) if len(texts) <= 8 else f"{texts[0]} to {texts[-1]}"
