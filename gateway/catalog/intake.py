"""From an adapter directory to stored bytes: checked against the served base, kept by digest."""

from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from adapters.base_spec import BaseSpec
from adapters.errors import AdapterError
from adapters.stores import Store
from adapters.validate import validate
from engine.protocol import AdapterRef
from gateway.catalog.service import Facts
from gateway.errors import InvalidRequest, ResourceNotFound


@dataclass(frozen=True, slots=True)
class Intake:
    """Blocking: reads the adapter whole."""

    base: BaseSpec
    store: Store

    def admit(self, folder: Path) -> tuple[AdapterRef, Facts]:
        """Raises InvalidRequest with everything that is wrong; then nothing was stored."""
        if not folder.is_dir():
            raise InvalidRequest(f"{folder}: no such directory", param="path")
        try:
            report = validate(folder, self.base)
            digest = self.store.put(folder)
        except AdapterError as error:
            raise InvalidRequest(f"{folder}: {error}", param="path") from error
        except OSError as error:
            raise InvalidRequest(f"{folder}: {error.strerror or error}", param="path") from error
        if digest != report.digest:
            raise InvalidRequest(f"{folder}: changed while it was read; try again", param="path")
        facts = Facts.of(report, asdict(report))
        return AdapterRef(digest, report.rank, report.invocation), facts


def read_base(file: Path) -> BaseSpec:
    """What ``loratorio serve`` wrote down about the model it serves. Raises ResourceNotFound."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=BaseSpec)
    except FileNotFoundError as error:
        raise ResourceNotFound(
            f"{file}: not found. `loratorio serve` writes it; start that once with this --data-dir"
        ) from error
    except (OSError, msgspec.DecodeError) as error:
        raise ResourceNotFound(f"{file}: cannot be read ({error})") from error
