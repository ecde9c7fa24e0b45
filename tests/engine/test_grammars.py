"""llguidance behind the engine's own words: masks, forks, ends and faults."""

import json
from threading import Event

import numpy as np
import pytest
from llguidance import LLMatcher
from tokenizers import Tokenizer

import engine.grammars as grammars_module
from engine.effort import GRACE_S, HEAVY_S
from engine.errors import GrammarInvalid
from engine.grammars import GrammarMatcher, LlGrammars
from engine.matcher import Turn
from tests.engine.vocabulary import EOS, write_tokenizer

VOCAB = 700  # more than the tokenizer has: what a padded head computes is never allowed
WAIT_S = 30


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def tokenizer(path):
    return Tokenizer.from_file(str(path))


@pytest.fixture(scope="module")
def grammars(path, tokenizer):
    eos = [tokenizer.token_to_id(EOS), tokenizer.token_to_id("<|endoftext|>")]
    return LlGrammars(path, vocab_size=VOCAB, eos=eos, threads=2)


@pytest.fixture
def start(grammars):
    def start(grammar: str) -> GrammarMatcher:
        return grammars.compile(grammar).result(WAIT_S).fork()

    return start


def schema(value: object) -> str:
    return LLMatcher.grammar_from_json_schema(json.dumps(value))


def allowed(grammars, *matchers, barred=()):
    turns = [Turn(number, matcher, [barred]) for number, matcher in enumerate(matchers)]
    masks = grammars.masks(turns).result(WAIT_S)
    bits = np.unpackbits(masks.bits.view(np.uint8), axis=1, bitorder="little")
    return [set(bits[masks.rows[n]].nonzero()[0].tolist()) for n in range(len(matchers))]


def test_masks_after_drafts_are_those_of_a_matcher_that_took_them(grammars, start, tokenizer):
    matcher = start(schema({"type": "object", "properties": {"name": {"type": "string"}},
                            "required": ["name"], "additionalProperties": False}))  # fmt: skip
    tokens = tokenizer.encode('{"name": "Zürich"}').ids
    feed(grammars, matcher, tokens[:2])
    drafts, ahead = tokens[2:6], matcher.fork()
    assert matcher.fitting([*drafts, 5]) >= len(drafts)
    assert matcher.fitting([tokens[0]]) == 0
    turns = [
        Turn(0, start("start: /a/"), [()]),
        Turn(1, matcher, [(), (drafts[1],), (), (), ()], drafts),
    ]
    masks = grammars.masks(turns).result(WAIT_S)
    assert masks.rows == {0: 0, 1: 1}
    bits = np.unpackbits(masks.bits.view(np.uint8), axis=1, bitorder="little")
    for place in range(len(drafts) + 1):
        expected = allowed(grammars, ahead)[0] - ({drafts[1]} if place == 1 else set())
        assert set(bits[1 + place].nonzero()[0].tolist()) == expected
        if place < len(drafts):
            ahead.take(drafts[place])
    assert allowed(grammars, matcher) != allowed(grammars, ahead)


def feed(grammars, matcher, tokens):
    for token in tokens:
        assert token in allowed(grammars, matcher)[0]
        matcher.take(token)
    assert matcher.fault == ""


def test_a_text_of_the_grammar_is_allowed_token_by_token_and_then_complete(
    grammars, start, tokenizer
):
    matcher = start(schema({"type": "object", "properties": {"name": {"type": "string"}},
                            "required": ["name"], "additionalProperties": False}))  # fmt: skip
    text = '{"name": "Zürich 東京"}'
    tokens = tokenizer.encode(text).ids
    feed(grammars, matcher, tokens[:-1])
    assert not matcher.complete
    feed(grammars, matcher, tokens[-1:])
    assert matcher.complete


def test_masks_hold_no_token_that_the_tokenizer_lacks(grammars, start, tokenizer):
    (may,) = allowed(grammars, start(LLMatcher.grammar_from_regex("(.|\n)*")))
    assert len(may) > 300
    assert max(may) < tokenizer.get_vocab_size()
    assert tokenizer.token_to_id("<|im_start|>") not in may


def test_a_head_may_have_fewer_tokens_than_the_tokenizer(path, tokenizer):
    few = LlGrammars(path, vocab_size=200, eos=[tokenizer.token_to_id(EOS)], threads=1)
    matcher = few.compile(LLMatcher.grammar_from_regex("a")).result(WAIT_S).fork()
    assert allowed(few, matcher)[0] == {tokenizer.token_to_id("a")}


def test_every_end_of_sequence_token_may_end_it(grammars, start, tokenizer):
    ends = {tokenizer.token_to_id(EOS), tokenizer.token_to_id("<|endoftext|>")}
    matcher = start(LLMatcher.grammar_from_regex("ab?"))
    assert not ends & allowed(grammars, matcher)[0]
    matcher.take(tokenizer.token_to_id("a"))
    assert ends <= allowed(grammars, matcher)[0]
    matcher.take(tokenizer.token_to_id(EOS))
    assert matcher.complete


def test_masks_of_a_pass_are_each_their_own(grammars, start, tokenizer):
    one, other = start(LLMatcher.grammar_from_regex("a")), start(LLMatcher.grammar_from_regex("b"))
    a, b = tokenizer.token_to_id("a"), tokenizer.token_to_id("b")
    assert allowed(grammars, one, other, one.fork()) == [{a}, {b}, {a}]


def test_forks_go_their_own_ways(grammars, start, tokenizer):
    matcher = start(LLMatcher.grammar_from_regex("ab"))
    other = matcher.fork()
    matcher.take(tokenizer.token_to_id("a"))
    assert tokenizer.token_to_id("a") in allowed(grammars, other)[0]
    assert tokenizer.token_to_id("a") not in allowed(grammars, matcher)[0]


def test_barred_tokens_are_left_out_unless_nothing_else_is_left(grammars, start, tokenizer):
    a, b = tokenizer.token_to_id("a"), tokenizer.token_to_id("b")
    either = start(LLMatcher.grammar_from_regex("a|b"))
    assert allowed(grammars, either, barred=(a, 699))[0] == {b}
    assert allowed(grammars, start(LLMatcher.grammar_from_regex("a")), barred=(a,))[0] == {a}
    for token in (31, 32, 63):  # a word's highest bit, and its neighbours
        free = start(LLMatcher.grammar_from_regex("(.|\n)*"))
        assert allowed(grammars, free)[0] - allowed(grammars, free, barred=(token,))[0] == {token}


def test_what_is_no_grammar_is_said_so(grammars):
    for text in ("start: nobody", '{"grammars": [{"json_schema": {"type": "strange"}}]}', ""):
        with pytest.raises(GrammarInvalid):
            grammars.compile(text).result(WAIT_S)


def test_a_token_that_does_not_fit_is_a_fault(start, tokenizer):
    matcher = start(LLMatcher.grammar_from_regex("a"))
    matcher.take(tokenizer.token_to_id("b"))
    assert matcher.fault
    assert not matcher.complete


def test_a_grammar_is_compiled_once(grammars):
    assert grammars.compile("start: /x/") is grammars.compile("start: /x/")


def test_a_tokenizer_that_cannot_be_read_is_said_so(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    broken = LlGrammars(tmp_path / "tokenizer.json", vocab_size=10, eos=[1], threads=1)
    with pytest.raises(GrammarInvalid, match="tokenizer"):
        broken.compile("start: /x/").result(WAIT_S)


@pytest.mark.parametrize("written", ["as it is", "as strings"])
def test_a_grammar_waits_for_no_token_that_the_model_does_not_have(path, tmp_path, written):
    """A tokenizer may know more tokens than the model has rows."""
    text = json.loads(path.read_text("utf-8"))
    if written == "as strings":  # how merges were written for years
        text["model"]["merges"] = [" ".join(merge) for merge in text["model"]["merges"]]
    larger = tmp_path / "tokenizer.json"
    larger.write_text(json.dumps(text), "utf-8")
    tokenizer, known = Tokenizer.from_file(str(larger)), 270
    word = " temperature"
    assert max(tokenizer.encode(word).ids) >= known
    grammars = LlGrammars(larger, vocab_size=known, eos=[tokenizer.token_to_id(EOS)], threads=1)
    matcher = grammars.compile(LLMatcher.grammar_from_regex(word)).result(WAIT_S).fork()
    taken: list[int] = []
    while not matcher.complete:
        (may,) = allowed(grammars, matcher)
        taken.append(max(token for token in may if token < known))
        matcher.take(taken[-1])
    assert tokenizer.decode(taken) == word


AMBIGUOUS = 'start: s\ns: s s s | s s | /[a-z]/ | ""\n%llguidance {"no_forcing": true}'


def test_a_grammar_that_is_too_ambiguous_is_given_up_and_its_neighbour_goes_on(grammars, start):
    """Its masks take longer with every token."""
    ambiguous, plain = start(AMBIGUOUS), start("start: /[a-z]+/")
    letters = allowed(grammars, plain)[0]
    for count in range(400):
        turns = [Turn(0, ambiguous, [()]), Turn(1, plain, [()])]
        masks = grammars.masks(turns).result(WAIT_S)
        assert masks.bits[masks.rows[1]].any()
        if ambiguous.fault:
            break
        ambiguous.take(sorted(letters)[count % len(letters)])
        plain.take(sorted(letters)[count % len(letters)])
    assert "ambiguous" in ambiguous.fault or "items" in ambiguous.fault  # whichever is sooner
    assert not ambiguous.complete
    assert plain.fault == ""
    assert plain.effort.spent < GRACE_S


def test_a_pass_does_not_wait_for_a_heavy_mask(grammars, start, monkeypatch):
    heavy, light, watched = start(AMBIGUOUS), start("start: /a/"), start("start: /b/")
    heavy.effort.watched = watched.effort.watched = True
    heavy.effort.mask = HEAVY_S
    alone, going_on = grammars_module._alone, Event()

    def slow(turn, words):
        assert turn.matcher is not heavy or going_on.wait(WAIT_S)
        return alone(turn, words)

    monkeypatch.setattr(grammars_module, "_alone", slow)
    turns = [Turn(number, m, [()]) for number, m in enumerate((heavy, light, watched))]
    try:
        masks = grammars.masks(turns).result(WAIT_S)
    finally:
        going_on.set()
    assert set(masks.rows) == {1, 2}
    assert "ambiguous" in heavy.fault
    assert light.fault == watched.fault == ""
    assert masks.bits[masks.rows[1]].any()
    assert masks.bits[masks.rows[2]].any()


def test_masks_made_apart_are_those_made_together(grammars, start, tokenizer):
    together, apart = start("start: /a[bc]*/"), start("start: /a[bc]*/")
    tokens = [tokenizer.token_to_id(letter) for letter in "abc"]
    drafts = [(), tokens[:2]]
    for drafted in drafts:
        apart.effort.watched = True
        turns = [
            Turn(number, matcher, [()] * (1 + len(drafted)), drafted)
            for number, matcher in enumerate((together, apart))
        ]
        masks = grammars.masks(turns).result(WAIT_S)
        places = 1 + len(drafted)
        one, other = (masks.bits[masks.rows[n] : masks.rows[n] + places] for n in (0, 1))
        assert one.any()
        assert (one == other).all()
