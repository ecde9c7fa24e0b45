"""What is said of adapters in 8 bits, on a tiny model of random weights."""

import numpy as np

from bench.narrow_adapters import rows
from tests.adapters.builders import config, encode, write_adapter
from tests.engine.checkpoints import Shape, write_checkpoint

NAME = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"


def test_each_kind_is_held_to_the_adapter_as_it_was_trained(tmp_path):
    random = np.random.default_rng(0)
    model = write_checkpoint(tmp_path / "model", Shape()).path
    directories = []
    for number, name in enumerate(("one", "two")):
        tensors = {
            NAME.format(layer, side): encode(random.standard_normal(size))
            for layer in range(1 + number)
            for side, size in (("A", (4, 64)), ("B", (64, 4)))
        }
        directories.append(write_adapter(tmp_path / name, config(), tensors))
    text = [list(range(3, 30)), list(range(60, 20, -1))]
    told = {f"{row.op}: {row.metric}": row for row in rows(model, directories, text)}
    assert len(told) == 2 * 2 * 5
    assert {row.context for row in told.values()} == {26 + 39}
    for name in ("one", "two"):
        off = [told[f"{name} in {kind}: B A off by, worst layer"] for kind in ("int8", "e4m3")]
        apart = [told[f"{name} in {kind}: KL of the next token"] for kind in ("int8", "e4m3")]
        assert 0.1 < off[0].value < 1.5 < off[1].value < 5
        assert 0 < apart[0].value < apart[1].value
        assert [row.lora for row in off] == ["int8", "e4m3"]
