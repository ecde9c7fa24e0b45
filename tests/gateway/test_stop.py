"""Stop strings are found across any cut of the text, and no more than needed is held back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol import Finish, Output, TokenLogprobs, Usage
from gateway.inference.choice import Choice
from gateway.inference.stop import StopSearch, StopStrings
from gateway.inference.tokenizer import Tokenizer
from tests.gateway.serving import build_model_dir


def run(stops, parts):
    """What was shown after each part, and whether a stop string was found."""
    search, shown = StopSearch(StopStrings(stops)), []
    for part in parts:
        shown.append(search.feed(part))
        if search.found:
            return shown, True
    return [*shown, search.flush()], False


@pytest.mark.parametrize(
    ("stops", "parts", "shown", "found"),
    [
        (["own fox"], ["The br", "own", " fox jumps"], ["The br", "", ""], True),
        (["\nUser:"], ["Hi", "\nUse", "ful"], ["Hi", "", "\nUseful", ""], False),
        (["beta gamma"], ["alpha beta", " gamm", "a"], ["alpha ", "", ""], True),
        (["DEFGHIJ"], list("ABCDEFGHIJK"), ["A", "B", "C", "", "", "", "", "", "", ""], True),
        (["aab"], ["aa", "a", "b"], ["", "a", ""], True),
        (["ab", "abcd"], ["xabcd"], ["x"], True),
        (["bc", "abc"], ["xabc"], ["x"], True),
        (["é"], ["caf", "é!"], ["caf", ""], True),
        (["]-^", "\\d", "^x"], ["a]", "-y5", "^x"], ["a", "]-y5", ""], True),
    ],
    ids=["own_fox", "near_miss", "over_three", "by_letter", "self_overlap", "shortest_first",
         "longest_at_one_end", "accent", "as_patterns_write"],
)  # fmt: skip
def test_matches_and_holds_back(stops, parts, shown, found):
    assert run(stops, parts) == (shown, found)


def first_end(stops, text):
    """The definition: the first character at which a stop string is complete; longest wins."""
    for end in range(1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return text[: end - max(lengths)]
    return None


LETTERS = st.text(alphabet="ab", max_size=12)


@given(stops=st.lists(LETTERS.filter(bool), min_size=1, max_size=4), parts=st.lists(LETTERS))
def test_equals_the_definition_for_every_cut(stops, parts):
    shown, found = run(stops, parts)
    wanted = first_end(stops, "".join(parts))
    assert found == (wanted is not None)
    assert "".join(shown) == ("".join(parts) if wanted is None else wanted)


@given(stops=st.lists(LETTERS.filter(bool), min_size=1, max_size=4), text=LETTERS)
def test_holds_back_only_what_may_still_become_a_stop_string(stops, text):
    search = StopSearch(StopStrings(stops))
    shown = search.feed(text)
    if not search.found:
        held = text[len(shown) :]
        longest = max(n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n]))
        assert len(held) == longest


@given(stops=st.lists(LETTERS.filter(bool), min_size=1, max_size=4), parts=st.lists(LETTERS))
def test_a_stop_string_that_is_to_be_shown_holds_nothing_back(stops, parts):
    search, before = StopSearch(StopStrings(stops), shown=True), ""
    for part in parts:
        shown = search.feed(part)
        before += shown
        if search.found:
            assert any(before.endswith(stop) for stop in stops)
            return
        assert shown == part
    assert first_end(stops, before) is None


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer.load(build_model_dir(tmp_path_factory.mktemp("model")))


def choice(tokenizer, *stops, min_tokens=0, shows_stop=False):
    stop_strings = StopStrings(stops) if stops else None
    return Choice(0, tokenizer, stops=stop_strings, min_tokens=min_tokens, shows_stop=shows_stop)


def letters(tokenizer, text):
    return [tokenizer.encode(letter, add_special=False)[0] for letter in text]


def test_tokens_past_a_stop_string_are_neither_shown_nor_billed(tokenizer):
    one = choice(tokenizer, "STOP")
    delta = one.feed(Output("r", letters(tokenizer, "okSTOPmore")))
    assert (delta.text, delta.finish) == ("ok", "stop")
    usage = Usage(5, 0, 10)
    assert one.feed(Output("r", [], Finish.CANCELLED, usage=usage)).text == ""
    assert one.completion_tokens == 6


def test_without_a_stop_string_the_engines_count_is_billed(tokenizer):
    one = choice(tokenizer, "STOP")
    shown = one.feed(Output("r", letters(tokenizer, "okST"))).text
    last = one.feed(Output("r", [], Finish.STOP, usage=Usage(5, 0, 5), stop_token=2))
    assert (shown, last.text, last.finish, one.completion_tokens) == ("ok", "ST", "stop", 5)


def test_the_first_tokens_are_exempt_when_a_minimum_is_asked_for(tokenizer):
    one = choice(tokenizer, "a", min_tokens=3)
    delta = one.feed(Output("r", letters(tokenizer, "aaaXa")))
    assert (delta.text, delta.finish) == ("aaaX", "stop")


def test_logprobs_go_with_their_text(tokenizer):
    one = choice(tokenizer, "STOP")
    tokens = letters(tokenizer, "okST")
    known = [TokenLogprobs(-0.1)] * 4
    first = one.feed(Output("r", tokens, logprobs=known))
    assert [c.offset for c in first.chances] == [0, 1]
    cut = one.feed(Output("r", letters(tokenizer, "OP"), logprobs=known[:2]))
    assert (cut.text, cut.chances, cut.finish) == ("", [], "stop")


def test_what_stops_the_text_is_shown_where_that_is_asked_for(tokenizer):
    one = choice(tokenizer, "STOP", shows_stop=True)
    known = [TokenLogprobs(-0.1)] * 10
    delta = one.feed(Output("r", letters(tokenizer, "okSTOPmore"), logprobs=known))
    assert (delta.text, delta.finish, len(delta.chances)) == ("okSTOP", "stop", 6)
    (stop,) = letters(tokenizer, "!")
    by_token = choice(tokenizer, shows_stop=True)
    by_token.feed(Output("r", letters(tokenizer, "ok")))
    ended = Output("r", [], Finish.STOP, usage=Usage(5, 0, 3), stop_token=stop)
    assert by_token.feed(ended).text == "!"
    assert choice(tokenizer).feed(ended).text == ""


def test_a_control_token_that_stops_the_text_has_no_text(tokenizer):
    one = choice(tokenizer, "xyz", shows_stop=True)
    one.feed(Output("r", letters(tokenizer, "okxy")))
    assert one.feed(Output("r", [], Finish.STOP, stop_token=2)).text == ""
