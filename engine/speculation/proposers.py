"""Makes the proposer that the settings ask for."""

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.models.decoder import Decoder
from engine.speculation.ngram import NgramProposer
from engine.speculation.proposer import Proposer
from engine.speculation.settings import FLAG, Method
from engine.speculation.watcher import Watcher


def make_proposer(config: EngineConfig, model: Decoder) -> tuple[Proposer | None, Watcher | None]:
    """The second where it watches passes too. Raises ConfigError."""
    settings = config.speculation
    if settings is None:
        return None, None
    if settings.method is Method.NGRAM:
        return NgramProposer(
            tokens=settings.tokens,
            lookup_min=settings.lookup_min,
            lookup_max=settings.lookup_max,
        ), None
    raise ConfigError(f"{FLAG}: method {settings.method} cannot be served yet")
