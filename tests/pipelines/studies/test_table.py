import pytest

from pipelines.core.study_matrix import axes_of
from pipelines.evaluation.resampling import Estimate
from pipelines.reports.results import Result
from pipelines.studies.table import (
    Figure,
    StudyRow,
    _chose_itself,
    _mean_curve,
    _stand_together,
    compared_axis,
    correct,
    row_of,
)


def row(low, high, metric="accuracy", **more):
    return StudyRow(
        {}, figures={metric: Figure(0.5, None, (0.5,), None, Estimate((low + high) / 2, low, high))}, **more
    )


@pytest.mark.parametrize(
    ("low", "high", "metric", "verdict"),
    [
        (0.01, 0.03, "accuracy", "better"),
        (-0.03, -0.01, "accuracy", "worse"),
        (-0.01, 0.03, "accuracy", "inside the noise"),
        (0.01, 0.03, "perplexity", "worse"),
        (-0.03, -0.01, "perplexity", "better"),
    ],
)
def test_a_difference_is_a_verdict_only_outside_the_noise(low, high, metric, verdict):
    assert row(low, high, metric).verdict() == verdict


def test_the_reference_and_a_row_alone_have_no_verdict():
    assert row(0.1, 0.2, is_reference=True).verdict() == "reference"
    assert StudyRow({}).verdict() == ""


def test_the_share_is_of_all_weights():
    assert StudyRow({}, costs={"trainable_parameters": 25.0, "all_parameters": 100.0}).share == 0.25
    assert StudyRow({}).share is None


def test_a_mean_curve_has_the_steps_that_all_seeds_logged():
    assert _mean_curve([[(1, 1.0), (2, 0.5)], [(1, 3.0), (2, 1.5), (3, 1.0)], []]) == [(1, 2.0), (2, 1.0)]
    assert len(_mean_curve([[(step, 1.0) for step in range(1000)]])) <= 60


def test_rows_are_compared_along_the_reference_else_along_the_last_key_that_is_no_seed():
    axes = axes_of(
        {"method": {"full": {"stages.a.tuner": "full"}}, "stages.a.max_length": (1, 2), "stages.a.seed": (1,)}
    )
    assert compared_axis(axes, "full") == "method"
    assert compared_axis(axes, None) == "max_length"


def test_no_interval_is_wider_than_the_metric():
    # Student's t of three seeds around 0.71 with sd 0.18 reaches above 1 (0.71 + 4.3 · 0.18 / 3 ** 0.5 = 1.15)
    results = {
        (str(at),): Result("glue/sst2", "evaluate", "tune", {"accuracy": value})
        for at, value in enumerate((0.81, 0.82, 0.50))
    }
    low, high = row_of({}, "evaluate", "glue/sst2", results, [State()]).figures["accuracy"].interval
    assert high == 1.0
    assert 0.2 < low < 0.3


class State:
    status, message, chosen, matched = "done", "", {}, None


def test_a_row_is_better_only_when_its_corrected_p_value_says_so_too():
    rows = [
        StudyRow({}, figures={"accuracy": Figure(0.5, None, (0.5,), None, Estimate(0.02, 0.01, 0.03, p_value))})
        for p_value in (0.04, 0.01, 0.03)
    ]
    rows.append(StudyRow({}, figures={"accuracy": Figure(0.5, None, (0.5,), None, None)}))
    correct(rows, "holm")
    assert [each.p_corrected for each in rows] == [
        pytest.approx(0.06),
        pytest.approx(0.03),
        pytest.approx(0.06),
        None,
    ]  # 0.01 x 3, 0.03 x 2, 0.04 x 1
    assert [each.verdict() for each in rows] == ["inside the noise", "better", "inside the noise", ""]
    correct(rows, "none")
    assert [each.verdict() for each in rows[:3]] == ["better"] * 3


def test_rows_stand_together_whatever_stage_measured_them_unless_one_measured_twice():
    one, other = ({("1",): Result("b", stage, "m", {"accuracy": 0.5})} for stage in ("score", "probe"))
    measured = {("tuned",): {("score", "b"): one}, ("frozen",): {("probe", "b"): other}, ("broken",): {}}
    _stand_together(measured)
    assert measured == {("tuned",): {("score", "b"): one}, ("frozen",): {("score", "b"): other}, ("broken",): {}}
    twice = {("tuned",): {("before", "b"): one, ("after", "b"): one}, ("frozen",): {("probe", "b"): other}}
    before = {key: dict(results) for key, results in twice.items()}
    _stand_together(twice)
    assert twice == before


def test_features_that_chose_their_strength_were_searched():
    tried, alone = ({"probe": {"C": 1.0, "tried": each}} for each in ({"1": 0.5, "10": 0.4}, {}))
    results = [Result("b", "probe", "m", {"accuracy": 0.5}, details=details) for details in (tried, alone, {})]
    assert _chose_itself({("1",): results[0], ("2",): results[0]})
    assert not _chose_itself({("1",): results[0], ("2",): results[1]})
    assert not _chose_itself({("1",): results[2]})
    assert not _chose_itself({})
