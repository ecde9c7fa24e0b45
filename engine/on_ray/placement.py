"""Where an engine's actor goes: a placement group of its own, all on one node."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from engine.on_ray.engines import NoRoom
from engine.on_ray.process import EngineProcess

READY_S = 60.0  # for a node that has room, also one that is only coming up
ASK_S = 10.0  # for an actor's answer


@dataclass(frozen=True, slots=True)
class Needs:
    """Of one engine."""

    cpus: float = 1.0
    gpus: float = 0.0

    @property
    def bundle(self) -> dict[str, float]:
        return {"CPU": self.cpus} | ({"GPU": self.gpus} if self.gpus else {})


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """One engine that was started. Blocking: each call asks another process."""

    address: str
    _actor: Any
    _group: Any  # of one bundle

    @classmethod
    def start(cls, command: Sequence[str], needs: Needs, *, ready_s: float = READY_S) -> "Placed":
        """Raises NoRoom, or RayError."""
        group = placement_group([needs.bundle], strategy="STRICT_PACK")
        try:
            if not group.wait(timeout_seconds=ready_s):
                raise NoRoom(f"no node has {needs.bundle} free")
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
            options: dict[str, Any] = {
                "num_cpus": needs.cpus, "num_gpus": needs.gpus, "scheduling_strategy": strategy,
            }  # fmt: skip
            host = ray.get(ray.remote(_host).options(**options).remote(), timeout=ready_s)
            actor = ray.remote(EngineProcess).options(**options).remote(list(command), host)
            return cls(ray.get(actor.address.remote(), timeout=ready_s), actor, group)
        except BaseException:
            remove_placement_group(group)
            raise

    @property
    def alive(self) -> bool:
        """False also where the node is gone."""
        try:
            return ray.get(self._actor.exit_code.remote(), timeout=ASK_S) is None
        except (ray.exceptions.RayError, TimeoutError):
            return False

    def drain(self) -> None:
        self._actor.drain.remote()

    def remove(self) -> None:
        """What still runs there ends now."""
        ray.kill(self._actor)
        remove_placement_group(self._group)


def _host() -> str:
    address: str = ray.util.get_node_ip_address()
    return address
