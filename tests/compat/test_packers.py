"""What the original packers wrote is read code for code; what they disagree on, as README.md says.

The committed fixtures were written by ``environments.py``. ``make test-compat`` writes them anew,
with larger layers beside them, and names the place in COMPAT_WRITTEN.
"""

import os
from pathlib import Path

import pytest
import torch

from engine.quant.configs import read_scheme
from engine.quant.formats import Quantised
from engine.quant.packings import PACKINGS
from engine.quant.schemes import Claim
from tests.compat.environments import FIXTURES, PACKERS
from tests.compat.layers import DENSE, LARGE, Fixture
from tests.compat.names import FILE, Answers

MODULE = "model.layers.0.self_attn.q_proj"
WRITTEN = Path(os.environ["COMPAT_WRITTEN"]) if os.environ.get("COMPAT_WRITTEN") else None


def below(root: Path | None, pattern: str = "*.safetensors") -> list[Path]:
    return sorted(root.rglob(pattern)) if root else []


COMMITTED = below(FIXTURES)
FILES = [
    pytest.param(file, id=f"{file.parent.name}-{file.stem}{suffix}")
    for files, suffix in ((COMMITTED, ""), (below(WRITTEN), "-anew"))
    for file in files
]
WHOLE = [file for file in FILES if "spoilt" not in file.id]
SPOILT = [file for file in FILES if "spoilt" in file.id]


def contents(root: Path) -> dict[str, bytes]:
    """By path below ``root``, without the large layers."""
    files = (file for file in root.rglob("*.*") if file.is_file())
    names = {str(file.relative_to(root)): file.read_bytes() for file in files}
    return {name: content for name, content in names.items() if not name.startswith("large/")}


def read(fixture: Fixture, claim: Claim | None = None) -> Quantised:
    tensors = fixture.packed.tensors
    codes = next(part for part in PACKINGS if part in tensors)
    parts = PACKINGS[codes].parts(MODULE, {f"{MODULE}.{part}": None for part in tensors})
    assert set(parts) == set(tensors), "a packer writes a tensor that we would leave over"
    claim = claim or read_scheme({"config.json": fixture.packed.config}).claim(MODULE)
    size = (fixture.case.inputs, fixture.case.outputs)
    return PACKINGS[codes].unpack(MODULE, tensors, size, claim)


def in_input_order(weight: Quantised) -> torch.Tensor:
    return weight.codes if weight.perm is None else weight.codes[torch.argsort(weight.perm)]


@pytest.mark.parametrize("file", WHOLE)
def test_codes_zeros_and_weights_are_those_of_the_packer(file):
    fixture = Fixture.read(file)
    weight = read(fixture)
    assert (weight.bits, weight.group) == (fixture.case.bits, fixture.case.rows)
    assert torch.equal(in_input_order(weight), fixture.codes)
    assert torch.equal(weight.zeros, fixture.zeros)
    dense = fixture.packed.dense
    assert torch.equal(weight.dense()[:DENSE].to(dense.dtype), dense)


@pytest.mark.parametrize("file", SPOILT)
def test_of_a_word_that_auto_gptq_spoils_the_zeros_it_kept_are_read(file):
    """A zero of 0 turns itself and all after it in its word into 15: those after it are lost."""
    fixture = Fixture.read(file)
    weight = read(fixture)
    assert torch.equal(in_input_order(weight), fixture.codes)
    meant = fixture.zeros.unflatten(1, (-1, 8))
    kept = torch.cat([torch.ones_like(meant[..., :1]), meant[..., :-1]], -1).cumprod(-1) > 0
    assert 0 in meant[kept]
    assert not kept.all()
    assert torch.equal(weight.zeros.unflatten(1, (-1, 8))[kept], meant[kept])


@pytest.mark.parametrize("file", [file for file in WHOLE if "-sym" in file.id])
def test_a_symmetric_module_needs_no_claim(file):
    fixture = Fixture.read(file)
    assert torch.equal(in_input_order(read(fixture, Claim())), fixture.codes)


@pytest.mark.parametrize("file", below(FIXTURES, FILE), ids=lambda file: file.parent.name)
def test_every_module_has_the_settings_that_the_packer_gives_it(file):
    answers = Answers.read(file)
    scheme = read_scheme({"config.json": answers.config})
    claims = {name: scheme.claim(name) for name in answers.settings}
    ours = {name: claim and (claim.bits, claim.group_size) for name, claim in claims.items()}
    assert ours == answers.settings
    assert len(set(ours.values())) > 3


def test_every_packer_has_fixtures_and_they_are_small():
    assert {file.parent.name for file in COMMITTED} == set(PACKERS)
    assert sum(file.stat().st_size for file in COMMITTED) < 500_000


@pytest.mark.skipif(WRITTEN is None, reason="make test-compat writes them anew")
def test_written_anew_the_fixtures_are_the_same_to_the_byte():
    assert WRITTEN is not None
    written, committed = contents(WRITTEN), contents(FIXTURES)
    assert written.keys() == committed.keys()
    assert [name for name in written if written[name] != committed[name]] == []


@pytest.mark.skipif(WRITTEN is None, reason="make test-compat writes them anew")
def test_larger_layers_were_read_too():
    assert WRITTEN is not None
    cases = [Fixture.read(file).case for file in below(WRITTEN / "large")]
    assert {case.inputs * case.outputs > LARGE for case in cases} == {True}
    assert len(cases) >= 10
