"""An EAGLE-3 head drafts what it drafts by definition, however passes and drafts came before."""

import pytest
import torch

from engine.batch import BatchBuilder
from engine.checkpoint import Checkpoint
from engine.errors import CheckpointInvalid
from engine.layers.embedding import Embedding
from engine.loading import Placement
from engine.models.spec import ModelSpec
from engine.speculation.eagle import EagleProposer
from engine.speculation.eagle_head import EagleHead, Target
from engine.speculation.proposer import Ask
from engine.speculation.warm_drafts import warm_drafts
from engine.speculation.watcher import Seen
from engine.step import Chunk
from tests.engine.checkpoints import Shape
from tests.engine.eagle_heads import FEATURES, TARGET, drafts_of, write_head
from tests.engine.peers import tokens
from tests.engine.rig import draw

CPU = torch.device("cpu")
PAGE = 16
WIDTH = len(FEATURES) * TARGET.hidden
TABLE = torch.randn(TARGET.vocab, TARGET.hidden, generator=torch.Generator().manual_seed(9))
ROWS = torch.randn(TARGET.vocab, TARGET.hidden, generator=torch.Generator().manual_seed(10))


def load(written, target=TARGET):
    spec = ModelSpec.read(target.config)
    return EagleHead(
        Checkpoint(written.path),
        Target(spec, lambda: Embedding(TABLE), lambda: ROWS, positions=512),
        Placement(CPU, torch.float32),
    )


def proposer_of(written):
    found = EagleProposer(
        load(written), BatchBuilder(PAGE, CPU), dtype=torch.float32, device=CPU, page_tokens=PAGE
    )
    found.allocate(32)
    return found


class Passes:
    """One sequence: what it knows, the features of what is computed, and the passes over it."""

    def __init__(self, proposer, prompt, number=1, pages=(7, 3, 11, 5, 2)):
        self.proposer, self.prompt, self.number, self.pages = proposer, prompt, number, pages
        self.output, self.computed = [], 0
        random = torch.Generator().manual_seed(number)
        self.features = torch.randn(200, WIDTH, generator=random)

    def chunk(self, count, drafts=()):
        known = [*self.prompt, *self.output, *drafts]
        start, self.computed = self.computed, self.computed + count
        asked = [draw()] * len(drafts) if drafts else ()
        return Chunk(
            sequence=self.number, tokens=known[start : start + count], start=start,
            pages=self.pages, draw=draw() if self.computed >= len(self.prompt) else None,
            drafts=asked,
        )  # fmt: skip

    def kept(self, count, token, drafts=()):
        """So many drafts were, and ``token`` came after them."""
        self.output += [*drafts[:count], token]
        self.computed = len(self.prompt) + len(self.output) - 1

    def ask(self, most):
        return Ask(
            sequence=self.number, prompt=self.prompt, output=self.output, most=most,
            pages=self.pages,
        )  # fmt: skip

    def expected(self, written, count):
        known = [*self.prompt, *self.output]
        return drafts_of(written, TABLE, known, self.features[: len(known) - 1], count)


def watch(proposer, *chunks_of):
    """One pass over chunks of several sequences."""
    chunks = [chunk for _, chunk in chunks_of]
    lengths = [len(chunk.tokens) for chunk in chunks]
    rows = [p.features[c.start : c.start + len(c.tokens)] for p, c in chunks_of]
    features = torch.cat([*rows, torch.full((5, WIDTH), torch.nan)])  # of the largest pass
    first = [sum(lengths[:i]) for i in range(len(lengths))]
    proposer.watch(Seen(chunks=chunks, first_rows=first, features=features))
    features.fill_(torch.nan)  # they are the next pass's now


def assert_drafts_are_those_of_the_definition(written, count):
    """After a prompt that one pass took."""
    proposer = proposer_of(written)
    passes = Passes(proposer, tokens(10))
    watch(proposer, (passes, passes.chunk(10)))
    passes.kept(0, 8)
    assert proposer.propose([passes.ask(count)]) == {1: passes.expected(written, count)}


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("cuts", [(23,), (9, 14), (16, 1, 6)], ids=str)
def test_drafts_after_a_prompt_are_those_of_the_definition(tmp_path, cuts, normed):
    written = write_head(tmp_path / "h", norm_before_residual=normed)
    proposer = proposer_of(written)
    passes = Passes(proposer, tokens(23))
    for cut in cuts:
        watch(proposer, (passes, passes.chunk(cut)))
    passes.kept(0, 8)
    assert proposer.propose([passes.ask(4)]) == {1: passes.expected(written, 4)}


def test_drafts_that_were_not_kept_leave_no_trace(tmp_path):
    written = write_head(tmp_path / "h")
    proposer = proposer_of(written)
    passes = Passes(proposer, tokens(30))
    watch(proposer, (passes, passes.chunk(30)))
    passes.kept(0, 8)
    for kept, token in ((1, 5), (0, 17), (3, 40), (2, 9), (0, 3)):
        found = proposer.propose([passes.ask(3)])[1]
        assert found == passes.expected(written, 3)
        watch(proposer, (passes, passes.chunk(4, found)))
        passes.features[passes.computed - 4 + kept + 1 :] *= -1  # what rejected rows said is gone
        passes.kept(kept, token, found)


def test_plain_passes_between_are_caught_up_with(tmp_path):
    written = write_head(tmp_path / "h")
    proposer = proposer_of(written)
    passes = Passes(proposer, tokens(12))
    watch(proposer, (passes, passes.chunk(12)))
    for token in (4, 9, 31):
        passes.kept(0, token)
        watch(proposer, (passes, passes.chunk(1)))
    passes.kept(0, 6)
    assert proposer.propose([passes.ask(2)]) == {1: passes.expected(written, 2)}
    again = proposer.propose([passes.ask(2)])  # no pass came: the drafts were of no use
    assert again == {1: passes.expected(written, 2)}


def test_sequences_of_one_pass_draft_each_its_own_and_as_many_as_it_asks_for(tmp_path):
    written = write_head(tmp_path / "h")
    proposer = proposer_of(written)
    one = Passes(proposer, tokens(20, seed=1), number=1)
    two = Passes(proposer, tokens(7, seed=2), number=2, pages=(20, 21))
    watch(proposer, (one, one.chunk(20)), (two, two.chunk(7)))
    one.kept(0, 5)
    two.kept(0, 6)
    found = proposer.propose([one.ask(1), two.ask(4)])
    assert found == {1: one.expected(written, 1), 2: two.expected(written, 4)}
    watch(proposer, (two, two.chunk(5, found[2])), (one, one.chunk(2, found[1])))
    one.kept(1, 11, found[1])
    two.kept(2, 12, found[2])
    found = proposer.propose([two.ask(2), one.ask(3)])
    assert found == {1: one.expected(written, 3), 2: two.expected(written, 2)}


def test_a_sequence_that_nothing_is_known_of_gets_no_drafts(tmp_path):
    proposer = proposer_of(write_head(tmp_path / "h"))
    passes = Passes(proposer, tokens(9))
    passes.kept(0, 4)
    assert proposer.propose([passes.ask(3)]) == {}
    watch(proposer, (passes, Passes(proposer, passes.prompt).chunk(9)))
    assert len(proposer.propose([passes.ask(3)])[1]) == 3
    proposer.forget(1)
    assert proposer.propose([passes.ask(3)]) == {}


def test_what_is_played_before_requests_come_is_forgotten(tmp_path):
    written = write_head(tmp_path / "h")
    proposer = proposer_of(written)
    warm_drafts(proposer, hidden=TARGET.hidden, dtype=torch.float32, device=CPU, most=3)
    assert not proposer._pending
    passes = Passes(proposer, tokens(10), pages=(0, 1))
    watch(proposer, (passes, passes.chunk(10)))
    passes.kept(0, 8)
    assert proposer.propose([passes.ask(2)]) == {1: passes.expected(written, 2)}


@pytest.mark.parametrize(
    ("prefix", "outer"),
    [("midlayer", ""), ("layers.0", ""), ("midlayer", "model."), ("layers.0", "model.")],
)
def test_every_published_layout_is_read(tmp_path, prefix, outer):
    written = write_head(tmp_path / "h", prefix=prefix, outer=outer)
    assert_drafts_are_those_of_the_definition(written, 2)


def test_settings_nested_as_speculators_has_them_are_read(tmp_path):
    plain = write_head(tmp_path / "plain")
    outside = ("draft_vocab_size", "eagle_aux_hidden_state_layer_ids")
    nested = {key: value for key, value in plain.config.items() if key not in outside}
    nested["architectures"] = ["LlamaForCausalLM"]
    gone = {key: None for key in nested if key not in outside}
    written = write_head(
        tmp_path / "h",
        **gone | {"architectures": ["Eagle3Speculator"], "transformer_layer_config": nested},
    )
    assert load(written).spec == load(plain).spec


REFUSED = {
    "another vocabulary": ({"vocab_size": 97}, "vocab_size=97; the target has 96"),
    "two layers": ({"num_hidden_layers": 2}, "num_hidden_layers=2; an EAGLE-3 head has 1"),
    "no head": ({"architectures": ["LlamaForCausalLM"]}, "'LlamaForCausalLM' is no EAGLE-3 head"),
    "a layer too many": (
        {"eagle_aux_hidden_state_layer_ids": [1, 2, 4]},
        r"eagle_aux_hidden_state_layer_ids=\[1, 2, 4\]; expected numbers below the target's 4",
    ),
    "two features": (
        {"eagle_aux_hidden_state_layer_ids": [1, 2]},
        r"fc: found fc.weight F32 \[64, 192\]; expected F16, BF16 or F32 \[64, 128\]",
    ),
    "more to say": ({"draft_vocab_size": 200}, "draft_vocab_size=200; expected at most"),
    "less to say": (
        {"draft_vocab_size": 30},
        r"lm_head: found lm_head.weight F32 \[40, 64\]; expected F16, BF16 or F32 \[30, 64\]",
    ),
    "another width": ({"target_hidden_size": 128}, "target_hidden_size=128; the target's"),
}


@pytest.mark.parametrize(("config", "said"), REFUSED.values(), ids=REFUSED)
def test_a_head_of_another_target_is_refused_by_name(tmp_path, config, said):
    with pytest.raises(CheckpointInvalid, match=said):
        load(write_head(tmp_path / "h", **config))


def test_a_narrower_head_needs_embeddings_of_its_own(tmp_path):
    written = write_head(tmp_path / "h", target=Shape(layers=4, hidden=32, vocab=96))
    with pytest.raises(CheckpointInvalid, match=r"fc: found fc.weight F32 \[32, 96\]"):
        load(written)


def test_a_head_without_rows_says_its_tokens_with_the_targets(tmp_path):
    written = write_head(tmp_path / "h", rows=ROWS)
    assert "lm_head.weight" not in Checkpoint(written.path).tensors
    assert_drafts_are_those_of_the_definition(written, 3)


def test_a_head_without_rows_and_without_the_numbers_of_its_tokens_is_refused(tmp_path):
    written = write_head(tmp_path / "h", rows=ROWS, left_out=("d2t",))
    with pytest.raises(CheckpointInvalid, match=r"d2t: found no tensor; expected I64 \[40\]"):
        load(written)


def test_a_narrower_head_needs_rows_of_its_own(tmp_path):
    narrow = Shape(layers=4, hidden=32, vocab=96)
    written = write_head(
        tmp_path / "h", target=narrow, fused=TARGET.hidden, embedded=True,
        left_out=("lm_head.weight",), target_hidden_size=TARGET.hidden,
    )  # fmt: skip
    with pytest.raises(CheckpointInvalid, match=r"lm_head: found no tensor; .* \[40, 32\]: the"):
        load(written)
