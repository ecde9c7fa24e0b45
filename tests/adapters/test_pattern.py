"""Patterns match exactly as PEFT's regular expressions do, in bounded time."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.pattern import Automaton, Budget, PatternTable
from adapters.pattern_grammar import PatternRefused

Q, UP = "model.layers.11.self_attn.q_proj", "model.layers.1.mlp.up_proj"


def peft_matches(key: str, name: str) -> bool:
    """PEFT's rule, as documented in its configuration."""
    return re.match(rf"(.*\.)?({key})$", name) is not None


@pytest.mark.parametrize("name", [Q, UP])
@pytest.mark.parametrize(
    "key",
    [
        "q_proj", "proj", "self_attn.q_proj", "self.attn.q.proj", "1.self_attn.q_proj", Q, UP,
        "^model.layers.11.self_attn.q_proj", "^layers.11.self_attn.q_proj", "attn.q_proj",
        r".*layers\.(1|2)\..*", r"layers\.1\d\..*proj", "(?:q|up)_proj", "[a-q]_proj", "[^q]+",
        "q_proj$", "q_proj|up_proj", r"layers\.\d{1,2}\.mlp.up_proj", r"\w+", r"\W+", "u?p_proj",
        "(q|up)?_?proj", "(a*)*", "x{0}q_proj", "model.*?proj", "", ".", "q_pro[j-]", r"[\w.]+",
    ],
)  # fmt: skip
def test_matches_like_peft(key, name):
    found = PatternTable([(key, 1)]).find(name) == [1]
    assert found == peft_matches(key, name)
    assert Automaton(key).matches(name, Budget()) == found


atoms = st.sampled_from(["a", "b", r"\.", ".", "[ab]", "[^a]", r"\d", "_", "^", "$", "1"])
grammar = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(
            inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{,1}", "{1,}", "*?"])
        ).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=8,
)


@given(key=grammar, name=st.text("ab1._", max_size=8))
def test_agrees_with_re_on_the_whole_grammar(key, name):
    assert Automaton(key).matches(name, Budget()) == peft_matches(key, name)


@pytest.mark.parametrize(
    "key",
    [
        r"(a)\1", "(?=a)", "(?i)q", "a**", "a*+", "(a", "a)", "a)(b", "[", "[]", "a{2,1}", "a{x}",
        "a{99999}", r"\bq", "é*", "(" * 50 + ")" * 50, "(a{999}){999}", "(((){999}){999}){999}",
        "a" * 600 + "*", "{2}", "[z-a]", "^*", "\\", "[[a]]", "a{2}{2}",
    ],
)  # fmt: skip
def test_refuses_what_it_cannot_bound_or_match(key):
    with pytest.raises(PatternRefused):
        PatternTable([(key, 1)]).find(Q)


@pytest.mark.parametrize("key", ["(a*)*b", "(a|a)*b", "(.*.*.*.*.*)*x", "(a?){60}a{60}b"])
def test_patterns_that_hang_a_backtracking_matcher_do_not_hang_this_one(key):
    began = time.process_time()
    assert PatternTable([(key, 1)]).find("a" * 60) == []
    assert time.process_time() - began < 2


def test_work_over_many_names_is_bounded():
    table = PatternTable([(r"(.*.*.*){80}x", 1)], Budget(steps=50_000))
    names = [f"model.layers.{layer}.self_attn.q_proj" for layer in range(1000)]
    with pytest.raises(PatternRefused, match="too long to match"):
        list(map(table.find, names))


def test_the_first_key_of_the_file_comes_first():
    table = PatternTable([("self_attn.q_proj", 1), ("q_proj", 2), (".*proj", 3), ("v_proj", 4)])
    assert table.find(Q) == [1, 2, 3]


@given(st.text(max_size=30))
def test_any_key_compiles_or_is_refused(key):
    try:
        table = PatternTable([(key, 1)])
    except PatternRefused:
        return
    assert (table.find(Q) == [1]) == peft_matches(key, Q)
