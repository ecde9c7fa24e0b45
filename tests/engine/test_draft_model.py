"""A draft model drafts what it would say itself, however passes and drafts came before."""

import json

import pytest
import torch

from engine.batch import BatchBuilder
from engine.checkpoint import Checkpoint
from engine.errors import CheckpointInvalid
from engine.loading import Placement, Weights
from engine.models.decoder import Decoder
from engine.models.spec import ModelSpec
from engine.speculation.draft_model import DraftModelProposer
from engine.speculation.proposer import Ask
from engine.speculation.vocabularies import require_same_tokens
from engine.speculation.watcher import Seen
from engine.step import Chunk
from tests.engine.checkpoints import Shape, write_checkpoint
from tests.engine.peers import tokens
from tests.engine.rig import Rig, chunk, draw

CPU = torch.device("cpu")
PAGE = 16


class Drafting:
    """A proposer, and what its model says by itself, of whole sequences without a cache."""

    def __init__(self, path, vocabulary=96):
        checkpoint = Checkpoint(path)
        spec = ModelSpec.read(checkpoint.config)
        weights = Weights(checkpoint, spec, Placement(CPU, torch.float32))
        self.proposer = DraftModelProposer(
            Decoder(weights, positions=spec.max_position), BatchBuilder(PAGE, CPU),
            dtype=torch.float32, device=CPU, page_tokens=PAGE, vocabulary=vocabulary,
        )  # fmt: skip
        self.proposer.allocate(32)
        self._rig, self._pages = Rig(path), None

    def expected(self, known, count):
        self._pages = self._pages or self._rig.pages(200)
        known = list(known)
        for _ in range(count):
            known.append(int(self._rig.logits([chunk(known, self._pages)])[-1].argmax()))
        return known[-count:]

    def watch(self, *chunks):
        lengths = [len(chunk.tokens) for chunk in chunks]
        first = [sum(lengths[:i]) for i in range(len(lengths))]
        self.proposer.watch(Seen(chunks=chunks, first_rows=first, features=None))


def passed(number, known, start, pages, drafts=0, last=True):
    asked = [draw()] * drafts if drafts else ()
    return Chunk(
        sequence=number, tokens=known[start:], start=start, pages=pages,
        draw=draw() if last else None, drafts=asked,
    )  # fmt: skip


def ask(number, prompt, output, most, pages):
    return Ask(sequence=number, prompt=prompt, output=output, most=most, pages=pages)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("draft") / "m", Shape(layers=2))


@pytest.mark.parametrize("cuts", [(23,), (9, 14), (16, 1, 6), ()], ids=str)
def test_drafts_after_a_prompt_are_what_the_model_says(written, cuts):
    drafting, prompt, pages, start = Drafting(written.path), tokens(23), (7, 3, 11), 0
    for cut in cuts:
        drafting.watch(passed(1, prompt[: start + cut], start, pages, last=start + cut == 23))
        start += cut
    if not cuts:  # all of it was found in pages of another sequence
        drafting.watch(passed(2, prompt, 0, pages))
    found = drafting.proposer.propose([ask(1, prompt, [8], 4, pages)])
    assert found == {1: drafting.expected([*prompt, 8], 4)}


def test_drafts_that_were_not_kept_leave_no_trace(written):
    drafting, prompt, pages = Drafting(written.path), tokens(30), (7, 3, 11, 4)
    drafting.watch(passed(1, prompt, 0, pages))
    output = [8]
    for kept, token in ((1, 5), (0, 17), (3, 40), (2, 9), (0, 3)):
        found = drafting.proposer.propose([ask(1, prompt, output, 3, pages)])[1]
        assert found == drafting.expected([*prompt, *output], 3)
        known = [*prompt, *output]
        drafting.watch(passed(1, [*known, *found], len(known) - 1, pages, drafts=3))
        output += [*found[:kept], token]


def test_plain_passes_between_are_caught_up_with(written):
    drafting, prompt, pages = Drafting(written.path), tokens(12), (7, 3, 11)
    drafting.watch(passed(1, prompt, 0, pages))
    output = [4, 9, 31, 6]
    for end in (13, 14, 15):
        drafting.watch(passed(1, [*prompt, *output][:end], end - 1, pages))
    found = drafting.proposer.propose([ask(1, prompt, output, 2, pages)])
    assert found == {1: drafting.expected([*prompt, *output], 2)}
    assert drafting.proposer.propose([ask(1, prompt, output, 2, pages)]) == found


def test_a_sequence_that_had_to_yield_is_computed_again(written):
    drafting, prompt = Drafting(written.path), tokens(20)
    drafting.watch(passed(1, prompt, 0, (7, 3)))
    drafting.proposer.propose([ask(1, prompt, [5, 6], 3, (7, 3))])
    elsewhere = (12, 15)
    drafting.watch(passed(1, [*prompt, 5, 6], 0, elsewhere))
    found = drafting.proposer.propose([ask(1, prompt, [5, 6, 7], 3, elsewhere)])
    assert found == {1: drafting.expected([*prompt, 5, 6, 7], 3)}


def test_sequences_draft_each_their_own_and_as_many_as_they_ask_for(written):
    drafting, one, two = Drafting(written.path), tokens(20, seed=1), tokens(7, seed=2)
    drafting.watch(passed(1, one, 0, (7, 3)), passed(2, two, 0, (20,)))
    found = drafting.proposer.propose([ask(1, one, [5], 1, (7, 3)), ask(2, two, [6], 4, (20,))])
    assert found == {1: drafting.expected([*one, 5], 1), 2: drafting.expected([*two, 6], 4)}


def test_beyond_its_own_length_it_drafts_nothing(tmp_path):
    short = write_checkpoint(tmp_path / "m", Shape(layers=1, positions=16))
    drafting, prompt = Drafting(short.path), tokens(15)
    drafting.watch(passed(1, prompt, 0, (7, 3)))
    assert len(drafting.proposer.propose([ask(1, prompt, [], 1, (7, 3))])[1]) == 1
    assert drafting.proposer.propose([ask(1, prompt, [8], 1, (7, 3))]) == {}
    drafting.watch(passed(2, tokens(17), 0, (4, 5)))


def test_a_wider_vocabulary_of_padding_is_never_drafted_from(tmp_path):
    wide = write_checkpoint(tmp_path / "m", Shape(layers=1, vocab=128))
    drafting, prompt = Drafting(wide.path, vocabulary=40), tokens(15)
    found = drafting.proposer.propose([ask(1, prompt, [8], 8, (7, 3))])[1]
    assert len(found) == 8
    assert max(found) < 40


def tokenizer(path, tokens, added=()):
    path.mkdir(exist_ok=True)
    content = {
        "model": {"vocab": {token: i for i, token in enumerate(tokens)}},
        "added_tokens": [{"content": token, "id": i} for token, i in added],
    }
    (path / "tokenizer.json").write_text(json.dumps(content))
    return path


def spec(vocab):
    return ModelSpec.read(Shape(vocab=vocab).config)


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        (["a", "b", "x"], "token 'c' is 2 in .*base, but its tokenizer lacks it"),
        (["a", "c", "b"], "token 'b' is 1 in .*base, but its tokenizer numbers it 2"),
        (["a", "b", "c", "d"], "its tokenizer has 'd', which .*base lacks"),
    ],
)
def test_another_vocabulary_is_refused_by_the_first_token_that_differs(tmp_path, draft, said):
    base = tokenizer(tmp_path / "base", ["a", "b", "c"])
    with pytest.raises(CheckpointInvalid, match=said):
        require_same_tokens(tokenizer(tmp_path / "d", draft), spec(96), base, spec(96))


def test_padding_may_differ_where_tokenizers_agree(tmp_path):
    base = tokenizer(tmp_path / "base", ["a", "b"], [("<end>", 2)])
    draft = tokenizer(tmp_path / "draft", ["a", "b", "<end>"])
    require_same_tokens(draft, spec(128), base, spec(96))
    (draft / "tokenizer.json").unlink()
    with pytest.raises(CheckpointInvalid, match="vocab_size=128; expected 96"):
        require_same_tokens(draft, spec(128), base, spec(96))
