"""Validation ends in a report that accounts for all tensors, or in the full list of faults."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.errors import AdapterInvalid, WrongBase
from adapters.keys import PARENTS
from adapters.validate import validate
from tests.adapters.builders import BASE, PREFIX, Tensors, config, encode, lora, write_adapter
from tests.adapters.test_tensor_file import json_values

Q = f"{PREFIX}model.layers.0.self_attn.q_proj"


def faults(path: Path, settings: object = None, tensors: Tensors | bytes | None = None) -> str:
    with pytest.raises(AdapterInvalid) as caught:
        validate(write_adapter(path, settings, tensors), BASE)
    return "; ".join(caught.value.problems)


def without(tensors: Tensors, part: str) -> Tensors:
    return {name: value for name, value in tensors.items() if part not in name}


def replaced(part: str, values: np.ndarray, dtype: str = "F32") -> Tensors:
    return lora() | {f"{Q}.lora_{part}.weight": encode(values, dtype)}


@pytest.mark.parametrize("module", PARENTS)
@pytest.mark.parametrize("dtype", ["F16", "BF16", "F32"])
def test_accepts_plain_lora_on_every_linear(tmp_path, module, dtype):
    tensors = lora(2, module, rank=3, dtype=dtype)
    report = validate(write_adapter(tmp_path, config(r=3), tensors), BASE)
    assert [each.name for each in report.modules] == [f"model.layers.2.{PARENTS[module]}.{module}"]
    assert {name for each in report.modules for name in each.tensors} == set(tensors)
    assert report.nbytes == sum(len(data) for _, _, data in tensors.values())
    assert (report.rank, report.modules[0].scale) == (3, 8 / 3)
    assert report.base_fingerprint == BASE.fingerprint


@pytest.mark.parametrize("module", ["model.embed_tokens", "lm_head"])
@pytest.mark.parametrize("rows", [60, 68, 128])
def test_a_resized_vocabulary_is_refused_with_both_sizes(tmp_path, module, rows):
    """The base has 64 tokens. Padding or added tokens make another number of rows."""
    whole = lora() | {f"{PREFIX}{module}.weight": encode(np.ones((rows, 24)))}
    saved = config(modules_to_save=[module.rpartition(".")[2]])
    text = f"{module}: weight is [{rows}, 24], the base needs [64, 24]"
    assert text in faults(tmp_path / "whole", saved, whole)
    first, second = ("lora_embedding_A", "lora_embedding_B") if "embed" in module else (
        "lora_A.weight", "lora_B.weight")  # fmt: skip
    a, b = ((4, rows), (24, 4)) if "embed" in module else ((4, 24), (rows, 4))
    low = {f"{PREFIX}{module}.{first}": encode(np.ones(a)),
           f"{PREFIX}{module}.{second}": encode(np.ones(b))}  # fmt: skip
    assert "the base needs" in faults(tmp_path / "low", config(), lora() | low)
    asked = config(trainable_token_indices={"embed_tokens": [rows]})
    delta = f"{PREFIX}model.embed_tokens.token_adapter.trainable_tokens_delta"
    grown = lora() | {delta: encode(np.ones((1, 24)))}
    if rows >= 64:
        assert f"embed_tokens: {rows}: the base has 64" in faults(tmp_path / "rows", asked, grown)


def test_an_activated_lora_reports_what_invokes_it(tmp_path):
    settings = config(alora_invocation_tokens=[5, 63, 5])
    report = validate(write_adapter(tmp_path / "a", settings, lora()), BASE)
    assert report.invocation == (5, 63, 5)
    plain = validate(write_adapter(tmp_path / "b", config(), lora()), BASE)
    assert (plain.invocation, plain.digest == report.digest) == ((), False)


@pytest.mark.parametrize(
    ("tensors", "tokens", "said"),
    [
        (lora(), [1, 64, 2, 99], "alora_invocation_tokens: 64, 99: the base has 64 tokens"),
        (lora() | {f"{PREFIX}model.embed_tokens.lora_embedding_A": encode(np.ones((4, 64))),
                   f"{PREFIX}model.embed_tokens.lora_embedding_B": encode(np.ones((24, 4)))},
         [1], "changes linear layers only, by A and B; other tensors of: model.embed_tokens"),
        (lora() | {f"{Q}.base_layer.bias": encode(np.ones(24))}, [1], "other tensors of"),
    ],
)  # fmt: skip
def test_an_activated_lora_is_refused_what_would_act_before_it_is_invoked(
    tmp_path, tensors, tokens, said
):
    assert said in faults(tmp_path, config(alora_invocation_tokens=tokens, bias="all"), tensors)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        (without(lora(), "lora_B"), "lora_B is missing for: model.layers.0.self_attn.q_proj"),
        (without(lora(), "lora_A"), "lora_A is missing for: model.layers.0.self_attn.q_proj"),
        (lora(7), "model.layers.7.self_attn.q_proj: the base has 3 layers"),
        (replaced("A", np.ones((4, 25))), "A is [4, 25], the base needs [4, 24]"),
        (replaced("B", np.ones((25, 4))), "B is [25, 4], the base needs [24, 4]"),
        (replaced("B", np.ones((24, 3))), "disagree on the rank"),
        (replaced("A", np.ones((4, 24, 1, 1))), "not two positive dimensions"),
        (replaced("A", np.ones((0, 24))), "not two positive dimensions"),
        (replaced("A", np.full((4, 24), np.nan)), "NaN or infinite values in"),
        (replaced("B", np.full((24, 4), -np.inf), "F16"), "NaN or infinite values in"),
        (replaced("B", np.full((24, 4), np.nan), "BF16"), "NaN or infinite values in"),
        (replaced("B", np.full((24, 4), 3e38)), "after scaling by 2"),
        (replaced("A", np.ones((4, 24)), "F64"), "dtype F64 of lora_A"),
        (replaced("A", np.ones((4, 24)), "I8"), "dtype I8 of lora_A"),
        (lora() | {f"{Q}.lora_magnitude_vector": encode(np.ones(24))}, "does not set use_dora"),
        (lora() | {f"{Q}.lora_B.bias": encode(np.ones(24))}, "does not set lora_bias"),
        (lora() | {f"{Q}.bias": encode(np.ones(24))}, "bias=none"),
        (lora() | {f"{PREFIX}lm_head.weight": encode(np.ones((64, 24)))}, "modules_to_save"),
        (lora() | {f"{PREFIX}lm_head.lora_A.weight": encode(np.ones((4, 24)))},
         "lora_B is missing for: lm_head"),
        (lora() | {f"{PREFIX}model.embed_tokens.lora_embedding_A": encode(np.ones((4, 64)))},
         "lora_B is missing for: model.embed_tokens"),
        (lora() | {f"{PREFIX}model.x.lora_A.weight": encode(np.ones((4, 24)))},
         "match no module of the base: base_model.model.model.x.lora_A.weight"),
        (lora() | {f"{Q}.lora_A.default.weight": encode(np.ones((4, 24)))}, "given twice"),
        ({}, "holds no LoRA tensors"),
    ],
)  # fmt: skip
def test_names_the_tensors_at_fault(tmp_path, tensors, said):
    assert said in faults(tmp_path, None, tensors)


HEAD_LORA = {
    f"{PREFIX}lm_head.lora_A.weight": encode(np.ones((4, 24))),
    f"{PREFIX}lm_head.lora_B.weight": encode(np.ones((64, 4))),
}


@pytest.mark.parametrize(
    ("settings", "tensors", "said"),
    [
        ({"lora_bias": True}, {"lora_B.bias": np.ones(64)}, "bias, which is not supported on"),
        ({"bias": "all"}, {"bias": np.ones(64)}, "bias, which is not supported on: lm_head"),
        ({"ensure_weight_tying": True}, {}, "changes lm_head alone"),
    ],
)
def test_what_would_be_left_out_of_the_head_is_refused(tmp_path, settings, tensors, said):
    added = {f"{PREFIX}lm_head.{part}": encode(values) for part, values in tensors.items()}
    assert said in faults(tmp_path, config(**settings), HEAD_LORA | added)


def test_token_rows_stored_once_for_both_tables_need_a_base_that_ties_them(tmp_path):
    settings = config(trainable_token_indices={"embed_tokens": [5], "lm_head": [5]})
    delta = f"{PREFIX}model.embed_tokens.token_adapter.trainable_tokens_delta"
    path = write_adapter(tmp_path, settings, lora() | {delta: encode(np.ones((1, 24)))})
    validate(path, BASE)
    with pytest.raises(AdapterInvalid, match="does not tie"):
        validate(path, replace(BASE, tie_word_embeddings=False))


def test_lists_faults_of_config_keys_shapes_and_values_together(tmp_path):
    tensors = lora(5) | replaced("A", np.full((4, 9), np.nan)) | {"junk": encode(np.ones(1))}
    text = faults(tmp_path, config(use_dora=True), tensors)
    for said in ("use_dora", "junk", "[4, 9]", "the base has 3 layers", "NaN"):
        assert said in text


def test_a_fault_of_many_modules_is_one_line(tmp_path):
    junk = {f"junk.{i}": encode(np.ones(1)) for i in range(150)}
    text = faults(tmp_path, None, lora() | junk)
    assert "junk.99 and 50 more" in text


def test_another_base_of_other_shape_is_refused_module_by_module(tmp_path):
    tensors = {name: value for layer in range(3) for name, value in lora(layer).items()}
    path = write_adapter(tmp_path, config(), tensors)
    with pytest.raises(AdapterInvalid, match=r"A is \[4, 24\], the base needs \[4, 32\]") as caught:
        validate(path, replace(BASE, hidden_size=32))
    assert len(caught.value.problems) == 3


def test_grouped_query_attention_decides_the_width_of_k_and_v(tmp_path):
    assert validate(write_adapter(tmp_path, None, lora(0, "k_proj")), BASE).tensors == 2
    wide = {name.replace("q_proj", "k_proj"): value for name, value in lora(0).items()}
    assert "B is [24, 4], the base needs [12, 4]" in faults(tmp_path, None, wide)


def test_a_pickle_is_named_and_not_opened(tmp_path):
    write_adapter(tmp_path)
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(AdapterInvalid, match="pickles are not read"):
        validate(tmp_path, BASE)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("adapters.safetensors", "adapters.safetensors: MLX's own layout"),
        ("lora.gguf", "lora.gguf: GGUF is not read"),
        ("adapter_model.safetensors.index.json", "index.json: adapters in several files"),
        ("adapter_0.pt", "adapter_0.pt: pickles are not read"),
    ],
)
def test_another_tools_layout_is_named_with_the_way_out(tmp_path, name, said):
    write_adapter(tmp_path)
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / name)
    with pytest.raises(AdapterInvalid, match=f"adapter_model.safetensors: not found.*{said}"):
        validate(tmp_path, BASE)


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_symlinked_file_is_refused(tmp_path, file):
    write_adapter(tmp_path / "a")
    (tmp_path / "a" / file).rename(tmp_path / "elsewhere")
    (tmp_path / "a" / file).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AdapterInvalid, match=f"{file}: is a symbolic link"):
        validate(tmp_path / "a", BASE)


def test_what_is_there_instead_of_a_missing_file_is_named_without_its_place(tmp_path):
    write_adapter(tmp_path)
    shard = "adapter_model-00001-of-00002.safetensors"
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / shard)
    with pytest.raises(
        AdapterInvalid, match=f"adapter_model.safetensors: not found; .*{shard}"
    ) as e:
        validate(tmp_path, BASE)
    assert str(tmp_path) not in str(e.value)


def test_a_pointer_of_git_lfs_is_named(tmp_path):
    write_adapter(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_text("version https://git-lfs.github.com/spec\n")
    with pytest.raises(AdapterInvalid, match="git lfs pull"):
        validate(tmp_path, BASE)


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(AdapterInvalid, match=r"'\[x\]"):
        validate(tmp_path / "'[x]", BASE)


def test_an_enormous_config_is_not_read(tmp_path):
    assert "more than 1048576 bytes" in faults(tmp_path, b" " * (1 << 20) + b"{}")


@pytest.mark.parametrize(
    ("settings", "tensors", "said"),
    [
        (config(lora_alpha=0), None, "changes nothing"),
        (config(), replaced("B", np.zeros((24, 4))), "changes nothing"),
        (config(), replaced("B", np.full((24, 4), 4e4)), "too large for float16"),
        (config(), None, "trained on some/base"),
        (config(task_type="SEQ_CLS"), None, "task_type"),
    ],
)
def test_warns_of_what_is_legal_but_odd(tmp_path, settings, tensors, said):
    report = validate(write_adapter(tmp_path, settings, tensors), BASE)
    assert any(said in warning for warning in report.warnings)


FIELDS = ["use_rslora", "rank_pattern", "alpha_pattern", "init_lora_weights", "use_dora"]


@given(changes=st.dictionaries(st.sampled_from([*config(), *FIELDS]), json_values))
def test_any_config_is_a_report_or_a_refusal(tmp_path_factory, changes):
    check(tmp_path_factory.mktemp("config"), json.dumps(config() | changes).encode())


@given(data=st.binary(max_size=300))
def test_any_bytes_as_config_are_a_refusal(tmp_path_factory, data):
    assert check(tmp_path_factory.mktemp("bytes"), data) is False


@given(
    names=st.lists(st.text(max_size=20) | st.sampled_from([*lora(1), *lora(), f"{Q}.bias"])),
    shape=st.lists(st.integers(0, 5), max_size=3),
    dtype=st.sampled_from(["F16", "BF16", "F32", "I8", "F64"]),
)
def test_any_tensors_are_a_report_or_a_refusal(tmp_path_factory, names, shape, dtype):
    tensors = {name: encode(np.ones(shape), dtype) for name in names}
    check(tmp_path_factory.mktemp("tensors"), json.dumps(config()).encode(), lora() | tensors)


def check(path: Path, settings: bytes, tensors: Tensors | None = None) -> bool:
    """Whether the adapter was accepted. Anything but a report or AdapterInvalid escapes."""
    try:
        report = validate(write_adapter(path, settings, tensors), BASE)
    except AdapterInvalid as error:
        refusal = error
    else:
        assert report.tensors > 0
        return True
    assert all(problem.isprintable() for problem in refusal.problems)
    return False


@pytest.mark.parametrize(
    ("trained_on", "names", "same"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", ("/models/llama-3.1-8b-instruct-awq-int4",), True),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", ("x/Llama-3.1-8B-Instruct",), True),
        ("Qwen/Qwen3-8B", ("/models/Qwen3-8B-int4-AutoRound-awq-inc",), True),
        ("Qwen/Qwen3-8B", ("RedHatAI/Qwen3-8B-FP8-dynamic",), True),
        ("x/y", ("/cache/models--x--y/snapshots/" + "a" * 40,), True),
        ("meta-llama/Llama-3.1-8B", ("/models/llama-3.1-8b-instruct-awq-int4",), False),
        ("some/other", ("some/base", "/srv/m"), False),
        ("/home/me/checkpoints/other", ("some/base",), True),  # a path says nothing
        ("some/other", (), True),
    ],
)
def test_another_bases_name_is_refused_unless_forced(tmp_path, trained_on, names, same):
    path = write_adapter(tmp_path, config(base_model_name_or_path=trained_on))
    base = replace(BASE, names=names)
    if same:
        validate(path, base)
        return
    with pytest.raises(WrongBase, match="base_model_name_or_path"):
        validate(path, base)
    assert any(
        "base_model_name_or_path" in text for text in validate(path, base, force=True).warnings
    )


def test_a_fingerprint_that_somebody_wrote_down_decides_alone(tmp_path):
    path = write_adapter(tmp_path, config(base_model_name_or_path="some/other"))
    base = replace(BASE, names=("some/base",))
    validate(path, base, fingerprint="f" * 64)
    with pytest.raises(WrongBase, match="fingerprint eeee"):
        validate(path, base, fingerprint="e" * 64)
    path = write_adapter(tmp_path / "b", config(base_fingerprint="e" * 64))
    with pytest.raises(WrongBase, match="fingerprint eeee"):
        validate(path, base)


def test_another_base_and_other_faults_are_one_list(tmp_path):
    path = write_adapter(tmp_path, config(base_model_name_or_path="some/other", r=9))
    with pytest.raises(AdapterInvalid) as caught:
        validate(path, replace(BASE, names=("some/base",)))
    assert not isinstance(caught.value, WrongBase)
    assert len(caught.value.problems) == 2
