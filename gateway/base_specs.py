"""What is known of the shape of each base that this gateway serves."""

from pathlib import Path

from adapters.base_spec import BaseSpec
from adapters.errors import BaseUnreadable
from gateway.catalog.bases import Bases, ServedBase
from gateway.catalog.intake import read_base
from gateway.config import ConfigError, Settings
from gateway.errors import ResourceNotFound


def read_specs(settings: Settings) -> dict[str, BaseSpec]:
    """By served name, the first base first; empty where nobody wrote down what the one base is.

    Several are told apart by their fingerprints, so each must be known. Raises ConfigError.
    """
    if not settings.other_bases and not settings.base_spec_file.is_file():
        return {}
    specs = {settings.served_model_name: _read(settings.base_spec_file, settings.model_dir)}
    for base in settings.other_bases:
        spec = _read(base.spec_file, base.model_dir)
        same = [name for name, other in specs.items() if other.fingerprint == spec.fingerprint]
        if same:
            raise ConfigError(f"other_bases: {base.name!r} and {same[0]!r} are the same model")
        specs[base.name] = spec
    return specs


def bases_of(settings: Settings, specs: dict[str, BaseSpec]) -> Bases:
    found = [ServedBase(name, spec.fingerprint) for name, spec in specs.items()]
    return Bases(found or [ServedBase(settings.served_model_name)])


def _read(file: Path | None, model_dir: Path) -> BaseSpec:
    try:
        if file is not None and file.is_file():
            return read_base(file)
        return BaseSpec.from_checkpoint(model_dir)
    except (ResourceNotFound, BaseUnreadable) as error:
        raise ConfigError(f"what base lies in {model_dir} is not known: {error}") from error
