"""What counts as the same logits, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.core.errors import PublishError
from pipelines.core.results import scores_in, scores_of_model
from pipelines.publishing import verify
from pipelines.publishing.verify import Proof, ProofInputs, compare, largest_difference, questions_of

LOGITS = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.4999]], dtype=np.float32)


def asked(logits=LOGITS, precision="no", columns=None):
    return {"glue/mrpc validation": ProofInputs(["a", "b", "c"], None, 8, logits, precision, columns)}


def answered(change=0.0, row=0, column=0):
    logits = LOGITS.copy()
    logits[row, column] += change
    return {"glue/mrpc validation": logits}


def test_equal_logits_are_proof():
    proof = Proof()
    compare(asked(), answered(), proof)
    assert (proof.rows, proof.flips, proof.largest_difference) == (3, 0, 0.0)


def test_rounding_is_allowed_and_reported():
    proof = Proof()
    compare(asked(), answered(5e-4), proof)
    assert proof.largest_difference == pytest.approx(5e-4, rel=1e-3)


@pytest.mark.parametrize("change", [2e-3, -2e-3, float("nan"), float("inf")])
def test_more_than_rounding_is_refused(change):
    with pytest.raises(PublishError, match="does not reproduce its evaluation"):
        compare(asked(), answered(change), Proof())


def test_half_precision_rounds_more():
    proof = Proof()
    compare(asked(precision="bf16"), answered(0.1), proof)  # 0.06 of the largest logit, 3
    assert proof.tolerance == pytest.approx(0.18)
    with pytest.raises(PublishError):
        compare(asked(precision="bf16"), answered(0.2), Proof())


def test_one_tie_may_turn_and_more_may_not():
    proof = Proof()
    compare(asked(), answered(-2e-4, row=2), proof)
    assert proof.flips == 1
    ties = np.tile(LOGITS[2:], (3, 1))
    with pytest.raises(PublishError, match="3 of 3 predictions"):
        compare(asked(ties), {"glue/mrpc validation": ties[:, ::-1].copy()}, Proof())


def test_another_shape_is_another_model():
    assert largest_difference({"x": LOGITS}, {"x": LOGITS[:, :1]}) == float("inf")
    with pytest.raises(PublishError):
        compare(asked(), {"glue/mrpc validation": LOGITS[:2]}, Proof())


def test_columns_of_a_task_that_orders_its_classes_otherwise_are_put_back():
    compare(asked(LOGITS[:, [1, 0]], columns=[1, 0]), answered(), Proof())
    with pytest.raises(PublishError):
        compare(asked(LOGITS[:, [1, 0]]), answered(), Proof())


def test_a_single_output_has_nothing_to_turn():
    proof = Proof()
    compare(asked(LOGITS[:, :1]), {"glue/mrpc validation": LOGITS[:, :1] + 1e-4}, proof)
    assert (proof.rows, proof.flips) == (3, 0)


def test_rows_are_spread_over_benchmarks_and_splits(job, monkeypatch):
    made = job("bert")
    scored = scores_of_model("mrpc", ["evaluate"], made.folders())
    groups, rows = questions_of(scored, "no")
    assert rows == 7
    (group,) = groups.values()
    assert (len(group.texts), group.max_length, group.logits.shape) == (7, 24, (7, 2))
    monkeypatch.setattr(verify, "MOST_ROWS", 5)
    groups, rows = questions_of(scored, "no")
    assert (rows, [len(each.texts) for each in groups.values()]) == (7, [5])


def test_a_change_while_saving_is_refused(job, quick, monkeypatch):
    """The saved weights differ from those in memory: the evaluation is silent when there was none."""
    made = job("bert")
    (made.folder / "stages/evaluate/metrics.json").write_text("{}")
    (made.folder / "stages/evaluate/details.json").write_text("{}")
    context = made.context()
    opened = []

    def open_model(head, **named):
        model = context.open_model(head, **named)
        if opened:  # all but the first, which is saved
            model.classifier.bias.data += 0.01
        opened.append(model)
        return model

    with pytest.raises(PublishError, match=r"changed when it was saved: a logit differs by 0\.01"):
        made.publish.run(made.context(open_model=open_model))


def test_merging_that_changes_the_answers_is_refused(job, quick):
    made = job("bert-lora")
    context = made.context()

    def open_model(head, merge=True, **named):
        model = context.open_model(head, merge=merge, **named)
        if not merge:
            model.base_model.model.classifier.modules_to_save.default.bias.data += 0.01
        return model

    with pytest.raises(PublishError, match=r"merging the adapter changes a logit by 0\.01.*merge: false"):
        made.publish.run(made.context(open_model=open_model))


def test_the_bare_environment_holds_no_token_and_no_path_to_us(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    bare = verify._bare(str(tmp_path))
    assert "hf_secret" not in bare.values()
    assert "PYTHONPATH" not in bare
    assert bare["HF_HUB_OFFLINE"] == "1"
    assert bare["HF_HOME"] == str(tmp_path)


def test_written_answers_are_asked_again_with_what_was_written(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = verify.WRITTEN_ROWS + 4
    texts = {
        "source": [f"one {n}" for n in range(rows)],
        "reference": ["two"] * rows,
        "hypothesis": [f"three {n}" for n in range(rows)],
    }
    pq.write_table(
        pa.table({"benchmark": ["pairs"] * rows, "split": ["test"] * rows, **texts}), tmp_path / "predictions.parquet"
    )
    metrics = {"pairs": {"bleu": 1.0}, "text": {"bits_per_byte": 2.0}}
    stage = scores_in(metrics, {"pairs": {"max_length": 9}, "text": {}}, "evaluate", tmp_path)
    scored = {each.benchmark: each for each in stage}
    groups, counted = questions_of(scored, "no")
    assert counted == 0  # they have no logits of the evaluation
    assert groups.keys() == {"pairs test"}
    assert groups["pairs test"].asked() == {
        "texts": texts["source"][:16],
        "pairs": None,
        "max_length": 9,
        "targets": texts["hypothesis"][:16],
    }
    compare(groups, {}, Proof())  # nothing to hold against


def test_what_rounding_may_do_grows_with_the_logits():
    assert verify.largest({"x": LOGITS}) == 3.0
    assert verify.largest({"x": LOGITS / 100}) == 1.0
    assert verify.largest({"x": LOGITS, "y": -100 * LOGITS}) == 300.0
