"""Where the loop's thread and the wire's thread meet: a bounded queue taken all at once."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Thread-safe. ``on_put``, if set, is called after each put, in the putting thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self.on_put: Callable[[], None] | None = None

    def put(self, item: T, *, timeout_s: float = 0.0, force: bool = False) -> bool:
        """Add an item; False if there was no room in time. ``force`` passes the limit."""
        with self._changed:
            if not force and not self._changed.wait_for(self._has_room, timeout_s):
                return False
            self._items.append(item)
            self._changed.notify_all()
        if self.on_put:
            self.on_put()
        return True

    def take(self, timeout_s: float = 0.0) -> list[T]:
        """Everything there is, waiting up to ``timeout_s`` for something."""
        with self._changed:
            self._changed.wait_for(lambda: self._items, timeout_s)
            items = list(self._items)
            self._items.clear()
            self._changed.notify_all()
        return items

    def _has_room(self) -> bool:
        return len(self._items) < self._limit
