"""Two gateways and two engines that find one another in Redis, as docs/fleet.md has them.

Warm routing, an engine killed in the middle of an answer, another in its place that computes
prompts for the one that is left, and a drain; then the books.
"""

import signal
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.deploy.exported import Scraped, expressions
from tests.e2e.fleet import BASE, Fleet, Process, page
from tests.e2e.server import eventually, loratorio
from tests.services import Postgres

SUCCESSES = "vllm:request_success_total"
LOADS = "loratorio_engine_adapter_loads_total"
HANDOFFS = "loratorio_engine_handoffs_total"
LONG = " ".join(f"{n} ships and {n * 7 % 97} storms." for n in range(60))  # hundreds of tokens


def ask(client: openai.OpenAI, model: str, text: str, tokens: int = 4, **more: Any) -> Any:
    return client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": text}], max_tokens=tokens,
        extra_body={"ignore_eos": True}, **more,
    )  # fmt: skip


def succeeded(fleet: Fleet) -> dict[str, float]:
    return {name: fleet.metric(name, SUCCESSES) for name in fleet.engines}


def warm_engine(fleet: Fleet) -> str:
    """Through both gateways, every request of an adapter goes to the engine that has it."""
    created = loratorio(
        "adapter", "create", "tuned", "--tenant", "acme", "--path", str(fleet.adapter),
        "--settings", str(fleet.files[0]), timeout=300,
    )  # fmt: skip
    assert created.returncode == 0, created.stderr
    for number in (0, 1, 0, 1):
        said = ask(fleet.client(number), "tuned", f"Tell me about the sea. {number}")
        assert said.usage.completion_tokens == 4
    assert eventually(lambda: sorted(succeeded(fleet).values()) == [0, 4], 30.0)
    warm = max(fleet.engines, key=succeeded(fleet).__getitem__)
    (cold,) = fleet.engines.keys() - {warm}
    assert (fleet.metric(warm, LOADS), fleet.metric(cold, LOADS)) == (1, 0)
    return warm


def lost_in_the_middle(fleet: Fleet, engine: str) -> None:
    """The stream ends with the documented error, and nobody after it is refused."""
    stream = ask(fleet.client(1), "tuned", "A very long story.", 3000, stream=True)
    for _ in zip(range(5), stream, strict=False):
        pass
    fleet.engines[engine].send(signal.SIGKILL)
    with pytest.raises(openai.APIError) as raised:
        list(stream)
    assert raised.value.code == "engine_lost"
    for number in (0, 1):
        assert ask(fleet.client(number), "tuned", "And now?").usage.completion_tokens == 4


def handed_over(fleet: Fleet, giver: str, taker: str) -> None:
    """One computes the prompt, the other answers: over TLS, and it is billed once."""
    said = ask(fleet.client(0), BASE, LONG)
    assert said.usage.completion_tokens == 4
    assert eventually(lambda: fleet.metric(taker, HANDOFFS, side="took", outcome="done") == 1, 30.0)
    computed = fleet.metric(giver, "loratorio_engine_prompt_tokens_total")
    assert computed >= said.usage.prompt_tokens - 1 > 256


def books(fleet: Fleet) -> None:
    addresses = [f"--engine=tls:127.0.0.1:{fleet.ports[name]}" for name in fleet.engines]

    def agree() -> bool:
        told = loratorio("reconcile", *addresses, "--settings", str(fleet.files[0]), timeout=300)
        return told.returncode == 0

    assert eventually(agree, 60.0)


def shown(fleet: Fleet) -> None:
    """What dashboards, alerts and autoscalers read is there to be read."""
    ports = [settings.metrics_port for settings in fleet.settings]
    ports += [fleet.ports[f"{name} metrics"] for name in fleet.engines]
    scraped = Scraped.of("".join(map(page, ports)))
    missing = {asked: lacks for asked in expressions() if (lacks := scraped.missing(asked))}
    assert missing == {}


def drained(fleet: Fleet, engine: str) -> None:
    """Told to end, it says all of the answer that it is at."""
    stream = ask(
        fleet.client(0), BASE, "One more story.", 300, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    next(stream)
    fleet.engines[engine].send(signal.SIGTERM)
    chunks = list(stream)
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].usage.completion_tokens == 300
    assert fleet.engines[engine].ended() == 0


def test_two_gateways_and_two_engines_are_one_server(
    tmp_path: Path, redis_url: str, postgres: Postgres
) -> None:
    with Fleet(tmp_path, postgres.create(), redis_url) as fleet:
        warm = warm_engine(fleet)
        (other,) = fleet.engines.keys() - {warm}
        lost_in_the_middle(fleet, warm)
        with fleet.engine(warm, "--role", "prefill") as giver:
            fleet.engines[warm] = giver
            fleet.until_up(2)
            handed_over(fleet, warm, other)
            shown(fleet)
            books(fleet)
            drained(fleet, other)
        ended: list[Process] = fleet.gateways
        for gateway in ended:
            gateway.send(signal.SIGTERM)
        assert [gateway.ended() for gateway in ended] == [0, 0]
