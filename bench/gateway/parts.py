"""What each part of a request costs alone: CPU of this process, in a loop that does nothing else.

In a busy server caches are cold and parts cost more; their sum is less than what a request costs.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from bench.gateway.admission import ANSWER, WHO
from bench.gateway.load import chat
from engine.protocol import Output, Step, Submit, ToGateway
from gateway.catalog.target import Target
from gateway.inference.body import parse_object
from gateway.inference.choice import Choice, Delta
from gateway.inference.frames import ChatFrames
from gateway.inference.order import Order
from gateway.inference.prompt import Prompts
from gateway.inference.template import ChatTemplate
from gateway.inference.tokenizer import Tokenizer
from gateway.inference.wire import read_chat
from gateway.metrics import Metrics
from tests.gateway.serving import BASE, build_model_dir

ROUNDS, TURNS = 7, 200
STREAMS = 16  # whose tokens one frame of an engine holds


async def parts(folder: Path) -> dict[str, float]:
    """Microseconds, by what is done."""
    model = build_model_dir(folder / "parts")
    tokenizer = Tokenizer.load(model)
    body = chat(ANSWER, stream=True)
    with ThreadPoolExecutor(1) as threads:
        template = ChatTemplate.load(model, tokenizer.named_tokens)
        assert template is not None, "the test model has one"
        prompts = Prompts(tokenizer, template, threads)
        asked = read_chat(parse_object(body))
        tokens, text = await prompts.of_chat(asked.messages), template.render(asked.messages)
    order = Order(
        id="req_bench", principal=WHO, options=asked.options, prompts=[tokens], room=1000,
        target=Target(public_name=BASE, base_model=BASE, name=BASE, created=0, owner="bench"),
        deadline_ms=1000,
    )  # fmt: skip
    frames = ChatFrames(order, tokenizer, created=0)
    choice = Choice(0, tokenizer)
    encode = msgspec.msgpack.Encoder().encode
    decode = msgspec.msgpack.Decoder(ToGateway).decode
    outputs = [Output(f"req_{number:032}", [tokens[0]]) for number in range(STREAMS)]
    step, delta = encode(Step(outputs)), Delta("quick")
    timing = Metrics().timing("chat.completions")
    submit: Callable[[], list[Submit]] = order.submits
    return {
        "read and check, per request": _us(lambda: read_chat(parse_object(body))),
        "render the template, per request": _us(lambda: template.render(asked.messages)),
        "tokenise, per request": _us(lambda: tokenizer.encode(text, add_special=False)),
        "protocol, per request": _us(lambda: encode(submit()[0])),
        "protocol, per token": _us(lambda: decode(step)) / STREAMS,
        "detokenise, per token": _us(lambda: choice.feed(outputs[0])),
        "SSE, per token": _us(lambda: frames.chunk(0, delta)),
        "metrics, per token": _us(timing.heard),
    }


def _us(work: Callable[[], object]) -> float:
    """The quickest round: others were disturbed."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time()
        for _ in range(TURNS):
            work()
        best = min(best, time.thread_time() - began)
    return best / TURNS * 1e6
