"""What documents mention in passing is there too: commands, flags, make targets, modules, files."""

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.release.helps import FLAG, flags

ROOT = Path(__file__).parents[2]
IN_PACKAGES = (
    "bench/README.md", "engine/demo/README.md", "gateway/dashboard/README.md", "kernels/NOTES.md",
)  # fmt: skip
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / page for page in IN_PACKAGES)]
)
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^    (.+)$", re.MULTILINE)
SPAN = re.compile(r"`([^`\n]+)`")
LONG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
FILE = re.compile(r"^[\w./-]+\.(py|md|yaml|toml|html)$")
OF_OTHERS = {  # flags that pages name of programs that are not ours
    "--build", "--enable-optimizations", "--from-literal", "--ignore-not-found", "--keep",
    "--local-dir", "--no-deps", "--strict", "--timeout",
}  # fmt: skip
SHELVES = ("bench", "engine", "gateway")  # of modules that are run by ``python -m``


def commands() -> Iterator[tuple[str, str]]:
    """(page, line) of ours, in the text and in blocks."""
    for page in PAGES:
        text = page.read_text("utf-8").replace("\\\n", " ")
        blocks = "\n".join([*BLOCK.findall(text), *INDENTED.findall(text)])
        for line in [*SPAN.findall(text), *blocks.splitlines()]:
            if line.startswith(("loratorio ", "python -m ", "make ", "pytest ")):
                yield named(page), line.partition(" # ")[0].strip()


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


FOUND = sorted(set(commands()))


@cache
def tracked() -> frozenset[str]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
    )  # fmt: skip
    return frozenset(listed.stdout.split())


def ours(words: list[str]) -> frozenset[str]:
    """The flags of a command; of its group where it names no more."""
    known, group = flags(), tuple(words[:1])
    verbs = {path[1] for path in known if path[:1] == group and len(path) > 1}
    named_verb = tuple(word for word in words[1:2] if verbs and not word.startswith("-"))
    return known[group + named_verb]


def source(module: str) -> Path:
    """Of one that is run by ``python -m``."""
    path = ROOT / module.replace(".", "/")
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


def added(file: Path) -> set[str]:
    """The flags that a parser in it takes."""
    return set(re.findall(r'add_argument\(\s*"(--[a-z-]+)"', file.read_text("utf-8")))


def test_there_are_commands_to_look_at():
    assert len(FOUND) > 100


@pytest.mark.parametrize(("page", "line"), FOUND, ids=lambda text: text[:40])
def test_a_command_and_its_flags_exist(page, line):
    program, *words = line.split(" -- ")[0].split()
    given = {flag.partition("=")[0] for flag in words if FLAG.fullmatch(flag.partition("=")[0])}
    if program == "make":
        assert not words or re.search(
            rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE
        )
    elif program == "pytest":
        assert (ROOT / words[0]).exists()
    elif program == "loratorio":
        assert words == ["--version"] or not given - ours(words)
    elif words[1] == "engine":
        assert not given - {"-m"} - ours(["engine", *words[2:]])
    elif words[1].startswith(SHELVES):
        assert not given - {"-m"} - added(source(words[1]))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_flag_is_one_of_some_command(page):
    if page.name == "from-vllm.md":
        pytest.skip("tests/gateway/test_from_vllm.py holds its tables to the parser")
    lines = [line for at, line in FOUND if at == named(page)]
    modules = {line.split()[2] for line in lines if line.startswith("python -m ")}
    ran = [added(source(module)) for module in modules if module.startswith(SHELVES)]
    beside = page.parent.rglob("*.py") if named(page) in IN_PACKAGES else ()
    known = OF_OTHERS.union(*flags().values(), *ran, *map(added, beside))
    assert not set(LONG.findall(page.read_text("utf-8"))) - known


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_file_that_is_named_exists(page):
    ends = {span.lstrip("./") for span in SPAN.findall(page.read_text("utf-8")) if FILE.match(span)}
    missing = {end for end in ends if not any(f"/{file}".endswith(f"/{end}") for file in tracked())}
    assert not missing
