"""What a container file says, and what its build would install, without a daemon to build it."""

import json
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


@dataclass(frozen=True, slots=True)
class Image:
    """A container file, as instructions: (word, rest of the line), continued lines joined."""

    file: Path
    instructions: tuple[tuple[str, str], ...]

    @classmethod
    def read(cls, name: str) -> "Image":
        file = DEPLOY / f"{name}.Dockerfile"
        lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
        joined = "\n".join(lines).replace("\\\n", " ").splitlines()
        parts = (line.split(maxsplit=1) for line in joined if line.strip())
        return cls(file, tuple((word, rest) for word, rest in parts))

    def all(self, word: str) -> list[str]:
        return [rest for found, rest in self.instructions if found == word]

    def last(self, word: str) -> str:
        return self.all(word)[-1]

    @property
    def sources(self) -> list[str]:
        """What is copied from the repository."""
        copies = [shlex.split(rest) for rest in self.all("COPY")]
        return [name for words in copies if not words[0].startswith("--") for name in words[:-1]]

    @property
    def installed(self) -> str:
        """The requirement that pip is given, as ``.[gateway]``."""
        (line,) = [rest for rest in self.all("RUN") if "pip install" in rest]
        return shlex.split(line)[-1]

    @property
    def command(self) -> list[str]:
        """Entry point and default arguments."""
        found: list[str] = [*json.loads(self.last("ENTRYPOINT")), *json.loads(self.last("CMD"))]
        return found

    def install(self, folder: Path) -> Path:
        """Our package from what is copied and nothing else, built as pip does; its requirements
        are this environment's. Where it lies now."""
        source, target = folder / "src", folder / "installed"
        source.mkdir(parents=True)
        for name in self.sources:
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, source / name, ignore=ignored)
            else:
                shutil.copy(ROOT / name, source / name)
        ran = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation",
             "--no-index", "--target", str(target), self.installed],
            cwd=source, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        return target
