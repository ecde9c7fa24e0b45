"""A command line known from vLLM runs unchanged, and what cannot work is refused in a sentence."""

from pathlib import Path

import pytest

from gateway.cli.flags import add_serve
from gateway.cli.main import Parser, main
from gateway.cli.serve_options import FlagsInvalid, ServeOptions, read_serve


def options(*arguments: str) -> ServeOptions:
    parser = Parser(prog="loratorio serve", allow_abbrev=False)
    add_serve(parser)
    return read_serve(parser.parse_args(arguments))


def test_a_tutorials_command_line_runs_unchanged(tmp_path: Path):
    read = options(
        *("--model", str(tmp_path), "--served-model-name", "base", "--max-model-len", "2048"),
        *("--max-num-seqs", "64", "--max-num-batched-tokens", "512", "--block-size", "16"),
        *("--gpu-memory-utilization", "0.8", "--dtype", "half", "--enforce-eager"),
        *("--tensor-parallel-size", "1", "--quantization", "awq_marlin", "--enable-lora"),
        *("--max-loras", "4", "--max-lora-rank", "64", "--enable-chunked-prefill"),
        *("--lora-modules", f"sql={tmp_path}", f"json={tmp_path}"),
    )
    assert read.model == tmp_path
    assert (read.dtype, read.quantization) == ("float16", "awq")
    assert [module.name for module in read.lora_modules] == ["sql", "json"]
    assert read.engine_flags == (
        *("--max-model-len", "2048", "--max-num-seqs", "64", "--max-num-batched-tokens", "512"),
        *("--block-size", "16", "--gpu-memory-utilization", "0.8", "--enforce-eager"),
    )


def test_what_the_scheduler_may_be_told_is_handed_on():
    read = options("--demo", "--no-enable-prefix-caching", "--max-step-ms", "30",
                   "--max-tenant-share", "0.5", "--kv-cache-dtype", "fp8",
                   "--adapter-dtype", "int8")  # fmt: skip
    assert read.engine_flags == (
        *("--kv-cache-dtype", "fp8", "--adapter-dtype", "int8"),
        *("--max-step-ms", "30", "--max-tenant-share", "0.5", "--no-enable-prefix-caching"),
    )
    assert options("--demo", "--enable-prefix-caching").engine_flags == ()
    team = options("--demo", "-tp", "2", "--disable-custom-all-reduce")
    assert team.engine_flags == ("--tensor-parallel-size", "2", "--disable-custom-all-reduce")


def test_the_model_may_be_named_without_its_flag(tmp_path: Path):
    assert options(str(tmp_path)).model == tmp_path


def test_each_flag_that_is_not_needed_is_answered_with_a_sentence():
    read = options("--demo", "--max-loras", "4", "--enable-chunked-prefill")
    assert read.unneeded == (
        "--max-loras is not needed: there are no slots: adapters share the page pool",
        "--enable-chunked-prefill is not needed: prefill is always chunked",
    )
    assert options("--demo").unneeded == ()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "nothing to serve"),
        (["--demo", "--model", "x"], "leave out --model"),
        (["x", "--model", "y"], "given twice"),
        (["--demo", "--tensor-parallel-size", "0"], "--tensor-parallel-size 0 must be at least 1"),
        (["--demo", "--open", "--host", "0.0.0.0"], "loopback"),
        (["--demo", "--port", "8001", "--metrics-port", "8001"], "both 8001"),
        (["--demo", "--gpu-memory-utilization", "1.5"], "not between 0 and 1"),
        (["--demo", "--max-tenant-share", "0"], "--max-tenant-share"),
        (["--demo", "--allowed-origins", "[x"], "is not a JSON array"),
        (["--demo", "--lora-modules", "nameless"], "is not NAME=DIR"),
        (["--demo", "--lora-modules", '{"name": 1'], "is not JSON"),
        (["--demo", "--lora-modules", "a=x", "a=y"], "'a' twice"),
    ],
)
def test_what_cannot_work_is_refused(arguments: list[str], reason: str):
    with pytest.raises(FlagsInvalid, match=reason):
        options(*arguments)


def test_origins_are_read_one_by_one_and_as_an_array():
    read = options("--demo", "--allowed-origins", "https://a.example", '["https://b.example"]')
    assert read.allowed_origins == ("https://a.example", "https://b.example")
    assert options("--demo").allowed_origins == ()
    assert options("--demo", "--priority-tier").priority_tier


def test_lora_modules_may_be_written_as_json():
    read = options("--demo", "--lora-modules", '{"name": "sql", "path": "/srv/sql"}')
    assert read.lora_modules[0].path == Path("/srv/sql")


@pytest.mark.parametrize(
    "arguments", [["--port", "x"], ["--port", "70000"], ["--max-num-seqs", "0"], ["--nonsense"]]
)
def test_a_malformed_flag_is_one_line_and_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        options("--demo", *arguments)
    assert caught.value.code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "words", [("tenant", "list"), ("price", "list"), ("export", "--period", "2026-11")]
)
def test_an_unknown_flag_points_to_the_help_of_its_own_command(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*words, "--nope"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "unrecognized arguments: --nope" in said
    command = " ".join(word for word in words if word.isalpha())
    assert f"see `loratorio {command} --help`" in said
