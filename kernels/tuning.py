"""Tile sizes per op, size bucket and device; never searched while serving.

A table lists, for one op, the largest bucket an entry serves and the entry. The tables of a
device are tried first; the ones for any device fit into 96 KiB of shared memory. Every entry
is a starting point until a measurement on the device replaces it (see NOTES.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from kernels.launch import cdiv, device_name, multiprocessors, shared_bytes

UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One launch. What rows, columns and depth tile is said by the op that reads them."""

    rows: int
    columns: int
    depth: int = 0
    warps: int = 4
    stages: int = 3
    post_scale: bool = False  # matmul_w4a16: scale float32 partial sums, not the weights


Table = Sequence[tuple[int, Config]]

_ANY: Mapping[str, Table] = {
    "matmul_w4a16": (
        (16, Config(rows=16, columns=128, post_scale=True)),
        (32, Config(rows=32, columns=128, stages=2)),
        (UNLIMITED, Config(rows=64, columns=128, warps=8, stages=2)),
    ),
    "matmul_w4a16_deterministic": (
        (16, Config(rows=16, columns=128, post_scale=True)),
        (32, Config(rows=32, columns=128, stages=2, post_scale=True)),
        (UNLIMITED, Config(rows=64, columns=128, warps=8, stages=2, post_scale=True)),
    ),
    "matmul_w8a16": (
        (16, Config(rows=16, columns=64, depth=128, stages=4)),
        (32, Config(rows=32, columns=128, depth=128)),
        (64, Config(rows=64, columns=128, depth=64, warps=8)),
        (UNLIMITED, Config(rows=128, columns=128, depth=64, warps=8)),
    ),
    "paged_decode": ((UNLIMITED, Config(rows=16, columns=64)),),
    "ragged_prefill": (
        (16, Config(rows=16, columns=64)),
        (UNLIMITED, Config(rows=64, columns=64, stages=2)),
    ),
    "ragged_prefill_narrow": (
        (16, Config(rows=16, columns=64)),
        (UNLIMITED, Config(rows=64, columns=64, stages=2)),
    ),
    "ragged_prefill_deterministic": ((UNLIMITED, Config(rows=64, columns=64, stages=2)),),
    "lora_shrink": (
        (16, Config(rows=16, columns=16, depth=128, warps=2, stages=4)),
        (UNLIMITED, Config(rows=64, columns=16, depth=128)),
    ),
    "lora_shrink_handful": ((UNLIMITED, Config(rows=16, columns=16, depth=256, stages=2)),),
    "lora_expand_handful": ((UNLIMITED, Config(rows=16, columns=256, depth=16, stages=1)),),
    "sample": ((UNLIMITED, Config(rows=1, columns=4096, warps=8)),),
    "lora_expand": (
        (16, Config(rows=16, columns=256, depth=16, stages=1)),
        (UNLIMITED, Config(rows=64, columns=256, depth=16, warps=8, stages=1)),
    ),
}

_H200: Mapping[str, Table] = {
    "matmul_w4a16": (
        (16, Config(rows=16, columns=128, post_scale=True)),
        (32, Config(rows=32, columns=128)),
        (64, Config(rows=64, columns=256, warps=8, stages=2)),
        (UNLIMITED, Config(rows=128, columns=256, warps=8, stages=2)),
    ),
    "ragged_prefill": (
        (16, Config(rows=16, columns=64)),
        (UNLIMITED, Config(rows=128, columns=128, warps=8, stages=2)),
    ),
    "ragged_prefill_narrow": (
        (16, Config(rows=16, columns=64)),
        (UNLIMITED, Config(rows=128, columns=64, warps=8)),
    ),
}

_DEVICES: Mapping[str, Mapping[str, Table]] = {"h200": _H200, "h100": _H200}

MOST_SAMPLE_PARTS = 32  # of a row of logits

DEQUANTIZE_ABOVE = 512  # rows from which dequantising once and a dense product is faster


def choose(op: str, bucket: int, device: torch.device) -> Config:
    """The entry of the smallest bucket that is at least this one."""
    name = device_name(device)
    tables = next((t for key, t in _DEVICES.items() if key in name), _ANY)
    table = tables.get(op) or _ANY[op]
    return next(config for limit, config in table if bucket <= limit)


def prefill_config(op: str, bucket: int, head_bytes: int, device: torch.device) -> Config:
    """The entry, with as few keys a tile as shared memory has room for beside the queries.

    Entries are made for heads of 128 numbers in 16 bits; wider heads and float32 need more.

    Args:
        head_bytes: of one head of a key as it is multiplied, padding included.
    """
    config = choose(op, bucket, device)
    room = shared_bytes(device) // head_bytes - config.rows
    columns = config.columns
    while columns > 16 and 2 * config.stages * columns > room:  # keys and values
        columns //= 2
    return replace(config, columns=columns)


def matmul_splits(tiles: int, blocks: int, device: torch.device) -> int:
    """Parts of K for matmul_w4a16: two to three programs per multiprocessor, none of them empty.

    Args:
        tiles: output tiles of the launch.
        blocks: blocks of K a part is made of.
    """
    wanted = max(1, round(2.5 * multiprocessors(device) / tiles))
    per = cdiv(blocks, min(wanted, 16, blocks))
    return cdiv(blocks, per)


def decode_splits(sequences: int, heads: int, pages: int, device: torch.device) -> int:
    """Parts of a context for paged_decode: three programs per multiprocessor, of a page or more.

    Args:
        pages: tiles of the longest context the page table has room for.
    """
    wanted = round(3 * multiprocessors(device) / max(1, sequences * heads))
    return max(1, min(wanted, 64, pages))


def prefill_splits(programs: int, device: torch.device) -> int:
    """Parts of a context for ragged_prefill, one program of which fills a multiprocessor: those
    that end soonest, where joining them costs little beside computing them.

    Args:
        programs: tiles of rows times key heads.
    """
    width = multiprocessors(device)

    def cost(splits: int) -> float:
        joined = 0.015 * splits * programs / width if splits > 1 else 0.0
        return cdiv(programs * splits, width) / splits + joined

    return min(range(1, 17), key=cost)


def sample_parts(rows: int, blocks: int, device: torch.device) -> int:
    """Parts of a row of logits that are looked at side by side: a power of two."""
    wanted = 2 * multiprocessors(device) // max(1, rows)
    return 1 << max(0, min(wanted, blocks, MOST_SAMPLE_PARTS).bit_length() - 1)
