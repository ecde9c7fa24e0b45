"""The benchmark's client reads real streams, and refuses to report anything it did not get."""

import json
from pathlib import Path

import pytest

from bench.cpu_rows import device, read, write
from bench.cpu_serve import PROMPT_TOKENS, best_peer, measure, stream
from engine.bench.http_stream import BenchFailed, Model, Served
from engine.bench.rows import Row
from tests.bench.http_server import answer, server

MODEL = Model("base", "key")


@pytest.mark.parametrize("chunk", [1, 7, 100_000])
async def test_reads_events_however_they_are_cut(chunk):
    async with server(chunk=chunk) as base_url:
        found = await stream(base_url, MODEL, 5)
    assert found.tokens == 5
    assert 0 < found.first_s <= found.total_s


async def test_a_stream_that_fell_short_is_a_failure():
    async with server(lambda body: answer(body, tokens=3)) as base_url:
        with pytest.raises(BenchFailed, match="asked for 5 tokens"):
            await stream(base_url, MODEL, 5)


async def test_an_error_inside_a_stream_is_a_failure():
    async with server(lambda _: [{"error": {"message": "engine lost"}}]) as base_url:
        with pytest.raises(BenchFailed, match="engine lost"):
            await stream(base_url, MODEL, 5)


async def test_a_refusal_is_a_failure_that_shows_the_answer():
    async with server(status="429 Too Many Requests") as base_url:
        with pytest.raises(BenchFailed, match="429"):
            await stream(base_url, MODEL, 5)


async def test_measures_one_stream_and_eight_that_mix_models():
    asked: list[dict[str, object]] = []

    def reply(body: dict[str, object]) -> list[dict[str, object]]:
        asked.append(body)
        return answer(body)

    adapters = [Model(name, "key") for name in "abc"]
    async with server(reply) as base_url:
        rows = await measure(Served(base_url, MODEL, adapters), tokens=4, repeats=1)
    assert {(row.batch, row.adapters) for row in rows} == {(1, 0), (1, 1), (8, 0), (8, 3)}
    assert all(row.value > 0 for row in rows)
    assert all(len(body["prompt"]) == PROMPT_TOKENS for body in asked)
    prompts = [tuple(body["prompt"]) for body in asked]
    assert len(set(prompts)) == len(prompts)
    mixed = [body["model"] for body in asked if body["max_tokens"] == 4][-8:]
    assert sorted(mixed) == ["a", "a", "b", "b", "base", "base", "c", "c"]


def test_the_ready_file_gives_every_model_a_key_that_may_use_it(tmp_path: Path):
    tenants = [
        {"name": "one", "api_key": "k1", "models": ["base", "json", "pirate"]},
        {"name": "two", "api_key": "k2", "models": ["base", "bullets"]},
    ]
    ready = {"base_url": "http://x/v1", "base_model": "base", "tenants": tenants}
    path = tmp_path / "ready.json"
    path.write_text(json.dumps(ready))
    served = Served.read(path)
    assert served.base == Model("base", "k1")
    assert served.adapters == [Model("json", "k1"), Model("pirate", "k1"), Model("bullets", "k2")]


def row(bench: str, value: float, *, adapters: int = 3) -> Row:
    return Row(bench=bench, model="m", format="f", rank=8, batch=8, adapters=adapters, context=50,
               metric="generated tokens", value=value, unit="tokens/s")  # fmt: skip


def test_the_peer_is_the_best_figure_for_the_same_work_on_this_device(tmp_path: Path):
    assert read("hf_generate", tmp_path) == []
    rows = [row("mixed", 20.0), row("in turn", 30.0), row("base only", 90.0, adapters=0)]
    write(rows, "hf_generate", ["torch"], tmp_path)
    stored = read("hf_generate", tmp_path)
    assert best_peer(stored, 8, 3, "generated tokens") == ("in turn, f", 30.0)
    assert best_peer(stored, 1, 3, "generated tokens") == ("", None)
    elsewhere = [each | {"device": "another machine"} for each in stored]
    assert best_peer(elsewhere, 8, 3, "generated tokens") == ("", None)
    assert stored[0]["device"] == device()
    assert {"commit", "command", "date", "versions"} <= stored[0].keys()
