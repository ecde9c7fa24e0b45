"""Text whose words are looked up has the tokens that the library gives it whole."""

import json
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as RustTokenizer
from tokenizers.processors import TemplateProcessing

from gateway.inference.tokenizer import Tokenizer
from gateway.inference.words import MOST_WORDS, Words, cuts_at_spaces

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = LLAMA3.replace("{1,3}", "")
NAMES = {"gpt-2": GPT2, "llama-3": LLAMA3, "qwen": QWEN, "digits": r"\d"}
WORDS = ["the", "model's", "answer", "is", "served", "by", "an", "engine,", "pages.", "It", "can't"]
ODD = [
    "",
    "",
    "\n",
    "don't",
    "é",
    "é",
    "12",
    "x1",
    "\t",
    " ",
    "<|end|>",
    "a\nb",
    "名",
    "\x1c",
    "(no)",
    "pages.\n\nIt",
    "is\nthe",
    "by\n\n\nan",
    "<|end|>\n<|end|>user\nIt",
    "<|end|>\n\nthe",
    "engine\n",
]


def rust(pattern: str) -> RustTokenizer:
    """A small byte-level vocabulary that cuts text by this pattern."""
    found = RustTokenizer(models.BPE())
    own = pattern == NAMES["digits"]  # then the byte level's pattern cuts words
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=own)
    cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    found.pre_tokenizer = pre_tokenizers.Sequence([cut, level])
    found.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [
        " ".join(WORDS),
        "It\n\n",
        "pages.\n\n",
        "\n\n\n",
    ]  # ends of lines join, where they may
    found.train_from_iterator(texts * 20, trainer)
    return found


@pytest.fixture(scope="module", params=NAMES)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer(rust(NAMES[request.param]), {})


def whole(tokenizer: Tokenizer, text: str) -> list[int]:
    fast: list[int] = tokenizer._rust.encode(text, add_special_tokens=False).ids
    return fast


def test_text_of_known_words_and_odd_ones_has_the_librarys_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer._words is not None
    chance, looked_up = random.Random(7), 0
    for odd in (0.0, 0.1, 0.4) * 100:
        pieces = [chance.choice(ODD if chance.random() < odd else WORDS) for _ in range(40)]
        text = " ".join(pieces)
        looked_up += tokenizer._words.tokens(text) is not None
        assert tokenizer.encode(text, add_special=False) == whole(tokenizer, text)
    assert looked_up > 80


@settings(max_examples=30, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=4)), min_size=16, max_size=40))
def test_whatever_stands_between_words_nothing_changes(
    tokenizer: Tokenizer, pieces: list[str]
) -> None:
    text = " ".join(pieces)
    assert tokenizer.encode(text, add_special=False) == whole(tokenizer, text)


@pytest.mark.parametrize("end", ["\n", "\n\n"])
def test_a_template_around_known_words_is_not_asked_of_the_library(
    tokenizer: Tokenizer, end: str
) -> None:
    text = f"<|end|>system{end}It is.<|end|>\n<|end|>user{end}" + " ".join(["the"] * 30)
    asked: list[str] = []

    def encode(texts: Sequence[str]) -> list[list[int]]:
        asked.extend(texts)
        return tokenizer._encode_plain(texts)

    words = Words(encode, {"<|end|>": tokenizer.encode("<|end|>", add_special=False)[0]})
    for _ in range(4):
        asked.clear()
        assert words.tokens(text) in (None, whole(tokenizer, text))
    assert not asked or "\n\n" in asked[0]  # a pattern may make of those what comes after them
    assert "the" not in asked


def test_a_tokenizer_of_another_kind_gets_its_text_whole() -> None:
    known = json.loads(rust(LLAMA3).to_str())
    assert cuts_at_spaces(known)
    for change in (
        {"normalizer": {"type": "Prepend", "prepend": "▁"}},
        {"pre_tokenizer": None},
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}},
        {"truncation": {"max_length": 5}},
    ):
        assert not cuts_at_spaces(known | change), change
    spaced = rust(LLAMA3)
    spaced.add_tokens(["two words"])
    assert not cuts_at_spaces(json.loads(spaced.to_str()))
    stripping = rust(LLAMA3)
    stripping.add_special_tokens([AddedToken("<mask>", rstrip=True)])
    assert not cuts_at_spaces(json.loads(stripping.to_str()))
    other = rust(r"\p{L}+ ?|.")  # ends a piece after the space
    assert not cuts_at_spaces(json.loads(other.to_str()))


def test_it_keeps_plain_short_words_alone_and_not_too_many() -> None:
    asked: list[str] = []

    def encode(texts: list[str]) -> list[list[int]]:
        asked.extend(texts)
        return [[1] for _ in texts]

    words = Words(encode)  # type: ignore[arg-type]
    words.tokens(" ".join(["sk-live-123", "a" * 25, "naïve", "hello"] * 8))
    assert set(words._known) == {"hello"}
    words._known = dict.fromkeys(map(str, range(MOST_WORDS)), (1,))
    words.tokens(" ".join(["other"] * 32))
    assert len(words._known) == MOST_WORDS


def test_the_beginning_that_a_tokenizer_adds_stays() -> None:
    made = rust(LLAMA3)
    made.post_processor = TemplateProcessing(single="<|end|> $A", special_tokens=[("<|end|>", 0)])
    tokenizer = Tokenizer(made, {})
    text = " ".join(WORDS * 4)
    for _ in range(2):
        assert tokenizer.encode(text, add_special=True) == made.encode(text).ids
