"""What can go wrong in an engine. A message says what was found, the limit, and what to change."""


class EngineError(Exception):
    """Root of the tree."""


class ConfigError(EngineError, ValueError):
    """The engine cannot start with these settings."""


class CheckpointInvalid(EngineError, ValueError):
    """The checkpoint is not one this engine can serve; the message names the module."""


class OutOfMemory(EngineError):
    """The model or its smallest useful page pool does not fit."""


class AdapterUnusable(EngineError):
    """One adapter cannot be loaded. Fails only the requests that asked for it."""


class AdapterUnknown(AdapterUnusable):
    """The store has no adapter of this digest."""


class GrammarInvalid(EngineError, ValueError):
    """A grammar cannot be followed. Fails only the requests that asked for it."""


class DeviceLost(EngineError):
    """The accelerator no longer works in this process: every pass would fail. Ends the engine."""


class MemberLost(DeviceLost):
    """A process of the team that computes a model together has ended or does not answer."""


class RunnerFault(EngineError):
    """The runner answered a plan with something that does not match it."""


class WireStalled(EngineError):
    """The wire's thread stopped taking what the loop has to say."""
