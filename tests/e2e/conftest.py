"""Real servers for a session. The demo model is made once and kept in the user's cache."""

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.server import ROOT, Server
from tests.services import postgres, redis_url

__all__ = ["postgres", "redis_url"]

LIMIT_S = 600  # of a test, with a server's first start, which makes the demo model
BUILDER = ("engine/demo", "engine/quant")  # what decides the bytes of the demo model


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(LIMIT_S))


@pytest.fixture(scope="session")
def demo_cache() -> Path:
    """Where the demo model lies for every server of this and later sessions."""
    digest = hashlib.sha256()
    for folder in BUILDER:
        for path in sorted((ROOT / folder).glob("*.py")):
            digest.update(path.name.encode() + path.read_bytes())
    base = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    cache = base / "loratorio-tests" / digest.hexdigest()[:16]
    cache.mkdir(parents=True, exist_ok=True)
    return cache


@pytest.fixture(scope="session")
def make_data_dir(
    demo_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """A new data directory that shares the demo model."""

    def make(name: str) -> Path:
        data_dir = tmp_path_factory.mktemp(name)
        (data_dir / "demo").symlink_to(demo_cache)
        return data_dir

    return make


@pytest.fixture(scope="session")
def server(make_data_dir: Callable[[str], Path]) -> Iterator[Server]:
    """The server most tests share: keys asked for, default path."""
    with Server(make_data_dir("server")) as started:
        yield started
