"""The server's own secrets, with which keys are hashed. A stolen database alone proves no key.

The file has one ``version:hex`` line for each pepper; the last one hashes new keys and the others
keep older keys valid. Gateways that share a database share the peppers.
"""

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from gateway.config import ConfigError, Secret

LENGTH = 32  # bytes of a generated pepper
MIN_LENGTH = 16


@dataclass(frozen=True, slots=True)
class Peppers:
    versions: dict[int, bytes] = field(repr=False)
    current: int

    def __getitem__(self, version: int) -> bytes:
        return self.versions[version]

    def get(self, version: int) -> bytes | None:
        return self.versions.get(version)

    @classmethod
    def parse(cls, text: str, source: str) -> Self:
        """Raises ConfigError."""
        versions: dict[int, bytes] = {}
        for line in text.split():
            try:
                version, _, value = line.rpartition(":")
                number, pepper = int(version or "1"), bytes.fromhex(value)
            except ValueError as error:
                raise ConfigError(f"{source}: not lines of version:hexadecimal") from error
            if len(pepper) < MIN_LENGTH:
                raise ConfigError(f"{source}: a pepper has at least {MIN_LENGTH} bytes")
            versions[number] = pepper
        if not versions:
            raise ConfigError(f"{source}: holds no pepper")
        return cls(versions, number)

    @classmethod
    def load(cls, given: Secret | None, file: Path) -> Self:
        """The given one, or the file's; the file is made, mode 0600, when it does not exist.

        Raises ConfigError.
        """
        if given is not None:
            return cls.parse(given.reveal(), "pepper")
        try:
            _create(file)
            return cls.parse(file.read_text("ascii"), str(file))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: cannot read the pepper ({error})") from error


def _create(file: Path) -> None:
    """Whoever comes first makes it, whole: it appears by a link, which never overwrites."""
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(f"1:{secrets.token_hex(LENGTH)}\n")
        stream.flush()
        os.fsync(stream.fileno())
    try:
        os.link(draft, file)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
