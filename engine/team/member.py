"""One of the processes that compute a model together, as the parts of an engine know it."""

from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.team.group import Group
from engine.team.lead import Lead
from engine.team.shard import Shard


@dataclass(frozen=True, slots=True)
class Member:
    """Without any of these: the only one."""

    group: Group | None = None
    shard: Shard | None = None
    lead: Lead | None = None  # what the leading member tells the others through

    @property
    def leads(self) -> bool:
        return self.shard is None or self.shard.leads

    def least(self, value: int) -> int:
        """Of the members' values."""
        return value if self.group is None else self.group.least(value)


def device_of(member: int, config: EngineConfig, device: torch.device) -> torch.device:
    """That a member computes on, from now on this process's own. Raises ConfigError."""
    if device.type != "cuda" or config.tensor_parallel_size == 1:
        return device
    count = torch.cuda.device_count()
    if count < config.tensor_parallel_size:
        raise ConfigError(
            f"tensor_parallel_size={config.tensor_parallel_size}, but torch finds {count} "
            "CUDA devices"
        )
    own = torch.device("cuda", member)
    torch.cuda.set_device(own)
    return own
