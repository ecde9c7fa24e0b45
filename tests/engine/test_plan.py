"""What the plan counts is what the engine would take."""

import json
from dataclasses import replace

import pytest
import torch

from engine.adapter_memory import AdapterMemory
from engine.adapter_table import AdapterTable
from engine.bench.alone import MadeAdapters
from engine.bench.checkpoints import CheckpointWriter
from engine.bench.floor import H200
from engine.bench.linear import random_weight
from engine.bench.lora import base_of
from engine.bench.shapes import FORMATS, LLAMA_8B, SHAPES, TINY
from engine.errors import ConfigError
from engine.models.spec import ModelSpec
from engine.page_memory import PageMemory
from engine.page_size import adapter_pages, page_elements
from engine.plan import PlanInvalid, Wish, describe, main, plan
from engine.stored_weights import Stored, matrix_bytes, of_checkpoint, of_shape
from kernels.lora_codes import LoraCodes

WISH = Wish(gpu="h200", context=4096, adapters=200, rank=16)


@pytest.mark.parametrize("codes", [None, LoraCodes.INT8])
@pytest.mark.parametrize("rank", [4, 17, 64])
def test_an_adapter_takes_the_pages_that_the_engine_gives_it(rank, codes):
    spec, cpu = ModelSpec.read(TINY.config()), torch.device("cpu")
    made = MadeAdapters(base_of(TINY), torch.float16, cpu)
    packed = made.packed(f"made-{rank}-0")
    memory = PageMemory(spec, 16, num_pages=1, dtype=torch.float16, device=cpu)
    taken = AdapterMemory(spec, memory, AdapterTable(spec, cpu, codes)).lay_out(packed).pages
    elements = page_elements(spec, 16)
    assert adapter_pages(spec, rank, elements, narrow=codes is not None) == taken


@pytest.mark.parametrize(("inputs", "outputs"), [(256, 512), (192, 320), (512, 100)])
def test_a_packed_matrix_takes_what_pack_w4_makes(inputs, outputs):
    weight = random_weight((inputs, outputs), act_order=True)
    assert weight.meta is None  # on this device; the plan counts it where an H200 has it
    stored = Stored(4, 128, zeros=True, permuted=True)
    groups, padded = weight.scales.shape
    wide = weight.scales.element_size() - 2  # a CPU keeps them in float32
    extra = 4 * groups * padded if inputs % 256 == 0 and padded == outputs else 0
    here = weight.nbytes - 2 * groups * padded * wide
    assert matrix_bytes(inputs, outputs, stored) == here + extra


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_checkpoint_counts_as_its_shape_does(fmt, tmp_path):
    CheckpointWriter(TINY, fmt).write(tmp_path)
    spec, weights = of_checkpoint(tmp_path)
    named, expected = of_shape(TINY, fmt)
    assert spec == replace(named, eos_tokens=spec.eos_tokens)
    permuted = {"gptq": 8 * 2 * (256 * 3 + 512)}.get(fmt, 0)  # its g_idx may or may not permute
    assert weights.nbytes == expected.nbytes + permuted
    assert weights.precision == expected.precision


def test_an_8b_model_in_4_bits_takes_under_6_gib_and_in_16_bits_15():
    assert of_shape(LLAMA_8B, "awq")[1].nbytes / 2**30 == pytest.approx(5.7, abs=0.2)
    assert of_shape(LLAMA_8B, "fp16")[1].nbytes / 2**30 == pytest.approx(15.0, abs=0.2)


def test_everything_counted_stays_within_the_budget():
    found = plan(*of_shape(LLAMA_8B, "awq"), WISH, H200)
    pool = found.pages * found.page_bytes
    assert found.weights_bytes + found.pass_bytes + pool <= found.budget_bytes
    assert found.budget_bytes <= 0.9 * H200.memory
    taken = found.adapters_pages + found.sequences * 4096 // 64
    assert taken <= found.pages < taken + 4096 // 64
    assert found.missing_bytes == 0
    assert found.adapters_fit >= 200
    assert found.step_ms is not None
    assert found.step_ms > 5


def test_what_does_not_fit_says_by_how_much():
    wish = replace(WISH, adapters=100_000)
    found = plan(*of_shape(LLAMA_8B, "awq"), wish, H200)
    assert (found.sequences, found.step_ms) == (0, None)
    pages = found.adapters_pages + 64
    room = found.budget_bytes - found.weights_bytes - found.pass_bytes
    assert found.missing_bytes == pages * found.page_bytes - room
    assert "DOES NOT FIT: one sequence of 4096 tokens beside 100000" in describe(found, wish)
    enough = replace(H200, memory=H200.memory + int(found.missing_bytes / 0.9) + 2)
    assert plan(*of_shape(LLAMA_8B, "awq"), wish, enough).sequences == 1


def test_weights_that_do_not_fit_are_said_first():
    small = replace(H200, memory=24 << 30)
    found = plan(*of_shape(SHAPES["llama-3.1-70b"], "awq"), replace(WISH, adapters=0), small)
    assert "weights and passes alone" in describe(found, WISH)


def test_a_rank_too_large_for_a_page_is_refused():
    with pytest.raises(PlanInvalid, match="rank 9999"):
        plan(*of_shape(TINY, "awq"), replace(WISH, rank=9999, page_tokens=1), H200)


def test_the_command_prints_json_and_says_by_its_exit_code_whether_it_fits(capsys):
    assert main(["tiny", "--adapters", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["adapters_pages"] > 0
    assert main(["llama-3.1-70b", "--adapters", "100000"]) == 1
    with pytest.raises(PlanInvalid, match="neither a directory"):
        main(["no-such-model"])


def test_no_context_is_planned_that_the_model_does_not_have(capsys):
    longest = of_shape(TINY, "awq")[0].max_position
    with pytest.raises(PlanInvalid, match=f"exceeds .*max_position_embeddings={longest}"):
        main(["tiny", "--context", str(longest + 1)])
    assert main(["tiny", "--context", str(longest)]) == 0
    assert f"sequences of {longest} tokens" in capsys.readouterr().out
    assert main(["tiny"]) == 0
    assert f"sequences of {min(4096, longest)} tokens" in capsys.readouterr().out


@pytest.mark.parametrize("fmt", ["awq", "gptq-act-order", "fp8", "fp16"])
def test_a_member_of_two_takes_half_of_what_is_cut_and_all_of_the_rest(fmt):
    spec, whole = of_shape(LLAMA_8B, fmt)
    part, each = of_shape(LLAMA_8B, fmt, 2)
    rope_and_norms = 4 * (spec.max_position * spec.head_dim + 65 * spec.hidden_size)
    cut = whole.nbytes - rope_and_norms
    assert each.nbytes - rope_and_norms == pytest.approx(cut / 2, rel=0.05)  # o is filled up
    assert page_elements(part, 64) == page_elements(spec, 64) // 2


def test_two_devices_hold_more_adapters_and_tokens_and_say_so(capsys):
    facts = []
    for members in ("1", "2"):
        main(["llama-3.1-70b", "--adapters", "16", "--json", "--tensor-parallel-size", members])
        facts.append(json.loads(capsys.readouterr().out))
    assert facts[1]["kv_tokens"] > 2 * facts[0]["kv_tokens"]
    assert main(["llama-3.1-70b", "--tensor-parallel-size", "2"]) == 0
    assert "each of 2" in capsys.readouterr().out


def test_a_model_that_cannot_be_cut_is_refused_by_name():
    with pytest.raises(ConfigError, match="tensor_parallel_size=3 does not divide"):
        main(["llama-3.1-8b", "--tensor-parallel-size", "3"])
