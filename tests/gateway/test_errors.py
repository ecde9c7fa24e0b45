"""Every refusal has its documented status, body and headers, and tells no secret."""

import asyncio
import contextlib
import io
import logging

import pytest
import structlog
from fastapi import APIRouter

from engine.protocol import RefusalCode
from gateway import log
from gateway.connection import MOST_HEAD_BYTES
from gateway.rest import rest_application
from tests.fakes.clock import until
from tests.gateway.serving import (
    ADMIN_KEY,
    BASE,
    KEY,
    LIMITED_KEY,
    OTHER_KEY,
    STRICT_KEY,
    ask,
    post,
    raw,
    serving,
)  # fmt: skip

HELLO = [{"role": "user", "content": "Hello"}]
ASKED = {"model": BASE, "messages": HELLO}


def get(path, *headers, method="GET"):
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", "connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


@pytest.mark.parametrize(
    "header",
    ["x-nothing: 1", "authorization:", "authorization: Bearer", "authorization: Bearer ",
     "authorization: Bearer sk-unknown", "authorization: Basic c2stYWNtZQ==",
     "authorization: sk-acme", "authorization: Bearer sk-acm\xe9",
     "authorization: Bearer ' OR '1'='1", "authorization: Bearer sk-acme, sorry",
     "authorization: Bearer sk-acme x"],
)  # fmt: skip
async def test_every_bad_key_has_one_and_the_same_answer(tmp_path, header):
    async with serving(tmp_path) as server:
        response = await raw(server.port, get("/v1/models", header).replace(b"\xc3\xa9", b"\xe9"))
        head, _, body = response.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 401")
        assert b"www-authenticate: Bearer" in head
        assert body == (
            b'{"error":{"message":"Incorrect API key provided.","type":"invalid_request_error",'
            b'"param":null,"code":"invalid_api_key"}}'
        )


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_the_scheme_has_no_case_and_space_around_the_key_is_nothing(tmp_path, scheme):
    async with serving(tmp_path) as server:
        for space in ("   ", "\t", " \t "):
            header = f"authorization:{space}{scheme}{space}{KEY}{space}"
            assert (await ask(server.port, get("/v1/models", header))).status == 200


@pytest.mark.parametrize(
    "headers",
    [(f"authorization: Bearer {KEY}", f"authorization: Bearer {OTHER_KEY}"),
     (f"authorization: Bearer {KEY} {OTHER_KEY}",),
     (f"authorization: Bearer {KEY}, Bearer {OTHER_KEY}",)],
    ids=["two_headers", "two_keys", "comma"],
)  # fmt: skip
async def test_several_keys_are_refused(tmp_path, headers):
    async with serving(tmp_path) as server:
        got = await ask(server.port, get("/v1/models", *headers))
        assert got.status == 400
        assert KEY not in got.body.decode()


async def test_admin_keys_call_no_inference_route(tmp_path):
    async with serving(tmp_path) as server:
        for request in (post(ASKED, key=ADMIN_KEY), post(ASKED, key=ADMIN_KEY)):
            got = await ask(server.port, request)
            assert (got.status, got.error["code"]) == (403, "permission_denied")


async def test_unknown_names_and_other_tenants_adapters_answer_alike(tmp_path):
    async with serving(tmp_path) as server:
        unknown = await ask(server.port, post({**ASKED, "model": "nobody"}, key=OTHER_KEY))
        foreign = await ask(server.port, post({**ASKED, "model": "support"}, key=OTHER_KEY))
        assert unknown.status == foreign.status == 404
        assert unknown.error["code"] == foreign.error["code"] == "model_not_found"
        assert unknown.error["param"] == "model"
        assert unknown.error["message"] == foreign.error["message"].replace("support", "nobody")


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "/etc", "..", "support/../other", "C:\\x", "~",
     "support@1@1", "support@0", "support@-1", "support@1e9", "@1", "support ", "s\u00fcpport",
     "file:///etc/passwd", "http://169.254.169.254/x"],
)  # fmt: skip
async def test_a_model_is_a_name_and_never_a_path_or_an_address(tmp_path, name):
    async with serving(tmp_path) as server:
        got = await ask(server.port, post({**ASKED, "model": name}))
        assert (got.status, got.error["code"]) == (404, "model_not_found")
        assert len(got.body) < 1000


@pytest.mark.parametrize(
    ("path", "method", "allow"),
    [("/v1/chat/completions", "GET", "POST"), ("/v1/completions", "DELETE", "POST"),
     ("/v1/models", "POST", "GET, HEAD"), ("/v1/models/tiny", "DELETE", "GET, HEAD"),
     ("/readyz", "POST", "GET, HEAD"), ("/v1/chat/completions", "OPTIONS", "POST")],
)  # fmt: skip
async def test_a_wrong_method_says_which_is_right(tmp_path, path, method, allow):
    async with serving(tmp_path) as server:
        got = await ask(server.port, get(path, f"authorization: Bearer {KEY}", method=method))
        assert (got.status, got.error["code"]) == (405, "method_not_allowed")
        assert got.headers["allow"] == allow


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/tokenize"])
async def test_a_wrong_method_tells_whoever_has_a_key_what_is_left(tmp_path, path):
    async with serving(tmp_path) as server:
        known = get(path, f"authorization: Bearer {LIMITED_KEY}", method="PUT")
        for _ in range(2):  # it reaches nothing, and takes nothing
            got = await ask(server.port, known)
            assert (got.status, got.headers["x-ratelimit-remaining-requests"]) == (405, "3")
        for nobody in ("x: 1", "authorization: Bearer sk-unknown"):
            got = await ask(server.port, get(path, nobody, method="PUT"))
            assert got.status == 405
            assert "x-ratelimit-remaining-requests" not in got.headers


async def test_an_unknown_path_is_404_in_the_same_shape(tmp_path):
    async with serving(tmp_path) as server:
        got = await ask(server.port, get("/v1/nothing"))
        assert (got.status, got.error["code"]) == (404, "not_found")
        assert (await ask(server.port, get("/v1/models/"))).status == 404


@pytest.mark.parametrize(
    ("header", "status"),
    [("content-type: text/plain", 415),
     ("content-type: application/x-www-form-urlencoded", 415),
     ("content-type: application/json; charset=latin-1", 415),
     ("content-type: Application/JSON; charset=UTF-8", 200),
     ("content-encoding: gzip", 415),
     ("content-encoding: identity", 200)],
)  # fmt: skip
async def test_only_plain_json_is_read(tmp_path, header, status):
    async with serving(tmp_path) as server:
        server.say("x")
        got = await ask(server.port, post(ASKED, header))
        assert got.status == status


async def test_a_body_too_large_is_refused_before_it_arrives(tmp_path):
    async with serving(tmp_path, max_body_bytes=1000) as server:
        head = post(b"", "x: 1").replace(b"content-length: 0", b"content-length: 100000")
        got = await ask(server.port, head)
        assert (got.status, got.error["code"]) == (413, "request_too_large")
        assert got.headers["connection"] == "close"
        chunked = post(b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
        got = await ask(server.port, chunked + b"7d0\r\n" + b"x" * 2000 + b"\r\n")
        assert got.status == 413


LARGE = b"z" * (8 << 20)  # more than connections buffer by themselves


@pytest.mark.parametrize(
    ("request_", "status"),
    [(post(LARGE), 413), (post(LARGE, key="sk-nobody"), 401),
     (post(LARGE, path="/v1/nothing"), 404), (post(LARGE, "content-encoding: gzip"), 415),
     (post(b"", f"x: {LARGE.decode()}"), 431), (b"GET / HTTP/x\r\n\r\n" + LARGE, 400)],
    ids=["413", "401", "404", "415", "431", "400"],
)  # fmt: skip
async def test_who_still_sends_when_it_is_answered_can_read_the_answer(tmp_path, request_, status):
    """And is not told of a reset instead, after which it would try again."""
    async with serving(tmp_path, max_body_bytes=1000) as server:
        got = await ask(server.port, request_)
        assert got.status == status
        assert got.headers["connection"] == "close"
        assert got.error["message"]


async def test_who_never_stops_sending_is_not_read_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.connection.PARTING_SECONDS", 0.2)
    endless = post(b"").replace(b"content-length: 0", b"content-length: 999999999999")

    async def send(writer):
        while True:
            writer.write(LARGE)
            await writer.drain()

    async with serving(tmp_path, max_body_bytes=1000) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(endless)
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(send(writer), 20)
        writer.close()


@pytest.mark.parametrize("protocol", ["h2c", "websocket", "TLS/1.2"])
async def test_an_offer_of_another_protocol_changes_nothing(tmp_path, protocol):
    """Java's clients make one with the first request of a connection."""
    async with serving(tmp_path) as server:
        server.say("x")
        body = {**ASKED, "user": "\\r\\nupgrade: me"}
        asked = post(body, f"Upgrade: {protocol}", "http2-settings: AAEAAEAAAAIAAAABAAMAAABk")
        got = await ask(
            server.port, asked.replace(b"connection: close", b"Connection: Upgrade, close")
        )
        assert got.status == 200, got.body
        assert got.json["choices"][0]["message"]["content"] == "x"


async def test_a_head_without_end_is_not_waited_for(tmp_path):
    async with serving(tmp_path, max_body_bytes=1 << 20) as server:
        begun = post(ASKED).partition(b"\r\n\r\n")[0]
        for more in (b"\r\nx-a: ", b"\r\nx: y\r\nx: "):
            head = begun + more
            got = await ask(server.port, head + b"z" * (MOST_HEAD_BYTES + 1 - len(head)))
            assert (got.status, got.error["code"]) == (431, "headers_too_large")
            assert got.headers["x-request-id"].startswith("req_")
        large = {**ASKED, "user": "u", "metadata": {"x": "y"}, "ignored": "z" * 500_000}
        server.say("x")
        asked = post(large).replace(b"connection: close", b"connection: keep-alive")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for request in (asked, asked, post(large)):  # bodies are no heads
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            await reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0]))
        writer.close()
        got = await ask(server.port, begun.replace(b"HTTP/1.1", b"HTTP/x") + b"\r\n\r\n")
        assert (got.status, got.error["code"]) == (400, "invalid_http")
        assert got.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("answered", [0, 1], ids=["the first", "a later one"])
@pytest.mark.parametrize("sent", [b"POST /v1/chat", b""])
async def test_a_head_that_does_not_come_is_not_waited_for(tmp_path, monkeypatch, sent, answered):
    monkeypatch.setattr("gateway.connection.HEAD_SECONDS", 0.1)
    monkeypatch.setattr("gateway.listener.KEEP_ALIVE_SECONDS", 1)
    async with serving(tmp_path) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        if answered:
            writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            await reader.readuntil(b"}")
        writer.write(sent)
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize(
    ("body", "param"),
    [(b"{", None), (b"", None), (b'{"model":"tiny","messages":[]}', "messages"),
     (rb'{"model":"tiny","messages":[{"role":"user","content":"\ud83d"}]}', "messages[0].content"),
     (b'{"model":"tiny","seed":9223372036854775808}', "seed"),
     (b'{"model":"tiny","stop_token_ids":[1,-9223372036854775809]}', "stop_token_ids[1]"),
     (b'{"model":"tiny","logit_bias":{"5":NaN}}', "logit_bias.5"),
     (b'{"model":"tiny","temperature":-Infinity}', "temperature"),
     (b'{"model":"tiny","top_p":1e999}', "top_p"), (b"1" * 30, None)],
    ids=["broken", "empty", "no_messages", "surrogate", "beyond", "below", "nan", "infinity",
         "exponent", "number"],
)  # fmt: skip
async def test_bad_bodies_name_the_place(tmp_path, body, param):
    async with serving(tmp_path) as server:
        got = await ask(server.port, post(body))
        assert (got.status, got.error["type"], got.error["param"]) == (
            400, "invalid_request_error", param,
        )  # fmt: skip


async def test_a_prompt_too_long_names_both_numbers(tmp_path):
    async with serving(tmp_path, context=64) as server:
        body = {"model": BASE, "messages": [{"role": "user", "content": "dog " * 100}]}
        got = await ask(server.port, post(body))
        assert (got.status, got.error["code"]) == (400, "context_length_exceeded")
        assert got.error["param"] == "messages"
        assert "64 tokens" in got.error["message"]
        assert server.engine.submitted == []


async def test_refused_requests_count_and_carry_the_limits(tmp_path):
    async with serving(tmp_path) as server:
        bad = post({"model": BASE, "messages": []}, key=LIMITED_KEY)
        answers = [await ask(server.port, bad) for _ in range(4)]
        assert [got.status for got in answers] == [400, 400, 400, 429]
        assert [got.headers["x-ratelimit-remaining-requests"] for got in answers[:3]] == [
            "2", "1", "0",
        ]  # fmt: skip
        limited = answers[3]
        assert (limited.error["type"], limited.error["code"]) == ("requests", "rate_limit_exceeded")
        assert 0 < float(limited.headers["retry-after-ms"]) <= 20_000
        assert int(limited.headers["retry-after"]) <= 20


async def test_one_request_beyond_the_whole_limit_must_not_be_retried(tmp_path):
    async with serving(tmp_path) as server:
        got = await ask(server.port, post({**ASKED, "max_tokens": 400}, key=LIMITED_KEY))
        assert (got.status, got.error["type"]) == (429, "tokens")
        assert got.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("code", "status", "told"),
    [(RefusalCode.QUEUE_FULL, 503, "server_is_overloaded"),
     (RefusalCode.DRAINING, 503, "server_is_overloaded"),
     (RefusalCode.ADAPTER_MISSING, 503, "adapter_unavailable"),
     (RefusalCode.ADAPTER_INVALID, 503, "adapter_unavailable"),
     (RefusalCode.PROMPT_TOO_LONG, 400, "context_length_exceeded"),
     (RefusalCode.NEVER_FITS, 400, "context_length_exceeded"),
     (RefusalCode.INVALID, 400, "invalid_value")],
)  # fmt: skip
@pytest.mark.parametrize("stream", [True, False])
async def test_an_engines_refusal_is_told_as_a_plain_error_and_costs_nothing(
    tmp_path, code, status, told, stream
):
    async with serving(tmp_path) as server:
        server.engine.knobs.refuse = code
        got = await ask(server.port, post({**ASKED, "stream": stream}))
        assert (got.status, got.error["code"]) == (status, told)
        assert ("retry-after-ms" in got.headers) == (told == "server_is_overloaded")
        ended = server.recorder.ended[0]
        assert (ended.prompt_tokens, ended.completion_tokens) == (0, 0)


async def test_without_an_engine_it_is_503_and_soon_again(tmp_path):
    async with serving(tmp_path) as server:
        server.engine._server.close()
        server.engine.die()
        await until(lambda: not server.health.ready)
        got = await ask(server.port, post(ASKED))
        assert (got.status, got.error["code"]) == (503, "no_engine")
        assert "retry-after" in got.headers


async def test_an_engine_lost_before_the_first_byte_is_503(tmp_path):
    async with serving(tmp_path) as server:
        server.engine.knobs.die_after = 0
        got = await ask(server.port, post({**ASKED, "stream": True}))
        assert (got.status, got.error["code"]) == (503, "engine_lost")
        assert server.recorder.ended[0].completion_tokens == 0


async def test_too_many_requests_at_once_are_turned_away(tmp_path):
    async with serving(tmp_path, max_inflight=2) as server:
        server.engine.knobs.first_delay_s = 30
        waiting = [asyncio.create_task(raw(server.port, post(ASKED))) for _ in range(2)]
        await until(lambda: server.engine.open == 2)
        got = await ask(server.port, post(ASKED))
        assert (got.status, got.error["code"]) == (503, "server_is_overloaded")
        for task in waiting:
            task.cancel()


async def test_what_cannot_be_recorded_is_not_served(tmp_path):
    async with serving(tmp_path) as server:
        server.recorder.failing = True
        got = await ask(server.port, post(ASKED))
        assert (got.status, got.error["code"]) == (503, "usage_log_unavailable")
        assert server.engine.submitted == []


@pytest.mark.parametrize("stream", [True, False])
async def test_an_end_that_cannot_be_recorded_is_not_answered_as_a_success(tmp_path, stream):
    async with serving(tmp_path) as server:
        server.engine.knobs.token_delay_s = 0.05
        asking = asyncio.create_task(ask(server.port, post({**ASKED, "stream": stream,
                                                            "max_tokens": 5})))  # fmt: skip
        await until(lambda: server.engine.open == 1)
        server.recorder.failing = True
        got = await asking
        assert b"usage_log_unavailable" in got.body
        assert got.status == (200 if stream else 503)


async def test_a_fault_of_ours_is_a_500_that_says_nothing(tmp_path, caplog):
    async with serving(tmp_path) as server:
        server.snapshot.adapters = None  # type: ignore[assignment]
        got = await ask(server.port, post({**ASKED, "model": "support"}))
        assert (got.status, got.error["code"]) == (500, "internal_error")
        assert "NoneType" not in got.body.decode()
        assert b"unexpected_errors_total 1.0" in server.metrics.text()


async def test_a_fault_of_ours_has_the_same_shape_on_every_route(tmp_path):
    router, said = APIRouter(), io.StringIO()

    @router.get("/v1/broken")
    async def broken() -> None:
        raise RecursionError("-".join(["what", "was", "sent"]))  # places show this line

    with logging_to(said):
        async with serving(tmp_path) as server:
            server.routes._behind = rest_application(
                server.health, base_model=BASE, is_open=False, routers=[router]
            )
            got = await ask(server.port, get("/v1/broken"))
            assert (got.status, got.error["code"]) == (500, "internal_error")
            assert got.headers["x-request-id"].startswith("req_")
            assert b"unexpected_errors_total 1.0" in server.metrics.text()
    assert "RecursionError" in said.getvalue()
    assert "what-was-sent" not in said.getvalue()


async def test_no_key_and_no_prompt_is_in_any_answer_log_or_metric(tmp_path):
    canary_key, canary_prompt = "sk-live-canary0123456789", "zanzibar-4711"
    said = io.StringIO()
    with logging_to(said):
        async with serving(tmp_path) as server:
            server.snapshot.keys[canary_key] = server.snapshot.keys[KEY]
            server.say("ok")
            asked = {"model": BASE, "messages": [{"role": "user", "content": canary_prompt}]}
            bodies = []
            for body in (asked, {**asked, "stream": True}, {**asked, "n": "x"},
                         {**asked, "model": "support"}, b"{"):  # fmt: skip
                bodies.append(await raw(server.port, post(body, key=canary_key)))
            bodies.append(await raw(server.port, post(asked, key=canary_key + "x")))
            server.snapshot.adapters = None  # type: ignore[assignment]
            bodies.append(await raw(server.port, post({**asked, "model": "a"}, key=canary_key)))
            metrics = server.metrics.text()
    everything = b"".join(bodies) + said.getvalue().encode() + metrics
    assert b"canary" not in everything
    assert b"zanzibar" not in everything
    assert '"project":"prj_acme"' in said.getvalue()
    assert "error_place" in said.getvalue()


def test_a_key_that_slips_into_a_message_is_blanked():
    said = io.StringIO()
    with logging_to(said):
        logging.getLogger("x").warning("refused %s", "sk-live-0123456789abcdef")
        log.logger("y").info("told", text="sk-live-0123456789abcdef")
    assert "0123456789" not in said.getvalue()
    assert said.getvalue().count("sk-…") == 2


@contextlib.contextmanager
def logging_to(stream):
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    log.configure(stream)
    try:
        yield
    finally:
        root.handlers, root.level = handlers, level
        structlog.reset_defaults()


async def test_a_strict_project_has_unknown_fields_refused_and_documented_ones_ignored(tmp_path):
    async with serving(tmp_path) as server:
        lenient = await ask(server.port, post({**ASKED, "zebra": 1, "store": True}))
        assert (lenient.status, lenient.headers["x-ignored-params"]) == (200, "store, zebra")
        strict = await ask(server.port, post({**ASKED, "zebra": 1, "store": True}, key=STRICT_KEY))
        assert (strict.status, strict.error["code"]) == (400, "unknown_parameter")
        assert strict.error["param"] == "zebra"
        known = {**ASKED, "store": True, "stream": True,
                 "stream_options": {"include_obfuscation": False}}  # fmt: skip
        assert (await ask(server.port, post(known, key=STRICT_KEY))).status == 200


@pytest.mark.parametrize("limit", ["BODY_SECONDS", "WHOLE_BODY_SECONDS"])
async def test_a_body_that_trickles_is_not_waited_for(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(f"gateway.http.{limit}", 0.2)
    async with serving(tmp_path) as server:
        request = post(ASKED)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request[:-20])
        if limit == "WHOLE_BODY_SECONDS":  # each piece comes in time
            for position in range(len(request) - 20, len(request) - 17):
                await asyncio.sleep(0.05)
                writer.write(request[position : position + 1])
        async with asyncio.timeout(5):
            answer = await reader.readuntil(b"}}")
        assert b" 400 " in answer.splitlines()[0]
        assert b'"code":"timeout"' in answer
        writer.close()
