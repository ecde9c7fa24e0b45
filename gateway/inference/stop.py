"""Finds stop strings in text that arrives in pieces, and holds back as little as possible.

Aho and Corasick's automaton over characters: after each character the state is the longest suffix
of the text that is a prefix of some stop string. That suffix, and nothing more, must be held
back: the next characters may complete it. Of several stop strings that end at the same character
the longest wins, as it begins first.
"""

import re
from collections import deque
from collections.abc import Sequence


class StopStrings:
    """The automaton of one request. Immutable once built; shared by the request's choices."""

    __slots__ = ("depth", "fail", "first", "matched", "next")

    def __init__(self, stops: Sequence[str]) -> None:
        """``stops`` are non-empty. Size: one state per character of all of them."""
        self.next: list[dict[str, int]] = [{}]
        self.depth = [0]  # characters of the prefix that a state stands for
        self.matched = [0]  # length of the longest stop string ending here; 0: none
        for stop in stops:
            self._add(stop)
        firsts = "".join(map(re.escape, self.next[0]))
        self.first = re.compile(f"[{firsts}]").search  # where a stop string may begin
        self.fail = [0] * len(self.next)  # the next shorter suffix that is a prefix too
        self._link()

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            following = self.next[state].get(character)
            if following is None:
                following = len(self.next)
                self.next[state][character] = following
                self.next.append({})
                self.depth.append(self.depth[state] + 1)
                self.matched.append(0)
            state = following
        self.matched[state] = len(stop)

    def _link(self) -> None:
        queue = deque(self.next[0].values())
        while queue:
            state = queue.popleft()
            if not self.matched[state]:
                self.matched[state] = self.matched[self.fail[state]]
            for character, following in self.next[state].items():
                self.fail[following] = self.step(self.fail[state], character)
                queue.append(following)

    def step(self, state: int, character: str) -> int:
        while True:
            following = self.next[state].get(character)
            if following is not None:
                return following
            if state == 0:
                return 0
            state = self.fail[state]


class StopSearch:
    """One choice's text on its way through the automaton."""

    __slots__ = ("_held", "_shown", "_state", "_stops", "found")

    def __init__(self, stops: StopStrings, *, shown: bool = False) -> None:
        """``shown``: the stop string is part of the text, so that nothing is ever held back."""
        self._stops = stops
        self._shown = shown
        self._state = 0
        self._held = ""
        self.found = False  # a stop string is complete; nothing may be fed any more

    def feed(self, text: str) -> str:
        """The text that is safe to show: all of it but a beginning of a stop string."""
        state, stops, start = self._state, self._stops, 0
        if state == 0:  # most text: nothing is held, and nothing begins
            begins = stops.first(text)
            if begins is None:
                return text
            start = begins.start()
        pending = self._held + text
        for position, character in enumerate(text[start:], start=len(self._held) + start + 1):
            state = stops.step(state, character)
            if length := stops.matched[state]:
                self.found, self._held = True, ""
                return pending[: position if self._shown else position - length]
        self._state = state
        safe = len(pending) - (0 if self._shown else stops.depth[state])
        self._held = pending[safe:]
        return pending[:safe]

    def flush(self) -> str:
        """What was held back: the text ended before a stop string was complete."""
        held, self._held, self._state = self._held, "", 0
        return held
