"""Two runs of one eval, held against each other row by row: which is better, and is it more than chance?

Rows are paired by their number, and must be the same in both. Whether a row passes is compared by McNemar's exact
test, its score by tosses of the sign of each difference, with a bootstrap interval; the p-values of all criteria are
corrected together by Holm's method. Rows with an error on either side are left out, and counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from pipelines.core.paired_tests import holm, mean_interval, p_values, sign_test
from service.api.context import Service, ServiceOf, Viewer, apart
from service.api.jobs import clean
from service.api.problems import Problem, described
from service.store.evals import COMPLETED, ERRORED, EvalRun

router = APIRouter(tags=["evals"], responses=described())
LEVEL = 0.05
SEED = 0
"""Of tosses and resamples: the same runs give the same answer."""
RunId = Annotated[str, Query(max_length=64)]


class ComparedCriterion(BaseModel):
    """One criterion in both runs."""

    name: str
    first: float = Field(description="Mean score of the first run.")
    second: float = Field(description="Mean score of the second run.")
    difference: float = Field(description="The second minus the first.")
    interval: tuple[float, float] = Field(description="95 % bootstrap interval of the difference.")
    p_score: float = Field(description="Of the difference of the scores, corrected for all criteria.")
    passed_first: int
    passed_second: int
    only_first: int = Field(description="Rows that pass in the first run alone.")
    only_second: int = Field(description="Rows that pass in the second run alone.")
    p_passed: float = Field(description="McNemar's exact test, corrected for all criteria.")
    verdict: str = Field(description="first, second, or undecided.")


class Comparison(BaseModel):
    """Two runs of one eval."""

    eval_id: str
    first: str
    second: str
    first_model: str
    second_model: str
    rows: int = Field(description="Rows that were compared.")
    left_out: int = Field(description="Rows with an error in either run.")
    criteria: list[ComparedCriterion]


@apart("readings", router.get("/evals/{eval_id}/compare", responses=described(404, 409)))
def compare(eval_id: str, first: RunId, second: RunId, service: ServiceOf, caller: Viewer) -> Comparison:
    """Is one run better than another beyond chance?"""
    one, two = (service.store.run(clean(each) or "", clean(eval_id) or "", caller.scope) for each in (first, second))
    for run in (one, two):
        if run.state != COMPLETED:
            raise Problem(409, f"Run '{run.id}' is {run.state}; only completed runs are compared.", "run_not_completed")
    left, right = _scores(service, one), _scores(service, two)
    if {number: item for number, (item, _) in left.items()} != {number: item for number, (item, _) in right.items()}:
        raise Problem(409, "The two runs have other rows; compare runs of the same data source.", "other_rows")
    both = [number for number in left if left[number][1] and right[number][1]]
    if not both:
        raise Problem(409, "No row was graded in both runs.", "no_rows")
    names = list(one.summary["criteria"])
    pairs = {name: [(left[number][1][name], right[number][1][name]) for number in both] for name in names}
    criteria = [_compared(name, pairs[name]) for name in names]
    for key in ("p_score", "p_passed"):
        for criterion, corrected in zip(criteria, holm([getattr(each, key) for each in criteria]), strict=True):
            setattr(criterion, key, corrected)
    for each in criteria:
        if min(each.p_score, each.p_passed) <= LEVEL and each.difference:
            each.verdict = "second" if each.difference > 0 else "first"
    return Comparison(
        eval_id=one.eval,
        first=one.id,
        second=two.id,
        first_model=one.model,
        second_model=two.model,
        rows=len(both),
        left_out=len(left) - len(both),
        criteria=criteria,
    )


Graded = dict[str, tuple[float, bool]]
"""(score, whether it passed) by criterion."""


def _scores(service: Service, run: EvalRun) -> dict[int, tuple[Mapping[str, Any], Graded]]:
    """The rows of a run by number: (item, grades); no grades where it is an error."""
    return {
        each.number: (
            each.item,
            {}
            if each.state == ERRORED
            else {str(of["name"]): (float(of["score"]), bool(of["passed"])) for of in each.results},
        )
        for each in service.store.every_eval_item(run.id)
    }


def _compared(name: str, pairs: list[tuple[tuple[float, bool], tuple[float, bool]]]) -> ComparedCriterion:
    first, second = [one[0] for one, _ in pairs], [two[0] for _, two in pairs]
    differences = [after - before for before, after in zip(first, second, strict=True)]
    only_first = sum(one[1] and not two[1] for one, two in pairs)
    only_second = sum(two[1] and not one[1] for one, two in pairs)
    return ComparedCriterion(
        name=name,
        first=sum(first) / len(pairs),
        second=sum(second) / len(pairs),
        difference=sum(differences) / len(pairs),
        interval=mean_interval(differences, SEED),
        p_score=sign_test(differences, SEED),
        passed_first=sum(one[1] for one, _ in pairs),
        passed_second=sum(two[1] for _, two in pairs),
        only_first=only_first,
        only_second=only_second,
        p_passed=p_values(only_first, only_second)[0],
        verdict="undecided",
    )
