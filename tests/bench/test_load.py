"""Load is sent as asked, and figures are those of requests that all succeeded."""

import asyncio
import json
from collections import Counter
from itertools import pairwise

import pytest

from engine.bench import serve
from engine.bench.http_stream import Model, Stream
from engine.bench.load import Load, Outcome, requests, run
from engine.bench.rows import Report
from engine.bench.serve import main, percentile, rows
from tests.bench.http_server import answer, server

MODELS = [Model(name, "key") for name in ("base", "a", "b", "c")]


def load(**given: object) -> Load:
    facts = {"models": MODELS, "input_len": 5, "output_len": 3, "num_prompts": 12} | given
    return Load(**facts)  # type: ignore[arg-type]


def test_popular_models_are_drawn_by_zipfs_law():
    drawn = Counter(r.model.name for r in requests(load(num_prompts=4000, concurrency=1)))
    shares = [drawn[m.name] / 4000 for m in MODELS]
    whole = 1 + 1 / 2 + 1 / 3 + 1 / 4
    assert shares == pytest.approx([1 / k / whole for k in (1, 2, 3, 4)], abs=0.03)
    alike = Counter(r.model.name for r in requests(load(num_prompts=4000, zipf=0.0)))
    assert min(alike.values()) > 900


def test_an_open_loop_arrives_as_a_poisson_process():
    arrivals = [r.at_s for r in requests(load(num_prompts=4000, rate=50.0))]
    gaps = [b - a for a, b in pairwise(arrivals)]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(1 / 50, rel=0.08)
    assert spread == pytest.approx(mean, rel=0.1)  # of an exponential


def test_the_same_seed_sends_the_same_requests():
    assert requests(load(seed=4)) == requests(load(seed=4))
    assert requests(load(seed=4)) != requests(load(seed=5))


async def test_a_closed_loop_keeps_no_more_than_its_concurrency_under_way():
    open_now, most = 0, 0

    async with server() as base_url:
        opened = asyncio.open_connection

        async def counted(*given, **kw):
            nonlocal open_now, most
            open_now += 1
            most = max(most, open_now)
            reader, writer = await opened(*given, **kw)
            close = writer.close

            def closed():
                nonlocal open_now
                open_now -= 1
                close()

            writer.close = closed
            return reader, writer

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "open_connection", counted)
            seen: list[int] = []
            progress = lambda outcome: seen.append(len(outcome.streams))  # noqa: E731
            found = await run(base_url, load(concurrency=3), progress)
    assert (len(found.streams), found.failures, most) == (12, [], 3)
    assert seen == list(range(1, 13))


async def test_an_open_loop_sends_at_its_times_and_failures_are_kept():
    def reply(body):
        return answer(body, tokens=1 if body["model"] == "a" else None)

    async with server(reply) as base_url:
        found = await run(base_url, load(rate=200.0), lambda outcome: None)
    assert found.seconds > requests(load(rate=200.0))[-1].at_s
    assert len(found.streams) + len(found.failures) == 12
    assert all(failure.startswith("a: a: asked for 3 tokens") for failure in found.failures)
    assert found.failures


def test_figures_follow_from_what_the_requests_saw():
    streams = [Stream(11, 0.1 * n, 0.1 * n + 1.0) for n in range(1, 101)]
    figures = {r.metric: r.value for r in rows(load(concurrency=4), Outcome(streams, [], 10.0))}
    assert figures["requests"] == 10
    assert figures["output throughput"] == 110
    assert figures["time to first token, P99"] == pytest.approx(9900)
    assert figures["latency, mean"] == pytest.approx(6050)
    assert figures["time per output token, mean"] == pytest.approx(100)


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (10, 10), (100, 99), (200, 198)])
def test_a_percentile_is_one_of_the_values(count, expected):
    assert percentile(range(count, 0, -1), 99) == expected


async def run_command(base_url: str, *flags: str) -> int:
    given = ["--base-url", base_url, "--models", "base", "a", "--num-prompts", "6",
             "--input-len", "5", "--output-len", "2", *flags]  # fmt: skip
    return await asyncio.to_thread(main, given)


async def test_the_command_writes_rows_without_the_key(tmp_path, capsys):
    async with server() as base_url:
        flags = ["--concurrency", "2", "--device", "box", "--out", str(tmp_path)]
        assert await run_command(base_url, "--api-key", "secret", *flags) == 0
    (file,) = (tmp_path / "box").glob("serve-base-*.json")
    written = json.loads(file.read_text())
    assert {row["metric"] for row in written} >= {"requests", "latency, P99"}
    assert "secret" not in file.read_text()
    assert "requests" in capsys.readouterr().out


async def test_a_failed_request_means_no_report(tmp_path, capsys):
    async with server(lambda body: answer(body, tokens=1)) as base_url:
        flags = ["--rate", "100", "--cold", "--device", "box", "--out", str(tmp_path)]
        assert await run_command(base_url, *flags) == 1
    assert list(tmp_path.rglob("*.json")) == []
    assert "6 of 6 requests failed" in capsys.readouterr().err


def test_a_key_is_hidden_however_it_was_given(tmp_path):
    for arguments in (["--api-key", "secret"], ["--api-key=secret"]):
        file = Report("box", [], arguments).write(tmp_path, "x", {})
        assert "secret" not in file.read_text()


def test_a_target_must_be_named(capsys):
    with pytest.raises(SystemExit):
        main(["--concurrency", "1"])
    assert "--ready" in capsys.readouterr().err


def test_a_bar_is_drawn_where_somebody_watches(capsys, monkeypatch):
    monkeypatch.setattr(serve.sys.stderr, "isatty", lambda: True, raising=False)
    serve._bar(2)(Outcome([Stream(1, 0.1, 0.2)], []))
    assert "1/2" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags", ["--concurrency 0", "--rate -1", "--rate nan", "--rate 1 --concurrency 2"]
)
def test_a_pace_that_is_none_is_refused_in_one_line(flags, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--models", "m", "--base-url", "http://x/v1", *flags.split()])
    assert caught.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
