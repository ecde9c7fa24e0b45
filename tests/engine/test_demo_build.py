import fcntl
import io
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import tokenizers
import torch

from engine.demo import build as demo
from engine.demo import corpus
from engine.demo.llama import Llama, Shape
from engine.demo.progress import ProgressBar
from engine.quant.gguf import GgufCheckpoint
from tests.engine.gguf_files import LAYERS, write_gguf


def silent(stage, done):
    return None


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def built(source):
    out = source.parent / "built"
    return out, demo.convert(source, out, silent)


def source_model(path):
    checkpoint = GgufCheckpoint(path)
    weights = {name: torch.from_numpy(w.copy()) for name, w in checkpoint.tensors()}
    return Llama(Shape.of(checkpoint.config()), weights)


def test_the_checkpoint_has_every_file_a_loader_looks_for(built):
    out, _ = built
    assert {path.name for path in out.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "build_report.json",
    }


def test_the_checkpoint_recommends_how_to_sample(built):
    said = json.loads((built[0] / "generation_config.json").read_text())
    assert (said["temperature"], said["top_p"]) == (0.2, 0.9)
    assert "eos_token_id" in said


def test_config_declares_what_the_tensors_are(built):
    config = json.loads((built[0] / "config.json").read_text())["quantization_config"]
    assert (config["quant_method"], config["bits"], config["group_size"]) == ("gptq", 4, 32)
    assert (config["desc_act"], config["sym"], config["checkpoint_format"]) == (True, False, "gptq")


def test_every_projection_is_packed_and_nothing_else(built):
    from safetensors import safe_open

    with safe_open(built[0] / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert len([name for name in names if name.endswith("qweight")]) == 7 * LAYERS
    assert not [name for name in names if name.endswith("proj.weight")]
    assert "lm_head.weight" not in names


def test_the_report_is_kept_beside_the_weights_and_makes_it_built(built, tmp_path):
    out, report = built
    assert json.loads((out / "build_report.json").read_text())["perplexity"] == report.perplexity
    assert demo.is_built(out)
    assert not demo.is_built(tmp_path)


def test_four_bits_stay_close_to_the_source(built, source):
    _, report = built
    assert report.perplexity == pytest.approx(report.reference_perplexity, rel=0.05)
    dense = demo.dequantised_weights(built[0])
    for name, weight in source_model(source).weights.items():
        assert (dense[name] - weight).norm() < 0.15 * weight.norm(), name


def test_the_plain_forward_pass_agrees_with_transformers(source):
    transformers = pytest.importorskip("transformers")
    model = source_model(source)
    config = transformers.LlamaConfig(**GgufCheckpoint(source).config())
    reference = transformers.LlamaForCausalLM(config).eval()
    reference.load_state_dict(model.weights, strict=False)
    reference.tie_weights()
    tokens = torch.randint(3, 200, (2, 33), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        ours, theirs = model.logits(model.hidden(tokens)), reference(tokens).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_an_interrupted_build_leaves_nothing(source, tmp_path):
    def interrupt(stage, done):
        if stage.startswith("Quantising"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        demo.convert(source, tmp_path / "out", interrupt)
    assert [path.name for path in tmp_path.iterdir()] == [".out.lock"]


def test_building_over_an_older_directory_replaces_it_with_the_same_bytes(source, built, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "stale").write_text("")
    (tmp_path / ".out-ki_led12").mkdir()  # what a build that was killed left behind
    others = tmp_path / ".out-draft-ki_led12"  # of another, which may be running
    others.mkdir()
    demo.convert(source, out, silent)
    assert sorted(path.name for path in tmp_path.iterdir()) == [others.name, ".out.lock", "out"]
    assert not (out / "stale").exists()
    first, again = (directory / "model.safetensors" for directory in (built[0], out))
    assert first.read_bytes() == again.read_bytes()


def test_who_waits_for_another_build_takes_what_that_one_made(source, tmp_path, monkeypatch):
    out, second_asks = tmp_path / "out", threading.Event()
    asked, others, take = [], [], fcntl.flock

    def flock(*arguments):
        asked.append(arguments)
        if len(asked) == 2:
            second_asks.set()
        take(*arguments)

    def begin_another(stage, done):
        if not others:
            others.append(pool.submit(demo.convert, source, out, refuse))
            assert second_asks.wait(30)

    def refuse(stage, done):
        raise AssertionError(f"built again: {stage}")

    monkeypatch.setattr(fcntl, "flock", flock)
    with ThreadPoolExecutor(1) as pool:
        report = demo.convert(source, out, begin_another)
        assert others[0].result(timeout=60) == report


def test_evaluation_shares_no_passage_with_calibration(built):
    tokenizer = tokenizers.Tokenizer.from_file(str(built[0] / "tokenizer.json"))
    seen = {tuple(row[i : i + 40]) for row in [corpus.calibration(tokenizer).flatten().tolist()]
            for i in range(len(row) - 40)}  # fmt: skip
    held_out = corpus.evaluation(tokenizer).flatten().tolist()
    assert not [i for i in range(len(held_out) - 40) if tuple(held_out[i : i + 40]) in seen]


def test_the_hook_sees_inputs_before_their_projections_use_them(source):
    model = source_model(source)
    plain = model.hidden(torch.arange(8)[None])

    def zero_weights(names, x):
        for name in names:
            model.weights[name] = torch.zeros_like(model.weights[name])

    changed = model.hidden(torch.arange(8)[None], before=zero_weights)
    assert not torch.allclose(plain, changed)
    assert all((w == 0).all() for name, w in model.weights.items() if "_proj" in name)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_a_few_plain_lines_when_not_on_a_terminal():
    stream = io.StringIO()
    bar = ProgressBar(stream)
    for i in range(101):
        bar("Baking", i / 100)
    bar.close()
    lines = ["Baking: 0%", "Baking: 25%", "Baking: 50%", "Baking: 75%", "Baking: 100%"]
    assert stream.getvalue().splitlines() == lines


def test_progress_redraws_one_line_per_stage_on_a_terminal():
    stream = Terminal()
    bar = ProgressBar(stream)
    for stage in ("One", "Two"):
        for done in (0.0, 0.5, 1.0):
            bar(stage, done)
    bar.close()
    assert stream.getvalue().count("\n") == 2
    assert "50% Two" in stream.getvalue()


def test_the_command_reports_a_missing_source_in_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))
    monkeypatch.setattr("sys.path", [p for p in sys.path if "site-packages" not in p])
    assert demo.main([str(tmp_path / "out")]) == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert not (tmp_path / "out").exists()
