"""The guide from vLLM tells the truth: its tables against parser, API description and metrics."""

import argparse
import re
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from gateway.adapter_api.vllm import vllm_router
from gateway.cli.flags import UNNEEDED, add_serve
from tests.deploy.exported import exported_names
from tests.gateway.serving import ask, serving

GUIDE = (Path(__file__).parents[2] / "docs" / "from-vllm.md").read_text()
SUFFIX = re.compile(r"_(bucket|sum|count|total|created)$")


def rows(heading: str) -> list[tuple[list[str], str]]:
    """Of the table under a heading: what the first column names in code, and the second column."""
    section = GUIDE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells, heading
    return [(re.findall(r"`([^`]+)`", cell[0]), cell[1]) for cell in cells]


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()


@pytest.fixture(scope="module")
def flags() -> set[str]:
    parser = argparse.ArgumentParser()
    add_serve(parser)
    return {option for action in parser._actions for option in action.option_strings}


FLAGS = [(flag, here) for named, here in rows("Flags") for flag in named if flag[0] == "-"]


@pytest.mark.parametrize(("flag", "here"), FLAGS, ids=[flag for flag, _ in FLAGS])
def test_a_flag_is_what_the_guide_says(flag: str, here: str, flags: set[str]):
    assert (flag in UNNEEDED) == (here == "not needed")
    assert (flag in flags) == (here in ("same", "not needed"))


def test_no_flag_that_is_accepted_for_vllms_sake_is_left_out(flags: set[str]):
    negated = {f"--no-{flag.removeprefix('--')}" for flag in UNNEEDED}
    others = {"--no-enable-log-requests"}  # the newer name of --disable-log-requests
    assert UNNEEDED.keys() - negated - others <= {flag for flag, _ in FLAGS}


def test_flags_of_ours_that_the_guide_names_are_flags(flags: set[str]):
    for flag in set(re.findall(r"`(--[a-z-]+)`", GUIDE)) - {flag for flag, _ in FLAGS}:
        assert flag in flags or flag == "--local-dir", flag


async def test_routes_are_those_of_the_apis_description(tmp_path: Path):
    async with serving(tmp_path) as server:
        paths = set((await ask(server.port, get("/openapi.json"))).json["paths"])
        adapters = vllm_router(None, None)  # type: ignore[arg-type]  of which only paths are read
        paths |= {route.path for route in adapters.routes if isinstance(route, APIRoute)}
        for named, here in rows("Routes"):
            for path in named:
                assert (path in paths) == (here == "same"), path
                if here.startswith("`/"):
                    assert (await ask(server.port, get(here.strip("`")))).status in (200, 503)
                elif here != "same":
                    assert (await ask(server.port, get(path))).status == 404


def test_metrics_are_exported_under_vllms_names():
    exported = {SUFFIX.sub("", name) for name in exported_names() if name.startswith("vllm:")}
    same = {name for named, here in rows("Metrics") if here.startswith("same") for name in named}
    none = {name for named, here in rows("Metrics") if here == "none" for name in named}
    assert same <= exported
    assert not none & exported
    assert exported - same <= {"vllm:spec_decode_num_accepted_tokens_per_pos"}
