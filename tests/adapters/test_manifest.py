"""A digest changes with an adapter's meaning and with nothing else."""

from pathlib import Path

import pytest

from adapters.errors import AdapterInvalid
from adapters.keys import Site
from adapters.manifest import AdapterManifest
from tests.adapters.builders import PREFIX, Tensors, config, lora, pack_file, write_adapter

TENSORS = lora(0) | lora(1, "down_proj") | lora(2, "k_proj")


def digest(path: Path, settings: object = None, tensors: Tensors | bytes = TENSORS) -> str:
    return AdapterManifest.read(write_adapter(path, settings, tensors)).digest


def renamed(tensors: Tensors, old: str, new: str) -> Tensors:
    return {name.replace(old, new): value for name, value in tensors.items()}


@pytest.mark.parametrize(
    ("settings", "tensors"),
    [
        pytest.param(config(), dict(reversed(TENSORS.items())), id="order_in_the_file"),
        pytest.param(config(), pack_file(TENSORS, {"format": "pt"}), id="metadata"),
        pytest.param(config(), renamed(TENSORS, PREFIX, ""), id="without_prefix"),
        pytest.param(config(), renamed(TENSORS, ".weight", ".default.weight"), id="adapter_name"),
        pytest.param(config(), renamed(TENSORS, "q_proj", "q_proj.base_layer"), id="base_layer"),
        pytest.param(config(lora_dropout=0.1, base_model_name_or_path="x"), TENSORS, id="training"),
        pytest.param(config(target_modules="all-linear"), TENSORS, id="targets_hint"),
        pytest.param(dict(reversed(config().items())), TENSORS, id="order_in_the_config"),
        pytest.param(config(lora_alpha=4, use_rslora=True), TENSORS, id="same_scale_by_rslora"),
        pytest.param(config(alpha_pattern={".*": 8}), TENSORS, id="pattern_of_the_same_alpha"),
        pytest.param(config(alpha_pattern={"v_proj": 1}), TENSORS, id="pattern_of_nothing"),
    ],
)
def test_other_spellings_have_the_same_digest(tmp_path, settings, tensors):
    assert digest(tmp_path / "a") == digest(tmp_path / "b", settings, tensors)


def flipped(tensors: Tensors) -> Tensors:
    name = next(iter(tensors))
    dtype, shape, data = tensors[name]
    return tensors | {name: (dtype, shape, data[:-1] + bytes([data[-1] ^ 1]))}


def swapped_layers() -> Tensors:
    both = renamed(renamed(lora(0), ".0.", ".9."), ".9.", ".1.")
    return both | lora(1, "down_proj") | lora(2, "k_proj")


@pytest.mark.parametrize(
    ("settings", "tensors"),
    [
        pytest.param(config(lora_alpha=9), TENSORS, id="alpha"),
        pytest.param(config(lora_alpha=-8), TENSORS, id="sign_of_alpha"),
        pytest.param(config(use_rslora=True), TENSORS, id="rslora"),
        pytest.param(config(alpha_pattern={"k_proj": 1}), TENSORS, id="alpha_pattern"),
        pytest.param(config(), flipped(TENSORS), id="one_bit"),
        pytest.param(config(), lora(0) | lora(1, "down_proj"), id="module_left_out"),
        pytest.param(config(), swapped_layers(), id="another_layer"),
        pytest.param(config(), renamed(TENSORS, "k_proj", "v_proj"), id="another_module"),
        pytest.param(
            config(), lora(0, dtype="F16") | lora(1, "down_proj") | lora(2, "k_proj"), id="dtype"
        ),
    ],
)
def test_another_meaning_has_another_digest(tmp_path, settings, tensors):
    assert digest(tmp_path / "a") != digest(tmp_path / "b", settings, tensors)


def test_modules_carry_their_own_rank_and_scale(tmp_path):
    tensors = lora(0, rank=2) | lora(1, "up_proj", rank=5)
    settings = config(r=2, rank_pattern={"up_proj": 5}, alpha_pattern={"layers.1.*": 10})
    manifest = AdapterManifest.read(write_adapter(tmp_path, settings, tensors))
    found = {site: (each.rank, each.scale) for site, each in manifest.modules.items()}
    assert found == {Site(0, "q_proj"): (2, 4.0), Site(1, "up_proj"): (5, 2.0)}
    assert (manifest.rank, manifest.targets) == (5, ("q_proj", "up_proj"))


def test_tensors_tell_the_rank_when_sorted_patterns_hide_it(tmp_path):
    settings = config(rank_pattern={".*_proj": 3, "q_proj": 5})
    manifest = AdapterManifest.read(write_adapter(tmp_path, settings, lora(rank=5)))
    assert manifest.modules[Site(0, "q_proj")].scale == 8 / 5
    assert "rank_pattern is ambiguous; its tensors have rank 5" in manifest.warnings[0]


def test_alphas_that_overlap_are_named(tmp_path):
    settings = config(alpha_pattern={".*_proj": 3, "q_proj": 5})
    manifest = AdapterManifest.read(write_adapter(tmp_path, settings))
    assert manifest.modules[Site(0, "q_proj")].scale == 3 / 4
    assert "alpha_pattern is ambiguous (3, 5); the first counts" in manifest.warnings[0]


@pytest.mark.parametrize("wrapper", ["language_model.model.", "model.language_model."])
def test_patterns_mean_the_names_that_the_trainers_model_had(tmp_path, wrapper):
    """A model that sees has its layers inside a wrapper, and keys of patterns name that."""
    tensors = {
        name.replace(f"{PREFIX}model.", PREFIX + wrapper): value
        for name, value in (lora(0, rank=2) | lora(1, "up_proj") | lora(2)).items()
    }
    tensors = {name.replace(".layers.2.", "._orig_mod.layers.2."): t for name, t in tensors.items()}
    settings = config(
        rank_pattern={f"^{wrapper}layers.0.self_attn.q_proj": 2},
        alpha_pattern={
            f"{wrapper}layers.1.mlp.up_proj": 10,
            f"{wrapper}layers.2.self_attn.q_proj": 12,
            "^model.layers.0.self_attn.q_proj": 99,
        },
    )
    manifest = AdapterManifest.read(write_adapter(tmp_path, settings, tensors))
    scales = [module.scale for module in manifest.modules.values()]
    assert scales == [8 / 2, 10 / 4, 12 / 4]
    unused = "alpha_pattern: keys that match no module of the adapter"
    assert f"{unused}: ^model.layers.0.self_attn.q_proj" in manifest.warnings


def test_hints_that_disagree_with_the_tensors_are_named(tmp_path):
    settings = config(target_modules=["q_proj", "v_proj"], layers_to_transform=[0])
    path = write_adapter(tmp_path, settings, lora(0) | lora(1, "up_proj"))
    up = "model.layers.1.mlp.up_proj"
    assert AdapterManifest.read(path).warnings == (
        "target_modules without tensors: v_proj",
        f"applied though target_modules does not name them: {up}",
        f"applied though layers_to_transform leaves them out: {up}",
    )


def test_a_rank_the_config_does_not_explain_is_refused(tmp_path):
    with pytest.raises(AdapterInvalid, match="q_proj: rank 8 by the config, 4 by its tensors"):
        AdapterManifest.read(write_adapter(tmp_path, config(r=8)))


def test_patterns_too_complex_for_the_module_names_are_refused(tmp_path):
    hostile = {f"(.*.*.*.*){{30}}x{i}": 1 for i in range(40)}
    tensors = {name: value for layer in range(60) for name, value in lora(layer).items()}
    with pytest.raises(AdapterInvalid, match="too long to match"):
        AdapterManifest.read(write_adapter(tmp_path, config(alpha_pattern=hostile), tensors))


def test_a_digest_is_stable_across_releases(tmp_path):
    """A store outlives the program: this value may change only with DIGEST_VERSION."""
    zeros = {name: (d, s, b"\0" * len(data)) for name, (d, s, data) in lora().items()}
    found = AdapterManifest.read(write_adapter(tmp_path, config(), zeros))
    assert found.digest == "56c3dba74033955a6f3368f5a2a760fbf4a0afb1c06921873d67eb9f9d2fbb95"
