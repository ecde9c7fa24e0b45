"""What makes the demo's drafters: the base talks as it would, and what is trained serves."""

import json
from dataclasses import replace

import pytest
import torch
import transformers

from engine.batch import BatchBuilder
from engine.checkpoint import Checkpoint
from engine.demo import draft_model, eagle_head, eagle_training
from engine.demo.llama import Llama, Shape
from engine.demo.own_words import Manner, Speaker
from engine.demo.replay import Passes, replay
from engine.demo.scale import SMALL, Allowance
from engine.demo.speculators import bare, openings
from engine.demo.teacher import batches, divergence, record
from engine.layers.embedding import Embedding
from engine.loading import Placement
from engine.models.spec import ModelSpec
from engine.speculation.eagle import EagleProposer
from engine.speculation.eagle_head import EagleHead, Target
from engine.speculation.proposer import Ask
from engine.speculation.watcher import Seen
from engine.step import Chunk
from tests.engine.peers import tokens
from tests.engine.rig import Rig, chunk, draw

CPU = torch.device("cpu")
VOCAB, OPEN, END = 300, 1, 2


@pytest.fixture(scope="module")
def target():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=30,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, tie_word_embeddings=True,
        max_position_embeddings=256, initializer_range=0.2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def recordings(target):
    said = [tokens(length, seed=length, vocab=VOCAB) for length in (30, 41, 52, 36)]
    return record(target, said, eagle_head.LAYERS, OPEN, lambda done: None)


def trained(target, recordings, epochs, allowance=None):
    scale = replace(SMALL, head_epochs=epochs)
    allowed = Allowance(None) if allowance is None else allowance
    return eagle_training.train(target, recordings, scale, lambda stage, done: None, allowed)


def test_many_texts_are_continued_at_once_as_each_would_be_alone():
    torch.manual_seed(1)
    shape = Shape(layers=2, heads=4, kv_heads=2, head_dim=8, eps=1e-5, rope_theta=1e4)
    weights = {
        "model.embed_tokens.weight": torch.randn(VOCAB, 32),
        "model.norm.weight": torch.ones(32),
    }
    for layer in range(2):
        for name, size in (
            ("self_attn.q_proj", (32, 32)), ("self_attn.k_proj", (16, 32)),
            ("self_attn.v_proj", (16, 32)), ("self_attn.o_proj", (32, 32)),
            ("mlp.gate_proj", (48, 32)), ("mlp.up_proj", (48, 32)), ("mlp.down_proj", (32, 48)),
        ):  # fmt: skip
            weights[f"model.layers.{layer}.{name}.weight"] = torch.randn(size) * size[1] ** -0.5
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{layer}.{name}.weight"] = torch.ones(32)
    rounded = {name: weight.bfloat16() for name, weight in weights.items()}
    alone = Llama(shape, {name: weight.float() for name, weight in rounded.items()})
    texts = [tokens(length, seed=length, vocab=VOCAB) for length in (9, 3, 17)]
    speaker = Speaker(shape, weights, END, seed=0, device=CPU, rows=2)
    said = speaker.go_on(texts, Manner(6, 0.0), lambda done: None)
    for text, answer in zip(texts, said, strict=True):
        known = torch.tensor([*text, *answer])
        logits = alone.logits(alone.hidden(known[None]))[0, len(text) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
        assert ((logits.max(1).values - chosen) < 0.1 * logits.std()).all()  # it rounds to bfloat16


def test_questions_to_be_tried_are_known_by_their_words_and_new_ones_begin_as_others_do():
    assert bare("Why is the ocean salty?") == bare("why is  the Ocean salty")
    assert bare("Why is the ocean salty?") != bare("Why is the ocean so salty?")
    asked = ["Who wrote Hamlet?", "Hello!", "What is the capital of Norway, please, sir?"]
    assert openings(asked) == ["Who", "What is the"]


def test_only_answers_teach(target, recordings):
    said = [OPEN, 7, 8, 20, 21, END, OPEN, 9, 8, 30, 31, 32]
    (recording,) = record(target, [said], eagle_head.LAYERS, OPEN, lambda done: None)
    assert said[recording.learned_from :] == [30, 31, 32]


def test_the_target_is_recorded_as_it_enters_its_layers(target, recordings):
    shortest = recordings[0]
    states = target.model(shortest.tokens[None], output_hidden_states=True).hidden_states
    wanted = torch.cat([states[layer][0] for layer in eagle_head.LAYERS], 1)
    torch.testing.assert_close(shortest.features, wanted)
    torch.testing.assert_close(shortest.final, states[-1][0])


def test_the_head_that_was_trained_is_the_head_that_drafts(target, recordings, tmp_path):
    head, said = trained(target, recordings, 2)
    eagle_head.save(head, said, target.config, tmp_path)
    spec = ModelSpec.read(target.config.to_dict() | {"architectures": ["LlamaForCausalLM"]})
    table = target.model.embed_tokens.weight
    place = Placement(CPU, torch.float32)
    shared = Target(spec, lambda: Embedding(table), lambda: table, positions=256)
    served = EagleHead(Checkpoint(tmp_path), shared, place)
    proposer = EagleProposer(
        served, BatchBuilder(16, CPU), dtype=torch.float32, device=CPU, page_tokens=16
    )
    proposer.allocate(8)
    taught, known = recordings[1], recordings[1].tokens.tolist()
    prompt = Chunk(sequence=1, tokens=known[:-1], start=0, pages=(3, 5, 1), draw=draw())
    proposer.watch(Seen(chunks=[prompt], first_rows=[0], features=taught.features[:-1]))
    ask = Ask(sequence=1, prompt=known[:-1], output=known[-1:], most=2, pages=(3, 5, 1))
    found = proposer.propose([ask])[1]
    past = []
    with torch.inference_mode():
        first = head.turn(taught.tokens[None, 1:], head.fuse(taught.features[None, :-1]), past)
        assert found[0] == said[head.say(first)[0, -1].argmax()]


def test_the_divergence_and_its_slope_are_torchs_own():
    torch.manual_seed(0)
    logits, wanted = torch.randn(5, 40), torch.randn(5, 40).softmax(1)
    ours, theirs = (logits.clone().requires_grad_() for _ in range(2))
    found = divergence(ours, wanted)
    expected = torch.nn.functional.cross_entropy(theirs, wanted)
    torch.testing.assert_close(found, expected)
    torch.autograd.backward([found, expected])
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_training_teaches(target, recordings):
    import random

    def loss(head):
        table = target.model.embed_tokens.weight.bfloat16()
        batch = next(batches(recordings, 8, random.Random(0)))
        with torch.inference_mode():
            return float(eagle_training._loss(head, table, batch, 3))

    once, _ = trained(target, recordings, 1)
    often, _ = trained(target, recordings, 40)
    assert loss(often) < loss(once) - 0.05, (loss(often), loss(once))


def test_the_draft_model_that_was_trained_is_the_one_that_serves(target, recordings, tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    settings = target.config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    (base / "config.json").write_text(json.dumps(settings))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (base / name).write_text("{}")
    model = draft_model.train(target, recordings, 1, lambda stage, done: None)
    draft_model.save(model, base, tmp_path / "draft")
    rig, prompt = Rig(tmp_path / "draft"), tokens(20, vocab=VOCAB)
    with torch.inference_mode():
        wanted = model.eval()(torch.tensor([prompt])).logits[0]
    found = rig.logits([chunk(prompt, rig.pages(20))])
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)  # stored in float16


class Spent:
    """An allowance of so many looks."""

    def __init__(self, looks):
        self._looks, self._seen = looks, 0

    def spent(self):
        self._seen += 1
        return min(1.0, self._seen / self._looks)


def test_training_ends_when_its_time_is_spent(target, recordings):
    told = []
    scale = replace(SMALL, head_epochs=1000)
    eagle_training.train(
        target, recordings, scale, lambda stage, done: told.append(done), Spent(20)
    )
    assert 1 <= len(told) < 20
    assert told == sorted(told)
    assert max(told) <= 1


def test_an_answer_is_walked_from_pass_to_pass():
    passes = Passes()
    # Tokens 2.. of 9 are the answer. The pass that begins with 2 keeps both drafts, that with 5
    # the first, that with 7 has room for none: what it brings is the last token.
    first = [False, False, True, False, False, True, False, True, False]
    second = [False, False, True, False, False, False, False, True, False]
    passes.walk([first, second], 2, 9)
    assert (passes.passes, passes.tokens, passes.kept_at) == (3, 6, [2, 1])
    assert passes.tokens_a_pass == 2.0


def test_a_replayed_head_keeps_what_agrees_with_the_answer(target, recordings):
    head, said = trained(target, recordings, 20)
    one, three = (replay(head, said, recordings, drafts) for drafts in (1, 3))
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        made = [
            head.turn(r.tokens[None, 1:], head.fuse(r.features[None, :-1]), []) for r in recordings
        ]
        first = [head.say(hidden)[0].argmax(-1) for hidden in made]
    wanted = Passes()
    for recording, drafted in zip(recordings, first, strict=True):
        right = said[drafted[:-1]] == recording.tokens[2:]
        wanted.walk(
            [[False, *right.tolist(), False]], recording.learned_from, len(recording.tokens)
        )
    assert one.kept_at == wanted.kept_at
    assert one.tokens == three.tokens == sum(len(r.tokens) - r.learned_from - 1 for r in recordings)
    assert three.passes <= one.passes
