"""Engines as actors of a real Ray cluster of several nodes on this machine. See ``make test-ray``.

The engines are the engine's own program without tensors.
"""

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from engine.client import EngineClient
from engine.on_ray.engines import Engines
from engine.on_ray.process import LISTEN
from engine.on_ray.scaling import Scaling
from engine.protocol import Submit

if "RAY_CLUSTER" not in os.environ:
    pytest.skip("see make test-ray", allow_module_level=True)
import ray
from ray.cluster_utils import Cluster

from engine.on_ray.engines import NoRoom
from engine.on_ray.placement import Needs, Placed

ROOT = str(Path(__file__).parents[2])
NEEDS = Needs(cpus=2)


@pytest.fixture
def cluster(monkeypatch):
    """Two nodes, with room for one engine each."""
    monkeypatch.setenv("PYTHONPATH", ":".join([ROOT, *filter(None, sys.path)]))
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for _ in range(2):
        made.add_node(num_cpus=2)
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


def command(folder, name="{}"):
    return (sys.executable, "-m", "tests.faults.brain", LISTEN, str(folder / name), "0.005")


async def eventually(condition, seconds=60.0):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.1)


async def test_engines_are_placed_replaced_with_their_node_added_by_queue_and_drained(
    cluster, tmp_path
):
    def start():
        return Placed.start(command(tmp_path, f"{time.monotonic_ns()}"), NEEDS, ready_s=20.0)

    engines = Engines(start, Scaling(1, 2, patience_s=3.0))
    running = asyncio.create_task(engines.run())
    try:
        await eventually(lambda: [each.busy is not None for each in engines.kept] == [True])
        first = engines.kept[0].placed.address
        async with await EngineClient.connect(first, gateway="test") as client:
            submits = [
                Submit(f"r{number}", "t", [1, 2, 3], 400, ignore_eos=True) for number in range(120)
            ]
            streams = [client.generate(submit) for submit in submits]
            for stream in streams:
                await stream.__aenter__()
            await eventually(lambda: len(engines.kept) == 2)  # 120 in 64 seats
            await eventually(lambda: all(each.busy for each in engines.kept))
            nodes = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
            assert len(nodes) == 3
            for stream in streams:
                await stream.__aexit__(None, None, None)
        await eventually(lambda: len(engines.kept) == 1)  # one was drained, and left its node
        await eventually(lambda: ray.available_resources().get("CPU", 0) == 2.0)
        left = engines.kept[0].placed.address
        for node in list(cluster.worker_nodes):  # the one that it is on, among them
            cluster.remove_node(node)
        cluster.add_node(num_cpus=2)
        await eventually(
            lambda: [each.busy and each.placed.address != left for each in engines.kept] == [True]
        )
    finally:
        running.cancel()
        await asyncio.wait([running])
    assert engines.kept == []


def test_an_engine_for_which_no_node_has_room_is_refused(cluster, tmp_path):
    with pytest.raises(NoRoom, match="no node has"):
        Placed.start(command(tmp_path), Needs(cpus=2, gpus=1), ready_s=2.0)
