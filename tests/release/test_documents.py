"""Commands in documents are commands, with flags that exist, settings are settings, and links lead
somewhere."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.cli import Serve, parse
from gateway.cli.main import HANDED_ON, build_parser
from gateway.config import Settings

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md",
     *(ROOT / "docs").glob("*.md")]
)  # fmt: skip
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
SETTINGS = re.compile(r"^```json\n(\{.*?^\})\n```", re.MULTILINE | re.DOTALL)
SECRET = re.compile(r'\{"file": "[^"]+"\}')
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
STARTS = ("loratorio ", "kubectl ", "python ")
ENGINE = ("python", "-m", "engine", "serve")


def commands(page: Path) -> Iterator[list[str]]:
    """Of ours, as words; what a shell would put in their place stays as it is."""
    for block in BLOCK.findall(page.read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            if not line.startswith(STARTS):
                continue
            words = shlex.split(line.replace("…", ""), comments=True)
            if words[0] == "kubectl":
                words = words[words.index("--") + 1 :] if "--" in words else []
            if words and (words[0] == "loratorio" or tuple(words[:4]) == ENGINE):
                yield words


FOUND = [(page.name, words) for page in PAGES for words in commands(page)]


def test_there_are_commands_to_look_at():
    assert len(FOUND) > 20


@pytest.mark.parametrize(
    ("page", "words"), FOUND, ids=[f"{p}:{' '.join(w[1:4])}" for p, w in FOUND]
)
def test_a_command_is_understood(page: str, words: list[str]):
    if words[0] == "python":
        given = [word for word in words[3:] if word]
        assert isinstance(parse([*given, "--model", "m"]), Serve)
    elif words[1] not in HANDED_ON:
        build_parser(words[1]).parse_args(words[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path):
    for target, part in LINK.findall(page.read_text()):
        if "://" in target:
            continue
        led = page.parent / target if target else page
        assert led.exists(), target
        assert not part or part in anchors(led), f"{target}#{part}"


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    plain = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in HEADING.findall(plain)
    }


def test_settings_of_a_gateway_are_settings():
    """Also where a page shows only some."""
    needed = {"data_dir": "d", "model_dir": "m", "served_model_name": "n", "engines": ["redis:"]}
    found = [text for page in PAGES for text in SETTINGS.findall(page.read_text())]
    gateways = [text for text in found if '"model_dir"' in text]
    assert gateways
    for text in gateways:
        said = json.loads(SECRET.sub('"postgresql://u@h/d"', text))
        Settings.from_json(json.dumps(needed | said).encode())
