"""A real server on a real port, in front of fake engines over the real protocol."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from fastapi import FastAPI
from msgspec import structs
from openai import AsyncOpenAI
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as RustTokenizer

from engine.protocol import AdapterRef, BaseInfo, Role, Submit
from engine.seeing import Seeing
from gateway.adapter_api.residents import Residents
from gateway.catalog.target import Subject, Target, nobody
from gateway.cors import with_cors
from gateway.db import Database
from gateway.errors import ModelNotFound, Unauthenticated, UsageLogUnavailable
from gateway.fleet.directory import Static
from gateway.fleet.fleet import Fleet
from gateway.fleet.handoffs import HandoffRule
from gateway.health import Health
from gateway.idempotency.answers import Answers, MemoryAnswers
from gateway.identity.principal import Principal
from gateway.inference.calling import CallSupport
from gateway.inference.gate import Gate
from gateway.inference.grammars import GrammarCheck
from gateway.inference.intake import Intake
from gateway.inference.prompt import Prompts
from gateway.inference.public import PublicBeginnings
from gateway.inference.recommended import Recommended
from gateway.inference.routes import Routes
from gateway.inference.sampling import UNSAID
from gateway.inference.services import Services, TariffOf, unpriced
from gateway.inference.sight import Sight
from gateway.inference.template import ChatTemplate
from gateway.inference.tokenization import Tokenization
from gateway.inference.tokenizer import Tokenizer
from gateway.limits.limiter import RateLimiter, memory_limiter
from gateway.listener import Listener
from gateway.metrics import Metrics
from gateway.refusals.tally import Tally
from gateway.responses.archive import Archive
from gateway.responses.endpoint import ResponseEndpoint
from gateway.responses.routes import response_router
from gateway.rest import rest_application
from gateway.texts.exchange import Texts
from gateway.tracing import Tracing
from gateway.usage.record import Finished, Record, Started
from tests.fakes.clock import until
from tests.fakes.engine import BASE as FAKE_BASE
from tests.fakes.engine import FakeEngine, Knobs

BASE = "tiny"
KEY, OTHER_KEY, LIMITED_KEY, ADMIN_KEY = "sk-acme", "sk-globex", "sk-limited", "sk-admin"
STRICT_KEY = "sk-strict"
CHATML = (
    "{% for message in messages %}{% if loop.first and message.role != 'system' %}"
    "<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = ["The quick brown fox jumps over the lazy dog.", "Hello, world! How are you today?",
          "stop beta gamma User: 123", "häßlich 中文 日本語 🙂🚀 café"]  # fmt: skip


def build_model_dir(path: Path) -> Path:
    """A byte-level vocabulary of a few hundred tokens with a chat template."""
    rust = RustTokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.Sequence(
        [  # type: ignore[assignment]
            pre_tokenizers.Split(Regex(r"\d"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    rust.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    rust.train_from_iterator(CORPUS * 4, trainers.BpeTrainer(
        vocab_size=420, show_progress=False,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    ))  # fmt: skip
    path.mkdir(parents=True, exist_ok=True)
    rust.save(str(path / "tokenizer.json"))
    config = {"chat_template": CHATML, "bos_token": "<|im_start|>",
              "eos_token": {"content": "<|im_end|>"}}  # fmt: skip
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def principal(name: str, **limits: int) -> Principal:
    return Principal(
        organisation="org_1", project=f"prj_{name}", project_name=name, key=f"key_{name}",
        tenant=f"hash-{name}", **limits,  # type: ignore[arg-type]
    )  # fmt: skip


@dataclass
class FakeSnapshot:
    """Keys and names as the real snapshot answers them."""

    keys: dict[str, Principal] = field(default_factory=lambda: {
        KEY: principal("acme"),
        OTHER_KEY: principal("globex"),
        LIMITED_KEY: principal("limited", requests_per_minute=3, tokens_per_minute=300),
        STRICT_KEY: replace(principal("acme"), strict=True),
        ADMIN_KEY: Principal(organisation="org_1", project="", project_name="", key="key_admin",
                             tenant="", admin=True),
    })  # fmt: skip
    adapters: dict[tuple[str, str], AdapterRef] = field(default_factory=lambda: {
        ("prj_acme", "support"): AdapterRef("d" * 64, 8),
        ("prj_acme", "json"): AdapterRef("e" * 64, 16),
    })  # fmt: skip
    open_tenant: str | None = None

    async def recognise(self, key: str) -> Principal:
        if key in self.keys:
            return self.keys[key]
        if self.open_tenant:
            return self.keys[self.open_tenant]
        raise Unauthenticated

    def resolve(self, principal: Principal, name: str, subject: Subject = nobody) -> Target:
        if name == BASE:
            return Target(public_name=name, base_model=BASE, created=1, owner="loratorio")
        adapter = self.adapters.get((principal.project, name))
        if adapter is None:
            raise ModelNotFound(name)
        return Target(public_name=name, base_model=BASE, adapter=adapter, adapter_id=f"adp_{name}",
                      created=2, owner=principal.project_name)  # fmt: skip

    def models(self, principal: Principal) -> list[Target]:
        names = [name for project, name in self.adapters if project == principal.project]
        return [self.resolve(principal, name) for name in (BASE, *names)]


@dataclass
class FakeRecorder:
    records: list[Record] = field(default_factory=list)
    delay_s: float = 0.0

    failing: bool = False

    async def started(self, record: Started) -> None:
        if self.failing:
            raise UsageLogUnavailable("disk full")
        self.records.append(record)

    async def finished(self, record: Finished) -> None:
        if self.failing:
            raise UsageLogUnavailable("disk full")
        await asyncio.sleep(self.delay_s)
        self.records.append(record)

    @property
    def ended(self) -> list[Finished]:
        return [record for record in self.records if isinstance(record, Finished)]


@dataclass
class Server:
    port: int
    engines: list[FakeEngine]
    snapshot: FakeSnapshot
    recorder: FakeRecorder
    metrics: Metrics
    health: Health
    tokenizer: Tokenizer
    routes: Routes

    @property
    def engine(self) -> FakeEngine:
        return self.engines[0]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, key: str = KEY) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=10)

    def say(self, text: str) -> None:
        """Every request from here on is answered with this text, then end-of-sequence."""
        tokens = self.tokenizer.encode(text, add_special=False)
        self.script(lambda _: tokens)

    def script(self, script: "object") -> None:
        for engine in self.engines:
            engine.knobs.script = script  # type: ignore[assignment]

    def tokenizer_text(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.tokenizer.bytes_of, tokens)).decode()

    @property
    def last(self) -> Submit:
        return self.engine.submitted[-1]


def parrot(submit: Submit) -> list[int]:
    """The prompt's ordinary tokens, over and over, never stopping by itself."""
    ordinary = [token for token in submit.tokens if token > 2]
    return list(itertools.islice(itertools.cycle(ordinary), submit.max_tokens))


def base_that_sees(seeing: Seeing) -> BaseInfo:
    side = seeing.preparation.side
    return structs.replace(FAKE_BASE, image_tokens=seeing.tokens, image_side=side)


@asynccontextmanager
async def serving(
    folder: Path,
    *,
    engines: int = 1,
    is_open: bool = False,
    max_body_bytes: int = 1 << 16,
    max_inflight: int = 64,
    timeout_s: float = 30.0,
    context: int = 512,
    snapshot_age: "Sequence[float]" = (0.0,),
    limiter: RateLimiter | None = None,
    tariff: TariffOf = unpriced,
    database: Database | None = None,
    answers: Answers | None = None,
    forwarded_hops: int = 0,
    priority_tier: bool = False,
    allowed_origins: Sequence[str] = (),
    tool_call_parser: str = "auto",
    template: str = CHATML,
    public: Sequence[str] = (),
    residents: "Callable[[Fleet], Residents] | None" = None,
    seeing: Seeing | None = None,
    tracing: Tracing | None = None,
    roles: Sequence[Role] = (),
    handoffs: HandoffRule | None = None,
    texts: Texts | None = None,
    refusals: Tally | None = None,
    unsaid: Recommended = UNSAID,
) -> AsyncIterator[Server]:
    snapshot = FakeSnapshot(open_tenant=KEY if is_open else None)
    recorder, metrics = FakeRecorder(), Metrics()
    fakes = [
        FakeEngine(
            f"unix:{folder}/e{next(_numbers)}.sock",
            max_model_len=context,
            knobs=Knobs(script=parrot),
            base=base_that_sees(seeing) if seeing else FAKE_BASE,
        )
        for _ in range(engines)
    ]
    for fake, role in zip(fakes, roles, strict=False):
        takes = "" if role is Role.PREFILL else "tcp:taker:1"
        fake.welcome = structs.replace(fake.welcome, role=role, takes=takes)
    for fake in fakes:
        await fake.__aenter__()
    addresses = tuple(fake.address for fake in fakes)
    fleet = Fleet(Static(addresses), gateway="test", handoffs=handoffs)
    running = asyncio.create_task(fleet.run())
    threads = ThreadPoolExecutor(1)
    model_dir = build_model_dir(folder / "model")
    tokenizer = Tokenizer.load(model_dir)
    chat = ChatTemplate(template, tokenizer.named_tokens)
    sight = Sight(seeing, threads) if seeing else None
    placeholder = seeing.token if seeing else None
    prompts = Prompts(tokenizer, chat, threads, placeholder=placeholder)
    health = Health(fleet, lambda: snapshot_age[0])
    services = Services(
        gate=Gate(snapshot, open_to_this_machine=is_open, forwarded_hops=forwarded_hops),
        limiter=limiter or memory_limiter(),
        recorder=recorder, fleet=fleet, tokenizer=tokenizer, metrics=metrics,
        max_body_bytes=max_body_bytes, max_inflight=max_inflight, tariff=tariff,
        answers=answers or MemoryAnswers(),
        residents=residents(fleet) if residents else None, tracing=tracing,
        texts=texts, refusals=refusals or Tally(),
    )  # fmt: skip
    grammars = GrammarCheck()
    intake = Intake(
        snapshot, prompts, fleet, grammars=grammars,
        calls=CallSupport(chat, tool_call_parser), deadline_ms=int(timeout_s * 1000),
        priority_tier=priority_tier,
        public=await PublicBeginnings.of_system(public, prompts), sight=sight, unsaid=unsaid,
    )  # fmt: skip
    archive = Archive(database, days=30) if database else None
    routers = [response_router(services.gate, archive)] if archive else []
    rest: FastAPI = rest_application(health, base_model=BASE, is_open=is_open, routers=routers)
    tokenization = Tokenization(snapshot, prompts, fleet, sight)
    routes = Routes(
        services,
        intake,
        snapshot,
        tokenization=tokenization,
        health=health,
        behind=rest,
        responses=ResponseEndpoint(intake.chat, archive) if archive else None,
    )
    listener = Listener(with_cors(routes, allowed_origins), "127.0.0.1", 0)
    serving_task = asyncio.create_task(listener.run_until_stopped())
    try:
        await until(lambda: listener.started and len(fleet.ready) == len(addresses))
        yield Server(listener.port, fakes, snapshot, recorder, metrics, health, tokenizer, routes)
    finally:
        await _stop_at_once(listener, serving_task)
        running.cancel()
        await asyncio.wait([running])
        for fake in fakes:
            await fake.__aexit__(None, None, None)
        threads.shutdown()
        grammars.close()


async def _stop_at_once(listener: Listener, task: asyncio.Task[None]) -> None:
    """The graceful end, which a test of the whole process covers, polls: too slow for each test."""
    task.cancel()
    await asyncio.wait([task])
    for server in listener.servers:
        server.close()
    for connection in list(listener.server_state.connections):
        connection.transport.abort()
    if listener.server_state.tasks:
        await asyncio.wait(listener.server_state.tasks, timeout=5)


_numbers = itertools.count()


async def raw(port: int, request: bytes, *, read: int = -1, within_s: float = 5) -> bytes:
    """Bytes out, bytes in, on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        await writer.drain()
        async with asyncio.timeout(within_s):
            return await reader.read(read)
    finally:
        writer.close()


def post(body: bytes | dict[str, object], *headers: str, path: str = "/v1/chat/completions",
         key: str = KEY) -> bytes:  # fmt: skip
    """A request that asks for the connection to be closed after its answer."""
    raw_body = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: localhost", f"authorization: Bearer {key}",
             f"content-length: {len(raw_body)}", "connection: close", *headers]  # fmt: skip
    if not any(h.lower().startswith("content-type") for h in headers):
        lines.append("content-type: application/json")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + raw_body


@dataclass
class Got:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict:  # type: ignore[type-arg]
        return json.loads(self.body)

    @property
    def error(self) -> dict:  # type: ignore[type-arg]
        return self.json["error"]


async def ask(port: int, request: bytes, *, within_s: float = 5) -> Got:
    """Send and parse; chunked bodies are joined."""
    head, _, body = (await raw(port, request, within_s=within_s)).partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (s.partition(":") for s in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = _dechunk(body)
    return Got(int(status.split()[1]), headers, body)


def _dechunk(body: bytes) -> bytes:
    joined = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        joined, body = joined + body[:length], body[length + 2 :]
    return joined
