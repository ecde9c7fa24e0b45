"""What every tier shares: which tests a machine can run, and how several workers share them.

Under ``pytest -n`` a file's tests stay together, for they share what its fixtures make, and so do
all that start the dashboard and its browser.
"""

import asyncio
import faulthandler
import functools
import importlib.util
import io
import os
import sys
import threading
from collections.abc import Generator, Iterator

import pytest

# Take longest; begun first, they do not leave one worker alone at the end.
FIRST = (
    "tests/faults/",
    "tests/isolation/",
    "tests/kernels/test_sm90_compile.py",
    "tests/dashboard/",
    "tests/e2e/test_mixing.py",
)
LEFT_S = 100  # after its limit, for a test to end
# Folders whose files share a server, and so a worker.
ONE_SERVER = ("tests/dashboard",)


def pytest_configure() -> None:
    # On tensors as small as those of tests, torch's threads do little but wait for one another,
    # spinning: where cores are shared, seven times the work.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # For servers, which take all cores: threads that wait sleep.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if importlib.util.find_spec("hypothesis"):  # a machine for kernels alone may lack it
        _be_patient()


def _be_patient() -> None:
    """How long an example takes says how busy the machine is, and nothing of what is tested."""
    from hypothesis import HealthCheck, settings

    patient = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("patient", settings(), **patient)
    settings.load_profile("patient")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Gives up a process that does not come back from a test that ran out of time either."""
    limit = _limit(item)
    giving_up = threading.Timer(limit + LEFT_S, _give_up, [item.nodeid])
    giving_up.daemon = True
    if limit:
        giving_up.start()
    try:
        return (yield)
    finally:
        giving_up.cancel()


def _limit(item: pytest.Item) -> float:
    """Seconds; 0: none."""
    if not item.config.pluginmanager.hasplugin("timeout"):  # a machine for kernels alone
        return 0
    from pytest_timeout import get_env_settings

    own = item.get_closest_marker("timeout")
    return float(own.args[0] if own else get_env_settings(item.config).timeout or 0)


def _give_up(test: str) -> None:
    print(f"{test} ran out of time and did not end", file=sys.__stderr__)
    faulthandler.dump_traceback(sys.__stderr__)
    os._exit(1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Of a test that ran out of time the stack shows the event loop, which tells nothing."""
    report = yield
    if call.excinfo and "Timeout" in str(call.excinfo.value) and report.failed:
        report.sections.append(("tasks that waited", "\n".join(_waiting())))
    return report


def _waiting() -> Iterator[str]:
    for task in list(asyncio.tasks._all_tasks):  # type: ignore[attr-defined]
        if not task.done():
            text = io.StringIO()
            task.print_stack(file=text)
            yield text.getvalue()


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


@pytest.hookimpl(optionalhook=True)  # a machine for kernels alone may lack xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Its own ``loadgroup`` marks names of tests, which pytest 9.2 no longer lets it change."""
    from xdist.scheduler import LoadScopeScheduling

    class ByServer(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

    return ByServer(config, log)


def _on_postgres(item: pytest.Item) -> bool:
    """Many run on SQLite too, which is quick."""
    call = getattr(item, "callspec", None)
    return call is not None and "postgres" in call.params.values()


def _turn(item: pytest.Item) -> int:
    matches = (i for i, start in enumerate(FIRST) if item.nodeid.startswith(start))
    return next(matches, len(FIRST))


def _group(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    if file.startswith("tests/kernels/") and _has_cuda():  # each mostly compiles
        return nodeid
    shared = (folder for folder in ONE_SERVER if file.startswith(f"{folder}/"))
    return next(shared, file)


@functools.cache
def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()
