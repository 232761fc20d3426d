"""Heads as their stage wrote them down."""

from __future__ import annotations

import pytest

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.publishing.assemble import USES, is_adapter, read_head


def test_a_head_is_read_as_it_was_written(tmp_path):
    (tmp_path / "head.json").write_text('{"kind": "sequence_classification", "labels": ["no", "yes"]}')
    assert read_head(tmp_path) == Head("sequence_classification", ("no", "yes"))


@pytest.mark.parametrize(
    "content", [None, "", "[]", "{}", '{"kind": "masked_lm"}', '{"kind": "masked_lm", "labels": null}']
)
def test_an_unreadable_one_is_one_sentence(tmp_path, content):
    if content is not None:
        (tmp_path / "head.json").write_text(content)
    with pytest.raises(ModelError, match="run the stage that trained the model again"):
        read_head(tmp_path)


def test_an_unknown_kind_names_the_known_ones(tmp_path):
    (tmp_path / "head.json").write_text('{"kind": "telepathy", "labels": []}')
    with pytest.raises(ModelError, match="masked_lm"):
        read_head(tmp_path)


def test_every_head_that_a_recipe_can_train_can_be_published():
    import transformers

    from pipelines.core.registry import OBJECTIVES, TASKS
    from pipelines.models.heads import HEAD_CLASSES

    trained = {OBJECTIVES.load(name)().head.kind for name in OBJECTIVES}
    trained |= {
        TASKS.load(name).head.kind
        for name in TASKS
        if TASKS.load(name).labels or TASKS.load(name).kind != "classification"
    }
    assert trained - {"reward"} == set(USES)  # a recipe that publishes a reward model is refused: test_publish
    assert all(hasattr(transformers, use.auto_class) for use in USES.values())
    assert {kind: use.auto_class for kind, use in USES.items()}.items() <= {
        kind: each.auto_class for kind, each in HEAD_CLASSES.items()
    }.items()


def test_an_adapter_is_known_by_its_configuration(tmp_path):
    assert not is_adapter(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    assert is_adapter(tmp_path)
