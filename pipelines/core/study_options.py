"""How the cells of a study's matrix are compared, and how each method gets its values: the key `study`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from pipelines.core.config import Block, ConfigIssue, ConfigIssues, show
from pipelines.core.registry import BASELINES, nearest
from pipelines.core.study_matrix import SEARCH, Axis, checked_grids, path_parts, unfit_path, within


def _budget(value: object) -> Any:
    if not isinstance(value, Mapping):
        raise ConfigIssues(
            [
                (
                    (),
                    f"is {show(value)}, must be a mapping from override paths to values, such as "
                    f"{{stages.mrpc.arguments.num_train_epochs: 1}}",
                )
            ]
        )
    issues: list[ConfigIssue] = [((path,), wrong) for path in value if (wrong := unfit_path(path)) is not None]
    if issues:
        raise ConfigIssues(issues)
    return dict(value)


def _evaluation(value: object) -> Any:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        sentence = "must be a mapping with the keys of an evaluate stage, such as {prompts: {path: …}, reward: {…}}"
        raise ConfigIssues([((), f"is {show(value)}, {sentence}")])
    issues: list[ConfigIssue] = [
        ((key,), "is said by the search itself: what each trial trained is scored behind it; leave it out")
        for key in ("stage", "id", "from")
        if key in value
    ]
    if issues:
        raise ConfigIssues(issues)
    return dict(value)


def _halving(value: object) -> Any:
    grids = checked_grids(value)
    if len(grids) != 1:
        raise ConfigIssues([((), f"names {len(grids)} paths, must name one: the budget that grows")])
    [(path, budgets)] = grids.items()
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) and each > 0 for each in budgets)
    if not numbers or len(budgets) < 2 or list(budgets) != sorted(budgets):
        raise ConfigIssues(
            [((path,), f"is {show(budgets)}, must be at least two budgets, each larger than the one before")]
        )
    return grids


class Search(Block):
    """How each method gets its values, before its seeds run: the same number of trials for all of them."""

    over: Annotated[dict[str, Any], BeforeValidator(checked_grids)]
    """Override paths with the values to try; every combination is a trial. A named entry of the matrix may bring
    values of its own under `search`: as many, so that the budgets stay equal."""
    per: tuple[str, ...] | None = None
    """Keys of the matrix: each combination of their entries is searched for itself. Default: all but the seeds. The
    other keys stay at their first entry during the search."""
    budget: Annotated[dict[str, Any], BeforeValidator(_budget)] = Field(default_factory=dict)
    """Override paths that hold for the trials only, such as fewer epochs."""
    metric: str | None = None
    """The score to choose by, on the part of train that is set aside: `loss`, or a metric of the task; one of
    `evaluate` where that is given. Default: its first."""
    evaluate: Annotated[dict[str, Any] | None, BeforeValidator(_evaluation)] = None
    """The keys of an evaluate stage that scores what each trial trained, and runs in trials only: `{prompts: {path: …,
    split: validation}, reward: {…}, against: model}`. For stages that are not scored on rows set aside, such as ppo.
    What it reads must be no part that the cells report on. Default: the searched stage's own scores."""
    seeds: int | None = Field(None, ge=1, le=100)
    """Training seeds with which every value is tried, the first ones of the matrix; the mean of their scores decides,
    and a value that diverges with one of them loses. Default: as many as the matrix has, at most 3."""
    halving: Annotated[
        dict[str, Any] | None, BeforeValidator(lambda value: None if value is None else _halving(value))
    ] = None
    """Successive halving: one override path with growing budgets. All values are tried with the first; of n that were
    tried with budget b, the best n·b/b' (rounded up) are tried again with the next, b'. Jamieson and Talwalkar 2016,
    arxiv.org/abs/1502.07943."""

    @model_validator(mode="after")
    def _nothing_twice(self) -> Search:
        issues: list[ConfigIssue] = []
        for name, paths in (("budget", self.budget), ("halving", self.halving or {})):
            clash = [(path, other) for path in paths for other in self.over if within(path, other)]
            issues += [
                ((name, path), f"is searched over as '{other}'; leave one of the two out") for path, other in clash
            ]
        issues += [
            (("halving", path), "stands in 'budget' too; leave one of the two out")
            for path in self.halving or {}
            if path in self.budget
        ]
        if issues:
            raise ConfigIssues(issues)
        return self

    def repeats(self, available: int) -> int:
        """Seeds of every value, of `available` ones in the matrix."""
        return min(available, self.seeds or 3)

    @property
    def target(self) -> str:
        """Id of the stage that is searched over: the one that the first path names."""
        return path_parts(next(iter(self.over)))[1]


class Budget(Block):
    """The same amount of training for every method: the reference trains as its recipe says, the others as many steps
    as come to the same. What the search spends is not counted."""

    match: Literal["steps", "tokens", "flops", "time"]
    """What is made equal: optimizer steps, tokens that pass through the model, operations (both as `finery plan`
    counts them), or time, by steps that are measured first."""
    reference: str | None = None
    """The entry of the matrix whose training says how much. Default: `study.reference`."""
    stage: str | None = None
    """Id of the stage that is made equal. Default: the last one that trains."""
    probe_steps: int = Field(30, ge=2, le=10_000)
    """Steps that are measured where time is made equal."""


class Hypothesis(Block):
    """What is expected of two entries of the matrix, written down before anything runs."""

    claim: str = ""
    """In words, with its source: `prompts reach full fine-tuning (Lester et al. 2021)`."""
    better: str | None = None
    """The entry that is expected to score better …"""
    than: str | None = None
    """… than this one. One of the two may be a baseline that the evaluate stages name, such as `naive_bayes_pairs`."""
    equal: tuple[str, str] | None = None
    """Or two entries that are expected to differ by less than `study.margin`."""
    benchmark: str | None = None
    """Where it is expected. Default: on every benchmark."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Hypothesis:
        named = self.better is not None and self.than is not None
        if named == (self.equal is not None) or (self.better is None) != (self.than is None):
            raise ConfigIssues([((), "needs either 'better' and 'than', or 'equal: [one, other]'")])
        if len(set(self.names)) < 2:
            raise ConfigIssues([((), f"names '{self.names[0]}' twice; name two entries of the matrix")])
        return self

    @property
    def names(self) -> tuple[str, str]:
        """Both entries, the one that is expected to be better first."""
        return self.equal or (str(self.better), str(self.than))


class StudyOptions(Block):
    """How the cells of a matrix are compared."""

    reference: str | None = None
    """The entry that every other one is held against, such as `full`. Default: none, each score stands for itself."""
    search: Search | None = None
    """How each method gets its learning rate, or anything else, before its seeds run."""
    budget: Budget | None = None
    """Makes the training of all methods equally long, large or dear."""
    margin: Annotated[float, Field(gt=0)] | dict[str, Annotated[float, Field(gt=0)]] | None = None
    """Differences of the main score that are too small to matter, in its own unit, or by benchmark. Rows whose
    difference is shown to lie within it (two one-sided tests) are called equivalent. Say it before the study runs."""
    hypotheses: tuple[Hypothesis, ...] = ()
    """What is expected. The study says of each whether it is confirmed, refuted or undecided."""
    correction: Literal["holm", "bh", "none"] = "holm"
    """How p-values are corrected for the number of rows that are held against the reference: Holm, Benjamini and
    Hochberg, or not."""


def unfit_options(options: StudyOptions, axes: tuple[Axis, ...]) -> list[ConfigIssue]:
    """What in `study` does not fit the axes; places relative to the recipe."""
    issues: list[ConfigIssue] = []
    if options.reference is not None and reference_axis(options.reference, axes) is None:
        labels = [entry.label for axis in axes if not axis.repeats for entry in axis.entries]
        several = sum(options.reference in [entry.label for entry in axis.entries] for axis in axes) > 1
        why = (
            "is the name of entries of two keys of the matrix; name the entries differently"
            if several
            else f"is no entry of the matrix.{nearest(options.reference, labels)} Known: {', '.join(labels)}"
        )
        issues.append((("study", "reference"), f"'{options.reference}' {why}"))
    issues += _unfit_budget(options, axes)
    issues += _unfit_hypotheses(options, axes)
    if options.search is not None:
        return issues + _unfit_search(options.search, axes)
    needless = [entry for axis in axes for entry in axis.entries if entry.search]
    return issues + [((*entry.place, SEARCH), "needs study.search.over to say what is searched") for entry in needless]


def _unfit_hypotheses(options: StudyOptions, axes: tuple[Axis, ...]) -> list[ConfigIssue]:
    """What in `study.hypotheses` does not fit the axes."""
    issues: list[ConfigIssue] = []
    labels = [entry.label for axis in axes if not axis.repeats for entry in axis.entries]
    for position, hypothesis in enumerate(options.hypotheses):
        place = ("study", "hypotheses", position)
        keys = {name: reference_axis(name, axes) for name in hypothesis.names}
        guessers = [name for name in hypothesis.names if name in BASELINES and name not in labels]
        if len(guessers) > 1:
            issues.append((place, f"{' and '.join(guessers)} are baselines both; name an entry of the matrix"))
        issues += [
            (
                place,
                f"'{name}' is no entry of one key of the matrix.{nearest(name, (*labels, *BASELINES))} "
                f"Known: {', '.join(labels)}",
            )
            for name, axis in keys.items()
            if axis is None and name not in guessers
        ]
        if len({axis.name for axis in keys.values() if axis is not None}) > 1:
            issues.append((place, f"{' and '.join(keys)} are entries of two keys of the matrix; name two of one"))
        if hypothesis.equal and options.margin is None:
            issues.append(
                (place, "says that two entries are equal, which needs study.margin: how much is too little to matter")
            )
    return issues


def _unfit_search(search: Search, axes: tuple[Axis, ...]) -> list[ConfigIssue]:
    """What in `study.search` does not fit the axes."""
    issues: list[ConfigIssue] = []
    names = [axis.name for axis in axes]
    grids = [(axis, entry) for axis in axes for entry in axis.entries if entry.search]
    for position, name in enumerate(search.per or ()):
        if name not in names:
            issues.append(
                (
                    ("study", "search", "per", position),
                    f"'{name}' is no key of the matrix.{nearest(name, names)} Known: {', '.join(names)}",
                )
            )
    for path in search.over:
        for axis in axes:
            if any(
                path_parts(other)[: len(path_parts(path))] == path_parts(path)
                for entry in axis.entries
                for other in entry.values
            ):
                issues.append(
                    (
                        ("study", "search", "over", path),
                        f"is set by the matrix too ('{axis.key}'); leave one of the two out",
                    )
                )
        if path_parts(path)[1] != search.target:
            issues.append(
                (
                    ("study", "search", "over", path),
                    f"is of another stage than '{search.target}'; one stage is searched over at a time",
                )
            )
    for axis, entry in grids:
        if search.per is not None and axis.name not in search.per:
            issues.append(
                ((*entry.place, SEARCH), f"brings values of its own, so '{axis.name}' must stand in study.search.per")
            )
        for path, values in entry.search.items():
            if path not in search.over:
                issues.append(
                    (
                        (*entry.place, SEARCH, path),
                        f"is not searched over.{nearest(path, search.over)} Known: {', '.join(search.over)}",
                    )
                )
            elif len(values) != len(search.over[path]):
                issues.append(
                    (
                        (*entry.place, SEARCH, path),
                        f"has {len(values)} values, but study.search.over has {len(search.over[path])}: every "
                        "method gets as many trials",
                    )
                )
    return issues


def _unfit_budget(options: StudyOptions, axes: tuple[Axis, ...]) -> list[ConfigIssue]:
    """What in `study.budget` does not fit the axes."""
    budget = options.budget
    if budget is None:
        return []
    labels = [entry.label for axis in axes if not axis.repeats for entry in axis.entries]
    name = budget.reference or options.reference
    if name is None:
        return [
            (
                ("study", "budget", "reference"),
                f"is missing: name the entry whose training says how much. Known: {', '.join(labels)}",
            )
        ]
    issues: list[ConfigIssue] = []
    if budget.reference is not None and reference_axis(budget.reference, axes) is None:
        issues.append(
            (
                ("study", "budget", "reference"),
                f"'{budget.reference}' is no entry of one key of the "
                f"matrix.{nearest(budget.reference, labels)} Known: {', '.join(labels)}",
            )
        )
    if "probe_steps" in budget.model_fields_set and budget.match != "time":
        issues.append(
            (
                ("study", "budget", "probe_steps"),
                f"is for 'match: time', but {budget.match} are counted, not measured; leave it out",
            )
        )
    return issues


def reference_axis(reference: str, axes: tuple[Axis, ...]) -> Axis | None:
    """The one axis that has an entry of this name."""
    having = [axis for axis in axes if not axis.repeats and reference in [entry.label for entry in axis.entries]]
    return having[0] if len(having) == 1 else None
