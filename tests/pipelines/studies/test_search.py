import json

import pytest

from pipelines.core.errors import StageError
from pipelines.core.study_cells import TRIAL_SCORES
from pipelines.core.study_options import Search
from pipelines.studies.search import Trial, edge, ranked, rungs, score_of

RATE = "stages.a.arguments.learning_rate"


def tried(at, score, metric="accuracy"):
    return Trial(f"search/01-{at:02d}", 1, at, {RATE: at}, "done", metric=metric, score=score)


def test_the_best_score_wins_and_of_equal_ones_the_earlier():
    assert [each.at for each in ranked([tried(0, 0.5), tried(1, 0.7), tried(2, None), tried(3, 0.7)])] == [1, 3, 0]


def test_among_equal_scores_the_smaller_loss_decides():
    """All at the score of the larger class, as short trials leave them."""
    trials = [tried(0, 0.0), tried(1, 0.0), tried(2, 0.0), tried(3, 0.0)]
    for trial, loss in zip(trials, (0.62, 0.60, float("nan"), 0.60), strict=True):
        trial.scores = {"accuracy": 0.0, "loss": loss}
    assert [each.at for each in ranked(trials)] == [1, 3, 0, 2]
    trials[0].score = 0.1
    assert ranked(trials)[0].at == 0, "a better score wins, whatever its loss"


@pytest.mark.parametrize("metric", ["loss", "perplexity", "mrpc_loss"])
def test_of_losses_the_smallest_wins(metric):
    assert [each.at for each in ranked([tried(0, 0.5, metric), tried(1, 0.4, metric)])] == [1, 0]


def test_a_rate_at_the_edge_of_its_grid_is_told():
    grid = [{RATE: rate} for rate in (1e-4, 1e-3, 1e-2)]
    assert edge(grid, {RATE: 1e-2}) == "learning_rate 0.01 is the largest that was tried, so a wider grid may do better"
    assert edge(grid, {RATE: 1e-3}) == ""
    assert edge([{RATE: 1e-3}], {RATE: 1e-3}) == ""


def test_halving_gives_each_rung_its_budget():
    over = {RATE: (1, 2)}
    assert rungs(Search(over=over)) == [{}]
    assert rungs(Search(over=over, halving={"stages.a.arguments.max_steps": (10, 40)})) == [
        {"stages.a.arguments.max_steps": 10},
        {"stages.a.arguments.max_steps": 40},
    ]


def written(tmp_path, **metrics):
    (tmp_path / "stages" / "01-pre-a").mkdir(parents=True)  # whose id ends like the other's
    (tmp_path / "stages" / "01-pre-a" / "metrics.json").write_text(json.dumps({"eval_loss": 9.0}))
    folder = tmp_path / "stages" / "02-a"
    folder.mkdir()
    (folder / "metrics.json").write_text(json.dumps(metrics))
    return tmp_path


def test_the_first_score_of_the_rows_set_aside_decides(tmp_path):
    folder = written(tmp_path, train_loss=0.1, eval_loss=0.5, eval_f1=0.8, eval_accuracy=0.7)
    assert score_of(folder, "a", None) == ("f1", 0.8, {"loss": 0.5, "f1": 0.8, "accuracy": 0.7})
    assert score_of(folder, "a", "loss")[:2] == ("loss", 0.5)
    with pytest.raises(StageError, match="measured loss, f1, accuracy"):
        score_of(folder, "a", "bleu")


def test_of_a_language_model_the_loss_decides_and_what_stands_beside_it_by_its_name_alone(tmp_path):
    folder = written(tmp_path, eval_mean_token_accuracy=0.4, eval_loss=2.0)
    assert score_of(folder, "a", None)[:2] == ("loss", 2.0)
    assert score_of(folder, "a", "mean_token_accuracy")[:2] == ("mean_token_accuracy", 0.4)


def test_of_several_tasks_their_mean_decides_and_no_one_loss(tmp_path):
    scores = {"mrpc_loss": 0.6, "mrpc_f1": 0.8, "rte_loss": 0.7, "rte_accuracy": 0.5, "loss": 0.65}
    folder = written(tmp_path / "a", **{f"eval_{name}": value for name, value in scores.items()}, eval_mean=0.65)
    assert score_of(folder, "a", None)[:2] == ("mean", 0.65)
    assert score_of(folder, "a", "rte_loss")[:2] == ("rte_loss", 0.7)
    unscored = written(tmp_path / "b", eval_en_loss=3.0, eval_de_loss=5.0, eval_loss=4.0)
    assert score_of(unscored, "a", None)[:2] == ("loss", 4.0)


def test_a_score_that_is_no_number_is_none_and_no_score_an_error(tmp_path):
    assert score_of(written(tmp_path / "a", eval_loss=1.0, eval_f1="nan"), "a", None)[1] is None
    with pytest.raises(StageError, match="nothing can be searched by"):
        score_of(written(tmp_path / "b", train_loss=1.0), "a", None)


def test_what_an_evaluation_of_the_search_measured_decides(tmp_path):
    folder = written(tmp_path / "one", policy={"reward": 0.3, "win_rate": 0.6, "kl": 2.0})
    (folder / "stages" / "02-a").rename(folder / "stages" / f"02-{TRIAL_SCORES}")
    assert score_of(folder, TRIAL_SCORES, None)[:2] == ("reward", 0.3)
    assert score_of(folder, TRIAL_SCORES, "win_rate")[:2] == ("win_rate", 0.6)
    with pytest.raises(StageError, match="measured reward, win_rate, kl in the trials"):
        score_of(folder, TRIAL_SCORES, "accuracy")
    several = written(tmp_path / "two", a={"accuracy": 0.5}, b={"f1": 0.5})
    (several / "stages" / "02-a").rename(several / "stages" / f"02-{TRIAL_SCORES}")
    with pytest.raises(StageError, match="measured a, b, and a search is decided by one"):
        score_of(several, TRIAL_SCORES, None)
