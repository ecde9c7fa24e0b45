"""``loratorio inspect``: what a path holds, whether it will be served, and why not."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from adapters.keys import PARENTS
from engine.inspection.cli import main
from tests.adapters.builders import PREFIX, Tensors, config, encode, lora, write_adapter
from tests.engine.checkpoints import Layout, Shape, write_checkpoint


def inspect(
    capsys: pytest.CaptureFixture[str], *arguments: object
) -> tuple[int, dict[str, object]]:
    code = main([*map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def checkpoint(path: Path, layout: Layout | None = None, **shape: object) -> Path:
    write_checkpoint(path, Shape(**shape), layout)  # type: ignore[arg-type]
    (path / "tokenizer.json").write_text("{}")
    (path / "chat_template.jinja").write_text("{{ messages }}")
    return path


def fitting(rank: int = 4) -> Tensors:
    """A and B of one module of the small checkpoint."""
    name = f"{PREFIX}model.layers.1.{PARENTS['q_proj']}.q_proj"
    random = np.random.default_rng(0)
    return {
        f"{name}.lora_A.weight": encode(random.standard_normal((rank, 64))),
        f"{name}.lora_B.weight": encode(random.standard_normal((64, rank))),
    }


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (Layout(), "none (float32)"),
        (Layout("gptq", 32, act_order=True), "gptq, 4 bits, groups of 32, act-order"),
        (Layout("awq", 64), "awq, 4 bits, groups of 64"),
        (Layout("compressed-tensors", 32), "compressed-tensors"),
    ],
    ids=str,
)
def test_a_checkpoint_that_an_engine_loads_is_served(tmp_path, capsys, layout, said):
    code, found = inspect(capsys, checkpoint(tmp_path / "m", layout))
    assert (code, found["served"], found["reasons"], found["warnings"]) == (0, True, [], [])
    assert (found["kind"], found["quantisation"], found["layers"]) == ("checkpoint", said, 2)
    assert len(str(found["fingerprint"])) == 64


def test_every_layer_that_cannot_be_loaded_is_named(tmp_path, capsys):
    path = checkpoint(tmp_path / "m", Layout("gptq", 32))
    tensors = load_file(path / "model.safetensors")
    del tensors["model.layers.0.self_attn.q_proj.scales"]
    tensors["model.layers.1.mlp.up_proj.qweight"] = tensors["model.layers.1.mlp.up_proj.qzeros"]
    save_file({k: v.clone() for k, v in tensors.items()}, path / "model.safetensors")
    code, found = inspect(capsys, path)
    assert code == 1
    first, second = found["reasons"]  # type: ignore[misc]
    assert "layers.0.self_attn.q_proj: found qweight and no scales" in first
    assert "layers.1.mlp.up_proj" in second


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "mixture-of-experts"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quant_method"),
        ({"num_hidden_layers": 1}, "expected no such tensor"),
    ],
)
def test_a_checkpoint_that_is_not_served_says_why(tmp_path, capsys, change, why):
    path = checkpoint(tmp_path / "m")
    settings = json.loads((path / "config.json").read_text()) | change
    (path / "config.json").write_text(json.dumps(settings))
    code, found = inspect(capsys, path)
    assert code == 1
    assert why in str(found["reasons"])


def test_without_a_tokenizer_or_a_chat_template_it_says_so(tmp_path, capsys):
    path = checkpoint(tmp_path / "m")
    (path / "tokenizer.json").unlink()
    (path / "chat_template.jinja").unlink()
    code, found = inspect(capsys, path)
    assert code == 1
    assert "tokenizer.json" in str(found["reasons"])
    assert "no chat template" in str(found["warnings"])


def test_an_adapter_is_checked_alone_and_against_a_base(tmp_path, capsys):
    adapter = write_adapter(tmp_path / "a", config(r=4), fitting())
    code, alone = inspect(capsys, adapter)
    assert (code, alone["kind"], alone["ranks"], alone["scales"]) == (0, "adapter", "4", "2")
    assert "--base" in str(alone["warnings"])
    code, based = inspect(capsys, adapter, "--base", checkpoint(tmp_path / "llama"))
    assert code == 1
    assert alone["trained_on"] == "some/base"
    assert "some/base, but this base is llama" in str(based["reasons"])
    code, forced = inspect(capsys, adapter, "--base", tmp_path / "llama", "--force")
    assert code == 0
    assert forced["digest"] == alone["digest"]
    other = write_adapter(tmp_path / "b", config(), lora())
    code, found = inspect(capsys, other, "--base", tmp_path / "llama", "--force")
    assert code == 1
    assert "the base needs" in str(found["reasons"])


def test_an_adapter_that_is_not_served_lists_every_reason(tmp_path, capsys):
    broken = {
        name: ("F32", shape, b"\xff" * len(data)) for name, (_, shape, data) in lora().items()
    }
    adapter = write_adapter(tmp_path / "a", config(peft_type="VERA", r="x"), broken)
    code, found = inspect(capsys, adapter)
    assert code == 1
    for part in ("only LORA", "r: ", "NaN or infinite"):
        assert part in str(found["reasons"])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("m.gguf", "GGUF model"),
        ("adapter_model.bin", "pickle"),
        ("a.zip", "archive"),
        ("x", "file"),
    ],
)
def test_what_is_neither_is_called_by_its_name(tmp_path, capsys, name, kind):
    (tmp_path / name).write_bytes(b"x")
    code, found = inspect(capsys, tmp_path / name)
    assert (code, found["kind"], found["served"]) == (1, kind, False)


def test_a_directory_of_pickles_or_of_nothing(tmp_path, capsys):
    assert inspect(capsys, tmp_path)[1]["reasons"] == [
        "neither config.json nor adapter_config.json is here"
    ]
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    assert "pickles run code" in str(inspect(capsys, tmp_path)[1]["reasons"])


def test_nothing_there_is_another_exit_code(tmp_path, capsys):
    assert main([str(tmp_path / "absent")]) == 2
    assert "no such file" in capsys.readouterr().err
    adapter = write_adapter(tmp_path / "a")
    assert main([str(adapter), "--base", str(tmp_path / "absent")]) == 2


def test_people_read_the_answer_in_lines(tmp_path, capsys):
    assert main([str(write_adapter(tmp_path / "a"))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(": adapter")
    assert lines[-1] == "served: yes"
