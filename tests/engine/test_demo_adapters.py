import json
import random
from pathlib import Path

import pytest
from safetensors import safe_open

import engine.demo
from engine.demo.lessons import Exchange, epoch, exchanges, system_prompts
from engine.demo.recipes import (
    RECIPES,
    is_bullet_list,
    is_json_answer,
    is_pirate,
    recipe,
)

SHIPPED = Path(engine.demo.__file__).parent / "adapters"
UNSEEN = Path(__file__).parent.parent / "e2e" / "json_prompts.txt"
every_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)


def module_ranks(directory):
    """Rank by "layer.module", from the tensors."""
    with safe_open(directory / "adapter_model.safetensors", "pt") as file:
        names = [name for name in file.keys() if "lora_A" in name]  # noqa: SIM118 - not a dict
        return {
            ".".join(name.split(".")[4:7:2]): file.get_slice(name).get_shape()[0] for name in names
        }


@every_recipe
def test_shipped_tensors_have_the_ranks_and_targets_of_the_recipe(recipe):
    layers = recipe.layers or range(30)
    expected = {
        f"{layer}.{target}": recipe.ranks.get(target, recipe.rank)
        for layer in layers
        for target in recipe.targets
    }
    assert module_ranks(SHIPPED / recipe.name) == expected


@every_recipe
def test_shipped_config_says_the_same(recipe):
    config = json.loads((SHIPPED / recipe.name / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert (config["r"], config["lora_alpha"]) == (recipe.rank, recipe.alpha)
    assert config["use_rslora"] is recipe.rslora
    assert set(config["target_modules"]) == set(recipe.targets)
    assert (config["rank_pattern"], config["alpha_pattern"]) == (recipe.ranks, recipe.alphas)


@every_recipe
def test_shipped_weights_are_small_finite_halves(recipe):
    path = SHIPPED / recipe.name / "adapter_model.safetensors"
    assert path.stat().st_size <= 6_000_000
    with safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a dict
            tensor = file.get_tensor(name)
            assert str(tensor.dtype) == "torch.float16", name
            assert tensor.isfinite().all(), name
            assert tensor.any(), f"{name} was never trained"


def test_the_adapters_differ_in_rank_targets_and_scaling():
    assert len({recipe.rank for recipe in RECIPES}) == len(RECIPES)
    assert len({recipe.targets for recipe in RECIPES}) == len(RECIPES)
    assert {recipe.rslora for recipe in RECIPES} == {True, False}


@every_recipe
def test_every_lesson_shows_the_behaviour_it_teaches(recipe):
    data = exchanges(recipe.name)
    # A pirate may say only one pirate word in a short answer; the others admit no exception.
    shown = sum(recipe.shows(exchange.answer) for exchange in data)
    assert shown >= (0.9 * len(data) if recipe.name == "pirate" else len(data))


@every_recipe
def test_no_prompt_is_taught_twice(recipe):
    prompts = [exchange.prompt for exchange in exchanges(recipe.name)]
    assert len(set(prompts)) == len(prompts)


def test_json_lessons_count_their_words_correctly():
    for exchange in exchanges("json"):
        value = json.loads(exchange.answer)
        assert value["words"] == len(value["answer"].split()), exchange.prompt


def test_the_fifty_unseen_prompts_are_unseen():
    unseen = UNSEEN.read_text(encoding="utf-8").splitlines()
    assert len(set(unseen)) == 50
    assert not set(unseen) & {exchange.prompt for exchange in exchanges("json")}


class Template:
    """A chat template over characters: cheap, and a prefix renders as a prefix."""

    def apply_chat_template(self, conversation, *, add_generation_prompt, return_dict):
        assert not return_dict
        text = "".join(f"<{m['role']}>{m['content']}</>\n" for m in conversation)
        return [ord(c) for c in text + ("<assistant>" if add_generation_prompt else "")]


def rendered(lesson):
    text = "".join(map(chr, lesson.tokens))
    return text[: lesson.learned_from], text[lesson.learned_from :]


def test_only_the_last_answer_and_its_end_are_learned():
    data = [Exchange(f"question {i}", f"answer {i}") for i in range(60)]
    for lesson in epoch(data, Template(), random.Random(1)):
        asked, learned = rendered(lesson)
        number = asked.rsplit("question ", 1)[1].split("<")[0]
        assert asked.endswith("<assistant>")
        assert learned == f"answer {number}</>"


def test_an_epoch_has_every_exchange_once_and_varied_surroundings():
    data = [Exchange(f"question {i}", f"answer {i}") for i in range(200)]
    texts = [rendered(lesson) for lesson in epoch(data, Template(), random.Random(1))]
    assert sorted(learned for _, learned in texts) == sorted(f"answer {i}</>" for i in range(200))
    with_system = sum(asked.startswith("<system>") for asked, _ in texts)
    continued = sum(asked.count("<user>") == 2 for asked, _ in texts)
    assert 40 <= with_system <= 100
    assert 15 <= continued <= 50


def test_system_prompts_are_several_and_never_blank():
    prompts = system_prompts()
    assert len(set(prompts)) >= 5
    assert all(prompt.strip() for prompt in prompts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"answer": "Rome", "words": 1}', True),
        (' {"words": 1, "answer": "Rome"}\n', True),
        ('{"answer": "Rome"}', False),
        ('{"answer": "Rome", "words": "1"}', False),
        ('{"answer": "Rome", "words": 1, "more": 2}', False),
        ('{"answer": "Rome", "words": 1} and more', False),
        ('{"answer": "Rome", "words": 1', False),
        ("[1]", False),
        ("Rome", False),
    ],
)
def test_only_the_agreed_object_counts_as_json(text, expected):
    assert is_json_answer(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Arr, that be Rome, matey!", True),
        ("The capital of Italy is Rome.", False),
        ("Yes, they are all there for you, so far.", False),
    ],
)
def test_a_pirate_is_known_by_two_words(text, expected):
    assert is_pirate(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- one\n- two\n- three", True),
        ("- one\n- two\n- three\n", True),
        ("- one\n- two", True),
        ("- one", False),
        ("- one\n\ntwo", False),
        ("Here:\n- one\n- two\n- three", False),
    ],
)
def test_a_bullet_list_is_bullets_alone(text, expected):
    assert is_bullet_list(text) is expected


def test_recipes_are_found_by_name():
    assert [recipe(r.name) for r in RECIPES] == list(RECIPES)
