"""A model's chat template: Jinja in a sandbox, with the helpers such templates expect.

The template belongs to the operator's model directory, the messages to a stranger: so the
environment is immutable and sandboxed, what the template raises is an answer to the client, and
a rendering has a limit of time and of size. Time is this thread's own, looked at in every turn of
every loop, so that neighbours do not shorten it.
"""

import json
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.errors import InvalidRequest
from gateway.inference.messages import Message
from gateway.inference.rendering import PACE, PLAIN, Rendering
from gateway.inference.tokenizer import TokenizerInvalid, read_config

RENDER_SECONDS = 2.0  # of computing
MOST_RENDERED = 16 << 20  # characters
_OF_LOOP = frozenset({"first", "last", "index", "index0"})
_OF_DICT = frozenset(dir(dict))  # what a template means first: a message may not stand in its way


# What a template, or a filter that it calls, raises for messages that it cannot show.
_REFUSALS = (
    TemplateError, TypeError, LookupError, ValueError, ArithmeticError, RecursionError,
)  # fmt: skip


class RenderingTooLong(Exception):
    """Time or size ran out."""


class ChatTemplate:
    """Immutable; ``render`` may be called from several threads."""

    def __init__(self, source: str, named_tokens: dict[str, str]) -> None:
        """Raises TokenizerInvalid when the source is not a template."""
        self.source = source
        environment = _environment()
        try:
            tree = environment.parse(source)
            self.knows_tools = "tools" in find_undeclared_variables(tree)
            self.reads_parts = _loops_over_content(tree)
            _pace_loops(tree, environment)
            self._template = environment.from_string(tree)
            # Each rendering copies them, and takes far longer over the chain that jinja makes.
            self._template.globals = dict(self._template.globals)
        except TemplateError as error:
            raise TokenizerInvalid(f"the chat template: {error}") from error
        self._named_tokens = named_tokens
        self.source = source

    @classmethod
    def load(cls, model_dir: Path, named_tokens: dict[str, str]) -> "ChatTemplate | None":
        """From chat_template.jinja, the older chat_template.json of processors, or
        tokenizer_config.json; None when the model has none.
        """
        path = model_dir / "chat_template.jinja"
        source = path.read_text("utf-8") if path.exists() else _configured(model_dir)
        return cls(source, named_tokens) if source is not None else None

    def render(self, messages: Sequence[Message], how: Rendering = PLAIN) -> str:
        """The prompt. Raises InvalidRequest."""
        try:
            return "".join(self._pieces(messages, how))
        except RenderingTooLong as error:
            raise InvalidRequest(
                f"The model's chat template makes too much of these messages: {error}.",
                param="messages",
            ) from error
        except _REFUSALS as error:
            raise InvalidRequest(
                f"The model's chat template refuses these messages: {str(error)[:500]}",
                param="messages",
            ) from error

    def _pieces(self, messages: Sequence[Message], how: Rendering) -> Iterator[str]:
        pace = _Pace()

        size = 0
        given = {
            **how.extra,
            **self._named_tokens,
            "messages": messages,
            "add_generation_prompt": how.opens_turn,
            "tools": how.tools,
            PACE: pace,
        }
        for piece in self._template.generate(given):
            pace()
            size += len(piece)
            if size > MOST_RENDERED:
                raise RenderingTooLong(f"more than {MOST_RENDERED} characters")
            yield piece


class _Pace:
    """Called again and again, ends what computes too long.

    What a thread computed costs a system call to ask, so the clock on the wall is asked first:
    most renderings end before half their time is over on it.
    """

    __slots__ = ("_computed", "_until")

    def __init__(self) -> None:
        self._until = time.monotonic() + RENDER_SECONDS / 2
        self._computed: float | None = None  # where the second half ends

    def __call__(self) -> None:
        if time.monotonic() <= self._until:
            return
        if self._computed is None:
            self._computed = time.thread_time() + RENDER_SECONDS / 2
        elif time.thread_time() > self._computed:
            raise RenderingTooLong(f"more than {RENDER_SECONDS:g} s of computing")


class _GenerationTag(Extension):
    """``{% generation %}`` marks what a trainer learns from; for serving it is transparent."""

    tags = {"generation"}  # noqa: RUF012  jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _loops_over_content(tree: nodes.Template) -> bool:
    """Whether messages may have a list of parts: some loop goes through what is their content."""
    named = {"content"}  # so macros call it
    for assign in tree.find_all(nodes.Assign):
        if isinstance(assign.target, nodes.Name) and _of_content(assign.node, named):
            named.add(assign.target.name)
    return any(_of_content(loop.iter, named) for loop in tree.find_all(nodes.For))


def _of_content(node: nodes.Node, named: set[str]) -> bool:
    """``message.content``, ``message['content']`` or a name of it, perhaps filtered."""
    match node:
        case nodes.Filter(node=nodes.Node() as inner):
            return _of_content(inner, named)
        case nodes.Getattr(attr="content") | nodes.Getitem(arg=nodes.Const(value="content")):
            return True
        case nodes.Name(name=name):
            return name in named
    return False


def _pace_loops(tree: nodes.Template, environment: ImmutableSandboxedEnvironment) -> None:
    """Let every loop ask for the time."""
    for loop in tree.find_all(nodes.For):
        look = nodes.Call(nodes.Name(PACE, "load"), [], [], None, None)
        turn = nodes.ExprStmt(look).set_lineno(loop.lineno).set_environment(environment)
        loop.body.insert(0, turn)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Asks a plain dictionary for ``message.role`` without an exception on the way, and a loop for
    its place without asking whether it may."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict and attribute in obj and attribute not in _OF_DICT:
            return obj[attribute]
        if kind is LoopContext and attribute in _OF_LOOP:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Sandbox(  # prompts are not HTML: nothing is escaped
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda shape: datetime.now().strftime(shape)
    return environment


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _configured(model_dir: Path) -> str | None:
    """Raises TokenizerInvalid for a file, or a template, that is not as such files are."""
    older = read_config(model_dir, "chat_template.json").get("chat_template")
    value = read_config(model_dir).get("chat_template") if older is None else older
    if isinstance(value, list):  # several by name
        try:
            value = {item["name"]: item["template"] for item in value}
        except (TypeError, KeyError) as error:
            raise TokenizerInvalid("chat_template: expected a name and a template each") from error
    if isinstance(value, dict):
        value = value.get("default")
    if not isinstance(value, str | None):
        raise TokenizerInvalid(f"chat_template: {value!r:.80}; expected a template or several")
    return value
