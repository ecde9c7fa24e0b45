"""``loratorio quantize``: what is asked of GPTQModel, and what its result is worth by our loader.

GPTQModel itself runs in ``tests/compat``; here a program stands in that writes what it is told.
"""

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch.nn import functional

from engine.checkpoint import Checkpoint
from engine.quantiser.cli import REPORT, main
from engine.quantiser.quality import compare
from engine.quantiser.texts import token_rows
from tests.engine.checkpoints import Layout, Shape, Written, write_checkpoint
from tests.engine.peers import expected, tokens, transformers_model

STAND_IN = """#!{python}
import json, shutil, sys
from pathlib import Path
if sys.argv[1] == "-c":
    sys.exit({missing})
job = json.loads(Path(sys.argv[2]).read_text())
Path("{seen}").write_text(json.dumps(job))
print("quantising")
{action}
"""


def dense(path: Path, shape: Shape | None = None) -> Path:
    write_checkpoint(path, shape or Shape())
    words = {str(i): i for i in range(96)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="0"))
    tokenizer.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    tokenizer.save(str(path / "tokenizer.json"))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "0"}
    (path / "tokenizer_config.json").write_text(json.dumps(kind))
    (path / "chat_template.jinja").write_text("{{ messages }}")
    return path


def stand_in(path: Path, action: str = "pass", *, missing: int = 0) -> Path:
    """A Python that writes ``action``'s result in GPTQModel's place."""
    text = STAND_IN.format(
        python=sys.executable, seen=path.with_suffix(".json"), action=action, missing=missing
    )
    path.write_text(text)
    path.chmod(0o755)
    return path


def numbers(path: Path, count: int = 400) -> Path:
    path.write_text(" ".join(map(str, tokens(count, seed=3))))
    return path


def test_the_report_is_what_both_models_really_expect(tmp_path):
    before = write_checkpoint(tmp_path / "dense", Shape())
    after = write_checkpoint(tmp_path / "packed", Shape(), Layout("gptq", 32))
    rows = [tokens(30, seed=1), tokens(17, seed=2)]
    found = compare(before.path, after.path, rows, lambda done: None)
    logits = {
        name: [expected(transformers_model(written), row)[:-1] for row in rows]
        for name, written in (("before", before), ("after", after))
    }
    targets = [torch.tensor(row[1:]) for row in rows]

    def perplexity(name: str) -> float:
        parts = zip(logits[name], targets, strict=True)
        total = sum(functional.cross_entropy(x, t, reduction="sum").item() for x, t in parts)
        return math.exp(total / found.tokens)

    assert found.tokens == 45
    assert found.source_perplexity == pytest.approx(perplexity("before"), rel=1e-3)
    assert found.perplexity == pytest.approx(perplexity("after"), rel=1e-3)
    p, q = torch.cat(logits["before"]), torch.cat(logits["after"])
    kl = (p.softmax(-1) * (p.log_softmax(-1) - q.log_softmax(-1))).sum(-1)
    assert found.mean_kl == pytest.approx(kl.mean().item(), rel=1e-3)
    assert found.worst_kl == pytest.approx(kl.max().item(), rel=1e-3)
    assert found.agreement == pytest.approx((p.argmax(-1) == q.argmax(-1)).float().mean().item())
    assert found.rms_error > 0
    assert 0 < found.relative_error < 2


def test_a_model_compared_with_itself_costs_nothing(tmp_path):
    written = write_checkpoint(tmp_path / "m", Shape(), Layout("awq", 32))
    found = compare(written.path, written.path, [tokens(20)], lambda done: None)
    assert found.perplexity == found.source_perplexity
    assert (found.mean_kl, found.rms_error, found.agreement) == (pytest.approx(0, abs=1e-6), 0, 1)


def test_a_checkpoint_is_made_judged_and_put_in_place_whole(tmp_path, capsys):
    model = dense(tmp_path / "model")
    made: Written = write_checkpoint(tmp_path / "made", Shape(), Layout("gptq", 32, act_order=True))
    python = stand_in(tmp_path / "python", f'shutil.copytree("{made.path}", job["out"])')
    arguments = [str(model), "--format", "gptq", "--group-size", "32", "--desc-act"]
    text = numbers(tmp_path / "text.txt")
    arguments += ["--calibration", str(text), "--evaluation", str(text), "--python", str(python)]
    assert main(arguments) == 0
    out = tmp_path / "model-gptq-4bit-g32"
    said = capsys.readouterr()
    assert "perplexity" in said.out
    report = json.loads((out / REPORT).read_text())
    assert report["perplexity"] != report["source_perplexity"]
    assert report["settings"] == {
        "format": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": True,
        "calibration_tokens": 400,
    }  # fmt: skip
    assert (out / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()
    assert Checkpoint(out).config["quantization_config"]["desc_act"] is True
    job = json.loads((tmp_path / "python.json").read_text())
    assert (job["method"], job["group"], job["act_order"]) == ("gptq", 32, True)
    assert sum(map(len, job["calibration"])) == 400
    assert sorted(p.name for p in tmp_path.iterdir() if "model-" in p.name) == [out.name]
    assert main(arguments) == 1
    assert "exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ('print("ValueError: no CUDA"); sys.exit(1)', "GPTQModel failed: ValueError: no CUDA"),
        ('shutil.copytree("{spoilt}", job["out"])', "would not be served"),
    ],
)
def test_what_fails_leaves_no_checkpoint_and_says_why(tmp_path, capsys, action, said):
    model = dense(tmp_path / "model")
    spoilt = write_checkpoint(tmp_path / "spoilt", Shape(layers=3), Layout("gptq", 32)).path
    settings = json.loads((spoilt / "config.json").read_text())
    (spoilt / "config.json").write_text(json.dumps({**settings, "num_hidden_layers": 2}))
    python = stand_in(tmp_path / "python", action.format(spoilt=spoilt))
    arguments = [str(model), "--format", "gptq", "--group-size", "32", "--python", str(python)]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out-*"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--format", "gptq"], "does not divide hidden_size = 64; possible here: 32, 64, -1"),
        (["--format", "awq", "--bits", "8"], "AWQ checkpoints are served with 4 bits"),
        (["--format", "awq", "--desc-act"], "AWQ has no act-order"),
        (["--format", "gptq", "--group-size", "32", "--calibration", "absent"], "--calibration"),
        (["--format", "gptq", "--group-size", "32", "--python", "/absent"], "--python /absent"),
    ],
)
def test_what_cannot_be_done_is_said_before_the_work(tmp_path, capsys, arguments, said):
    assert main([str(dense(tmp_path / "model")), *arguments]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_without_the_extra_one_line_says_what_to_install(tmp_path, capsys):
    python = stand_in(tmp_path / "python", missing=1)
    arguments = [str(dense(tmp_path / "model")), "--format", "gptq", "--group-size", "-1"]
    assert main([*arguments, "--python", str(python)]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"error: {python} has no gptqmodel; run `pip install 'loratorio[quantize]'`, best in an"
        " environment of its own that --python names"
    ]


def test_a_quantised_checkpoint_is_not_quantised_again(tmp_path, capsys):
    path = write_checkpoint(tmp_path / "m", Shape(), Layout("gptq", 32)).path
    assert main([str(path), "--format", "gptq"]) == 1
    assert "quantised already" in capsys.readouterr().err


def test_texts_become_rows_without_a_stub_at_the_end(tmp_path):
    tokenizer = Tokenizer.from_file(str(dense(tmp_path / "m") / "tokenizer.json"))
    text = numbers(tmp_path / "t", 516).read_text()
    assert [len(row) for row in token_rows(tokenizer, text)] == [256, 256]
