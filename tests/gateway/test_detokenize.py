"""Text comes out whole characters at a time, and equals what decoding everything gives."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models

from gateway.inference.detokenize import Detokenizer
from gateway.inference.tokenizer import Tokenizer, TokenizerInvalid
from tests.gateway.serving import build_model_dir


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer.load(build_model_dir(tmp_path_factory.mktemp("model")))


def pieces(tokenizer, tokens):
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.feed([token]) for token in tokens), detokenizer.flush()]


@given(text=st.text())
@settings(deadline=None)
def test_any_text_survives_token_by_token(tokenizer, text):
    tokens = tokenizer.encode(text.replace("<|", ""), add_special=False)
    assert "".join(pieces(tokenizer, tokens)) == text.replace("<|", "")


@given(data=st.data())
@settings(deadline=None)
def test_any_tokens_read_as_the_library_reads_them_at_once(tokenizer, data):
    vocabulary = st.integers(0, tokenizer.vocab_size - 1)
    tokens = data.draw(st.lists(vocabulary, max_size=40))
    whole = tokenizer._rust.decode(tokens, skip_special_tokens=True)
    assert "".join(pieces(tokenizer, tokens)) == whole


def test_half_a_character_is_held_back(tokenizer):
    alphabet = {bytes([b]): t for t, raw in enumerate(tokenizer.token_bytes) if len(raw) == 1
                for b in raw}  # fmt: skip
    tokens = [alphabet[bytes([byte])] for byte in "🙂".encode()]
    assert pieces(tokenizer, tokens) == ["", "", "", "🙂", ""]


def test_a_character_that_never_completes_shows_as_a_replacement(tokenizer):
    alphabet = {raw[0]: t for t, raw in enumerate(tokenizer.token_bytes) if len(raw) == 1}
    tokens = [alphabet[0xF0], alphabet[0x9F], alphabet[ord("a")], alphabet[0xE4]]
    assert pieces(tokenizer, tokens) == ["", "", "\ufffda", "", "\ufffd"]


def test_special_tokens_add_nothing_and_unknown_ids_do_no_harm(tokenizer):
    assert pieces(tokenizer, [0, 1, 2, 10**6]) == ["", "", "", "", ""]
    assert tokenizer.text_of(1) == "<|im_start|>"


def test_sentencepiece_vocabularies_know_bytes_and_word_spaces():
    vocabulary = [("<unk>", 0.0), ("▁Hi", -1.0), ("<0xF0>", -2.0), ("<0x9F>", -2.0),
                  ("<0x99>", -2.0), ("<0x82>", -2.0)]  # fmt: skip
    rust = RustTokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    rust.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    assert pieces(Tokenizer(rust, {}), [1, 2, 3, 4, 5]) == [" Hi", "", "", "", "🙂", ""]


def test_a_directory_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(TokenizerInvalid, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)
