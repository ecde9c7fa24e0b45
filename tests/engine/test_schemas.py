"""Answers of a model of random logits to two hundred schemas: every finished one is valid."""

import json

import jsonschema
import pytest
from llguidance import LLMatcher
from tokenizers import Tokenizer

from bench.masks import RandomModel, accepted
from bench.schemas import all_schemas
from engine.grammars import LlGrammars
from gateway.inference.schema import JsonSchema
from gateway.inference.tokenizer import Tokenizer as Vocabulary
from tests.engine.vocabulary import EOS, write_tokenizer

pytestmark = pytest.mark.slow

ENOUGH = 0.95


@pytest.fixture(scope="module")
def schemas():
    return all_schemas()


def test_nearly_all_can_be_enforced_whole(schemas):
    grammars, refused = accepted(schemas)
    assert len(schemas) >= 200
    assert len(grammars) >= ENOUGH * len(schemas), refused
    assert all(name.startswith("unenforced") for name in refused), refused
    assert all("Unimplemented keys" in reason for reason in refused.values())


def test_every_finished_answer_is_valid(schemas, tmp_path):
    path = write_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(path))
    eos, size = tokenizer.token_to_id(EOS), tokenizer.get_vocab_size()
    table = Vocabulary(tokenizer, {}).token_bytes
    grammars, _ = accepted(schemas)
    model = RandomModel(LlGrammars(path, vocab_size=size, eos=[eos], threads=2), table, eos, seed=1)
    answers = model.answer(grammars)
    assert not [name for name, answer in answers.items() if answer.fault]
    finished = {name: answer for name, answer in answers.items() if answer.finished}
    assert len(finished) >= ENOUGH * len(answers), answers.keys() - finished.keys()
    for name, answer in finished.items():
        value = json.loads(answer.text.decode())
        kind = jsonschema.validators.validator_for(schemas[name], jsonschema.Draft202012Validator)
        kind(schemas[name], format_checker=kind.FORMAT_CHECKER).validate(value)


@pytest.mark.parametrize(
    ("shape", "text"), [("time", "06:20:{}Z"), ("date-time", "2026-11-30T06:20:{}.5+01:00")]
)
def test_times_have_no_sixtieth_second_which_hardly_a_parser_takes(tmp_path, shape, text):
    path = write_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(path))
    size = tokenizer.get_vocab_size()
    grammars = LlGrammars(path, vocab_size=size, eos=[tokenizer.token_to_id(EOS)], threads=1)
    schema = JsonSchema.read({"type": "string", "format": shape}, "schema")
    grammar = LLMatcher.grammar_from_json_schema(schema.text(lenient=False))
    matcher = grammars.compile(grammar).result()
    for second, fits in ((59, True), (60, False)):
        tokens = tokenizer.encode(json.dumps(text.format(second))).ids
        assert (matcher.fork().fitting(tokens) == len(tokens)) is fits
