"""Layers of one kind launch the same kernels, so one of each is rehearsed."""

from types import SimpleNamespace

import torch

from engine.layers.linear import Dense
from engine.models.kinds import first_of_each, kind


def test_values_do_not_make_a_kind_but_sizes_types_and_settings_do():
    def linear(rows, columns, dtype=torch.float32, bias=None):
        return Dense(torch.randn((rows, columns), dtype=dtype), bias)

    assert kind(linear(4, 8)) == kind(linear(4, 8))
    others = [linear(8, 4), linear(4, 8, torch.float16), linear(4, 8, bias=torch.zeros(4))]
    assert len({kind(linear(4, 8)), *map(kind, others)}) == 4
    assert kind(SimpleNamespace(group=32)) != kind(SimpleNamespace(group=64))


def test_the_first_layers_are_taken_and_one_of_every_further_kind():
    kinds = ["full", "full", "full", "window", "full", "window", "dense"]
    assert first_of_each(range(7), kinds, least=2) == [0, 1, 3, 6]
    assert first_of_each(range(7), kinds, least=1) == [0, 3, 6]
