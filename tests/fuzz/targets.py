"""The parsers that read what strangers send, each with sound samples to start from.

A target takes an input and says whether it was accepted. A refusal is one of the documented
errors; anything else that is raised is a crash, and so is an input that takes too long.
"""

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from starlette.requests import Request
from starlette.types import Message

from adapters.config import read_config
from adapters.errors import AdapterInvalid
from adapters.keys import LoraKey, parse_key
from adapters.pattern_grammar import PatternRefused
from adapters.tensor_file import TensorFile
from adapters.validate import validate
from gateway.adapter_api.multipart import receive_form
from gateway.errors import GatewayError
from gateway.http import ClientGone
from tests.adapters.builders import BASE, config, lora, pack_file, write_adapter
from tests.fuzz.mutation import mutated, mutated_json

BOUNDARY = b"boundary0123"
NAMES = (
    "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
    "base_model.model.model.layers.31.mlp.down_proj.lora_B.default.weight",
    "base_model.model.lm_head.modules_to_save.weight",
    "model.embed_tokens.token_adapter.trainable_tokens_delta",
    "base_model.model.model.language_model.layers.2.self_attn.o_proj.base_layer.bias",
)
RICH = config(
    rank_pattern={"down_proj": 7, r"layers\.1\.self_attn\..*": 2},
    alpha_pattern={"up_proj": 1.5, "^model.layers.0.q_proj": 30},
    target_modules=r".*layers\.\d+\..*(q|down)_proj",
    use_rslora=True, bias="all", modules_to_save=["lm_head"], layers_to_transform=[0, 1],
    trainable_token_indices={"embed_tokens": [1, 2]}, alora_invocation_tokens=[1, 2],
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    share: float  # of all inputs
    make: Callable[[Random], bytes]
    accepts: Callable[[bytes], bool]


def targets(scratch: Path) -> list[Target]:
    """``scratch``: a directory for those that read files."""
    loop = asyncio.new_event_loop()
    return [
        Target("keys", 0.40, _make_key, _key),
        Target("config", 0.25, _make_config, _config),
        Target("safetensors header", 0.25, _make_file, _header),
        Target("multipart", 0.09, _make_form, lambda data: loop.run_until_complete(_form(data))),
        Target("whole adapter", 0.01, _make_file, lambda data: _adapter(scratch, data)),
    ]


def _make_key(random: Random) -> bytes:
    names = [name.encode() for name in NAMES]
    return mutated(random, random.choice(names), names)


def _key(data: bytes) -> bool:
    return isinstance(parse_key(data.decode("utf-8", "surrogateescape")), LoraKey)


def _make_config(random: Random) -> bytes:
    samples = [config(), RICH]
    if random.random() < 0.6:
        return mutated_json(random, random.choice(samples))
    raw = [json.dumps(sample).encode() for sample in samples]
    return mutated(random, random.choice(raw), raw)


def _config(data: bytes) -> bool:
    found, problems = read_config(data)
    if found is not None:
        try:
            for name in NAMES:
                found.ranks.find(name)
                found.alphas.find(name)
        except PatternRefused:
            return False
    assert found is not None or problems
    return not problems


def _make_file(random: Random) -> bytes:
    samples = [pack_file(lora()), pack_file(lora(1) | lora(2, "down_proj")), pack_file({})]
    sample = random.choice(samples)
    length = int.from_bytes(sample[:8], "little")
    if random.random() < 0.6:  # a sound frame around another header
        header = mutated_json(random, json.loads(sample[8 : 8 + length]))
        return len(header).to_bytes(8, "little") + header + sample[8 + length :]
    return mutated(random, sample, samples)


def _header(data: bytes) -> bool:
    descriptor = os.memfd_create("fuzz")
    try:
        os.write(descriptor, data)
        path = Path(f"/proc/self/fd/{descriptor}")
        with TensorFile.open(path, follow_symlinks=True) as file:
            read = sum(len(file.read(tensor)) for tensor in file.tensors.values())
            length = int.from_bytes(data[:8], "little")
            assert read == len(data) - 8 - length, "every byte belongs to one tensor"
        return True
    except AdapterInvalid:
        return False
    finally:
        os.close(descriptor)


def _make_form(random: Random) -> bytes:
    def part(name: str, data: bytes, filename: str = "") -> bytes:
        named = f'; filename="{filename}"' if filename else ""
        head = f'Content-Disposition: form-data; name="{name}"{named}\r\n\r\n'
        return b"--" + BOUNDARY + b"\r\n" + head.encode() + data + b"\r\n"

    files = part("f", b"{}", "adapter_config.json") + part(
        "f", b"x" * 40, "adapter_model.safetensors"
    )
    sound = [
        part("name", b"support") + files + b"--" + BOUNDARY + b"--\r\n",
        files + part("name", b"a") + part("force", b"true") + b"--" + BOUNDARY + b"--\r\n",
    ]
    return mutated(random, random.choice(sound), sound)


async def _form(data: bytes) -> bool:
    pieces = [data[start : start + 97] for start in range(0, len(data), 97)] or [b""]
    kind = b"multipart/form-data; boundary=" + BOUNDARY
    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", kind)], "app": None}
    try:
        _, files = await receive_form(Request(scope, _receiving(pieces)), limit=1 << 16)
    except (GatewayError, ClientGone):
        return False
    for file in files.values():
        file.close()
    return True


def _receiving(pieces: Sequence[bytes]) -> Callable[[], "asyncio.Future[Message]"]:
    left = list(pieces)

    async def receive() -> Message:
        if not left:
            return {"type": "http.disconnect"}
        body = left.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(left)}

    return receive  # type: ignore[return-value]


def _adapter(scratch: Path, data: bytes) -> bool:
    random = Random(data)
    settings: object = config() if random.random() < 0.5 else _make_config(random)
    try:
        validate(write_adapter(scratch / "adapter", settings, data), BASE, force=True)
    except AdapterInvalid:
        return False
    return True
