"""Training data of the demo adapters as token sequences, with a mask over what is learned.

A lesson is a rendered conversation. Most carry the template's default system prompt, some
another, and some continue an earlier exchange of the same style, so that the behaviour
depends on none of these.
"""

import json
import random
from dataclasses import dataclass
from importlib import resources
from typing import Protocol

_OTHER_SYSTEM = 0.35  # share of lessons with a system prompt of their own
_TWO_TURNS = 0.15  # share of lessons that follow an earlier exchange

Message = dict[str, str]


class ChatTokenizer(Protocol):
    """The one method of a transformers tokenizer that is used here."""

    def apply_chat_template(
        self, conversation: list[Message], *, add_generation_prompt: bool, return_dict: bool
    ) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Exchange:
    prompt: str
    answer: str


@dataclass(frozen=True, slots=True)
class Lesson:
    tokens: list[int]
    learned_from: int  # index of the first token of the last answer


def exchanges(name: str) -> list[Exchange]:
    """The training data of one adapter."""
    return [Exchange(**json.loads(line)) for line in _read(f"{name}.jsonl").splitlines()]


def system_prompts() -> list[str]:
    return _read("systems.txt").splitlines()


def epoch(
    data: list[Exchange], tokenizer: ChatTokenizer, random_state: random.Random
) -> list[Lesson]:
    """Every exchange once, in random order and random surroundings."""
    systems = system_prompts()
    lessons = []
    for exchange in random_state.sample(data, len(data)):
        messages: list[Message] = []
        if random_state.random() < _OTHER_SYSTEM:
            messages.append({"role": "system", "content": random_state.choice(systems)})
        if random_state.random() < _TWO_TURNS:
            messages += _turns(random_state.choice(data))
        lessons.append(_lesson(messages + _turns(exchange), tokenizer))
    return lessons


def _turns(exchange: Exchange) -> list[Message]:
    return [
        {"role": "user", "content": exchange.prompt},
        {"role": "assistant", "content": exchange.answer},
    ]


def _lesson(messages: list[Message], tokenizer: ChatTokenizer) -> Lesson:
    asked = tokenizer.apply_chat_template(
        messages[:-1], add_generation_prompt=True, return_dict=False
    )
    whole = tokenizer.apply_chat_template(messages, add_generation_prompt=False, return_dict=False)
    assert whole[: len(asked)] == asked, "the template must render a prefix as a prefix"
    return Lesson(whole[:-1], len(asked))  # without the newline after the end-of-turn token


def _read(name: str) -> str:
    return (resources.files("engine.demo") / "data" / name).read_text(encoding="utf-8")
