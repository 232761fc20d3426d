"""Every key of a recipe that may name something on a disk is known to the check of recipes from the network."""

import inspect
from typing import get_args

import pytest
from pydantic import AfterValidator, BaseModel

from pipelines.core.recipe import Model, Recipe, Tokenizer
from pipelines.core.registry import FEATURES, JUDGES, OBJECTIVES, REWARDS, STAGES, TASK_KINDS, TOKENIZERS, TUNERS
from service.safety.network_recipes import PLACES
from service.safety.references import TAKES

BLOCKS = [
    Recipe,
    Model,
    Tokenizer,
    *(
        registry.load(name)
        for registry in (STAGES, TUNERS, OBJECTIVES, TOKENIZERS, TASK_KINDS, REWARDS, JUDGES, FEATURES)
        for name in registry
    ),
]


def parts_of(annotation):
    """The annotation and everything inside its brackets."""
    yield annotation
    for inner in get_args(annotation):
        yield from parts_of(inner)


def resolving(block, seen):
    """The keys of a block, and of the blocks inside it, whose validator looks beside the recipe."""
    seen.add(block)
    for name, field in block.model_fields.items():
        parts = list(parts_of(field.annotation))
        validators = [*field.metadata, *(each for part in parts for each in getattr(part, "__metadata__", ()))]
        if any(isinstance(each, AfterValidator) and '"folder"' in inspect.getsource(each.func) for each in validators):
            yield field.alias or name
        for part in parts:
            if inspect.isclass(part) and issubclass(part, BaseModel) and part not in seen:
                yield from resolving(part, seen)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_every_key_that_resolves_a_path_is_a_known_place(block):
    assert set(resolving(block, set())) <= set(PLACES)


def test_the_probe_sees_the_places_that_there_are():
    """The test above proves nothing if `resolving` is blind."""
    assert {key for block in BLOCKS for key in resolving(block, set())} == set(PLACES)


def test_references_stand_at_known_places_only():
    assert {key for keys in TAKES.values() for key in keys} <= set(PLACES)
