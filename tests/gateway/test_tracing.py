"""The spans of a request, from HTTP to the passes: one trace, the standard's names, no secret."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from engine.client import EngineClient
from engine.otlp import TracingUnavailable, open_provider
from engine.protocol import Submit
from engine.traces import RequestTraces
from gateway.tracing import Tracing
from tests.engine.live import LiveEngine
from tests.gateway.serving import BASE, KEY, ask, post, serving
from tests.gateway.test_canary import model

__all__ = ["model"]

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
SECRET = "the vault opens at nine"


class Spans:
    """What was exported, as a collector would get it."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def __call__(self):
        return {span.name: span for span in self._exporter.get_finished_spans()}

    @property
    def text(self) -> str:
        return "\n".join(span.to_json() for span in self._exporter.get_finished_spans())


@pytest.fixture
def spans() -> Spans:
    return Spans()


def chat(**changes) -> dict:
    message = {"role": "user", "content": SECRET}
    return {"model": BASE, "messages": [message], "max_tokens": 5, **changes}


async def test_a_request_is_one_trace_and_its_engine_hears_of_it(tmp_path, spans):
    async with serving(tmp_path, tracing=Tracing(spans.provider)) as server:
        answer = await ask(server.port, post(chat(), f"traceparent: {TRACEPARENT}"))
        sent = server.last.traceparent
    http, inference = spans()["POST /v1/chat/completions"], spans()[f"chat {BASE}"]
    assert f"{http.context.trace_id:032x}" == TRACE
    assert f"{http.parent.span_id:016x}" == PARENT
    assert inference.parent.span_id == http.context.span_id
    assert sent == f"00-{TRACE}-{inference.context.span_id:016x}-01"
    usage = answer.json["usage"]
    told = dict(inference.attributes)
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.request.model"] == told["gen_ai.response.model"] == BASE
    assert told["gen_ai.request.max_tokens"] == 5
    assert told["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert told["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert told["gen_ai.response.finish_reasons"] == (answer.json["choices"][0]["finish_reason"],)
    assert http.attributes["http.response.status_code"] == 200
    assert http.attributes["loratorio.project.id"]


async def test_the_log_line_names_the_trace(tmp_path, spans, capsys):
    async with serving(tmp_path, tracing=Tracing(spans.provider)) as server:
        await ask(server.port, post(chat(), f"traceparent: {TRACEPARENT}"))
    [line] = [line for line in capsys.readouterr().out.splitlines() if "/v1/chat" in line]
    facts = json.loads(line)
    assert facts["trace"] == TRACE
    assert facts["project"] == "prj_acme"
    assert SECRET not in line


async def test_neither_prompts_nor_answers_nor_keys_are_in_a_span(tmp_path, spans):
    async with serving(tmp_path, tracing=Tracing(spans.provider)) as server:
        await ask(server.port, post(chat()))
        await ask(server.port, post(chat(model=SECRET)))
        await ask(server.port, post(b'{"model": "' + SECRET.encode()))
    assert len(spans()) == 2
    assert SECRET not in spans.text
    assert KEY not in spans.text


async def test_a_refused_request_is_a_span_with_its_error(tmp_path, spans):
    async with serving(tmp_path, tracing=Tracing(spans.provider)) as server:
        await ask(server.port, post(chat(model="nobody")))
    [span] = spans().values()
    assert span.attributes["error.type"] == "model_not_found"
    assert span.attributes["http.response.status_code"] == 404


@pytest.mark.parametrize("sent", ["", "garbage", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
async def test_what_is_no_context_begins_a_trace_of_its_own(tmp_path, spans, sent):
    async with serving(tmp_path, tracing=Tracing(spans.provider)) as server:
        await ask(server.port, post(chat(), f"traceparent: {sent}"))
    http = spans()["POST /v1/chat/completions"]
    assert http.parent is None
    assert http.context.trace_id != 0


async def test_a_client_that_does_not_sample_gets_no_spans(tmp_path, spans):
    async with serving(tmp_path, tracing=Tracing(spans.provider)) as server:
        await ask(server.port, post(chat(), f"traceparent: {TRACEPARENT[:-1]}0"))
    assert spans() == {}


async def test_without_tracing_an_engine_is_told_of_none(tmp_path):
    async with serving(tmp_path) as server:
        await ask(server.port, post(chat(), f"traceparent: {TRACEPARENT}"))
        assert server.last.traceparent == ""


async def test_a_real_engine_says_how_long_queue_prefill_and_decode_took(model, tmp_path, spans):
    address = f"unix:{tmp_path / 'e.sock'}"
    traces = RequestTraces(spans.provider, "live")
    with LiveEngine(model, tmp_path / "store", address, traces=traces):
        async with await EngineClient.connect(address, gateway="gw") as client:
            submit = Submit("req_1", "t", [1, 2, 3], 4, ignore_eos=True, traceparent=TRACEPARENT)
            async with client.generate(submit) as stream:
                while await stream.batch():
                    pass
            untraced = Submit("req_2", "t", [1, 2, 3], 2, ignore_eos=True)
            async with client.generate(untraced) as stream:
                while await stream.batch():
                    pass
    assert list(spans()) == ["engine.queue", "engine.prefill", "engine.decode"]
    queue, prefill, decode = spans().values()
    for span in (queue, prefill, decode):
        assert f"{span.context.trace_id:032x}" == TRACE
        assert f"{span.parent.span_id:016x}" == PARENT
        assert span.attributes["loratorio.request.id"] == "req_1"
        assert span.end_time >= span.start_time
    assert queue.end_time == prefill.start_time
    assert prefill.end_time == decode.start_time
    assert decode.end_time > decode.start_time
    assert json.loads(decode.to_json())["attributes"]["loratorio.finish"] == "length"


def test_a_collector_without_an_address_is_said_at_start():
    with pytest.raises(TracingUnavailable, match="'collector:4318' does not begin with http://"):
        open_provider("collector:4318", "x")


def test_spans_reach_a_collector_over_http():
    got: list[tuple[str, str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append((self.path, self.headers["content-type"], body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        provider = open_provider(f"http://127.0.0.1:{collector.server_port}/", "loratorio-test")
        provider.get_tracer("t").start_span("engine.queue").end()
        provider.shutdown()  # sends what is left
        collector.shutdown()
        thread.join()
    [(path, kind, body)] = got
    assert (path, kind) == ("/v1/traces", "application/x-protobuf")
    assert b"engine.queue" in body
    assert b"loratorio-test" in body
