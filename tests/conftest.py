"""What every tier shares: which tests a machine can run, and how several workers share them.

Under ``pytest -n`` a file's tests stay together, for they share what its fixtures make, and so do
all that start the dashboard and its browser.
"""

import importlib.util
import os

import pytest

# Take longest; begun first, they do not leave one worker alone at the end.
FIRST = ("tests/faults/", "tests/isolation/", "tests/kernels/test_sm90_compile.py")
# Folders whose files share a server, and so a worker.
ONE_SERVER = ("tests/dashboard",)


def pytest_configure() -> None:
    # On tensors as small as those of tests, torch's threads do little but wait for one another,
    # spinning: where cores are shared, seven times the work.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if importlib.util.find_spec("hypothesis"):  # a machine for kernels alone may lack it
        _be_patient()


def _be_patient() -> None:
    """How long an example takes says how busy the machine is, and nothing of what is tested."""
    from hypothesis import HealthCheck, settings

    patient = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("patient", settings(), **patient)
    settings.load_profile("patient")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_cuda():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
    for item in items:
        if _on_postgres(item):
            item.add_marker(pytest.mark.slow)
    if config.pluginmanager.hasplugin("xdist"):
        items.sort(key=_turn)
        for item in items:
            item.add_marker(pytest.mark.xdist_group(_group(item)))


def _on_postgres(item: pytest.Item) -> bool:
    """Many run on SQLite too, which is quick."""
    call = getattr(item, "callspec", None)
    return call is not None and "postgres" in call.params.values()


def _turn(item: pytest.Item) -> int:
    matches = (i for i, start in enumerate(FIRST) if item.nodeid.startswith(start))
    return next(matches, len(FIRST))


def _group(item: pytest.Item) -> str:
    file = item.nodeid.partition("::")[0]
    shared = (folder for folder in ONE_SERVER if file.startswith(f"{folder}/"))
    return next(shared, file)


def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()
