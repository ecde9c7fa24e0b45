"""Which release this is; ``pyproject.toml`` says it, and nothing else does."""

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    try:
        return version("loratorio")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "unknown (not installed)"
