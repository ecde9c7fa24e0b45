"""What of a layer decides which kernels it launches: everything but values."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def kind(thing: Any) -> object:
    """Equal where types, sizes and settings are."""
    if isinstance(thing, torch.Tensor):
        return thing.dtype, tuple(thing.shape), tuple(thing.stride())
    if isinstance(thing, (list, tuple)):
        return tuple(map(kind, thing))
    if thing is None or isinstance(thing, (int, float, str, torch.dtype)):
        return thing
    return type(thing), tuple((name, kind(getattr(thing, name))) for name in _names(thing))


def first_of_each(things: Sequence[T], kinds: Iterable[object], *, least: int) -> list[T]:
    """Of ``things``, in order, the first ``least``, and of the others the first of each kind."""
    found, met = [], set[object]()
    for number, (thing, its) in enumerate(zip(things, kinds, strict=True)):
        if number < least or its not in met:
            found.append(thing)
        met.add(its)
    return found


def _names(thing: Any) -> list[str]:
    slots = [name for cls in type(thing).__mro__ for name in getattr(cls, "__slots__", ())]
    return sorted({*slots, *getattr(thing, "__dict__", {})} - {"__weakref__", "__dict__"})
