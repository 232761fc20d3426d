"""The cells of a study: every combination of the matrix as a recipe of its own, checked before anything runs.

What is wrong with a value on its own (an unknown name, a number out of range) is a mistake of the study. A cell whose
parts are right but do not fit each other is refused with the reason, and the other cells run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipelines.core.config import ConfigIssue, ConfigIssues, Position, flatten, key_path
from pipelines.core.overrides import RecipeSource, put_at
from pipelines.core.recipe import Recipe, stage_ids, validated
from pipelines.core.registry import BASELINES, TASK_KINDS, TASKS, nearest
from pipelines.core.results import EVALUATIONS
from pipelines.core.scores import score_names
from pipelines.core.study_matrix import (
    Axis,
    MatrixValue,
    axes_of,
    checked_matrix,
    combinations,
    label,
    leaves_out_stage,
    path_parts,
)
from pipelines.core.study_options import Search, StudyOptions, reference_axis, unfit_options

Values = Mapping[str, Any]
"""Override paths with a value each."""
TRIAL_SCORES = "trial-scores"
"""Id of the evaluate stage that a search adds to its trials."""


@dataclass(frozen=True)
class Draft:
    """A recipe in the making: plain data, and where each part of it was written."""

    data: dict[str, Any]
    folder: Path
    written: Mapping[Position, Position] = field(default_factory=dict)
    """Place in the recipe, stages by their ids, -> place in the study's file."""

    def put(self, path: str, value: object, written: Position) -> Draft:
        """With one value more. Raises Mistakes, with the place in the study's file."""
        data = deepcopy(self.data)
        try:
            place = by_id(put_at(data, path, value, stage_ids(data)), data)
        except ConfigIssues as error:
            raise ConfigIssues([(written, message) for _, message in error.found]) from None
        return replace(self, data=data, written={**self.written, place: written})

    def recipe(self, base: Sequence[str | None], stages_fit: bool = True) -> Recipe:
        """The checked recipe. Raises Mistakes with places in the study's file, whose stages have the ids `base`."""
        try:
            return validated(self.data, self.folder, stages_fit)
        except ConfigIssues as error:
            raise ConfigIssues([(self._place(place, base), message) for place, message in error.found]) from None

    def _place(self, place: Position, base: Sequence[str | None]) -> Position:
        named = by_id(place, self.data)
        for depth in range(len(named), 0, -1):
            if named[:depth] in self.written:
                return (*self.written[named[:depth]], *named[depth:])
        if len(named) > 1 and named[0] == "stages" and named[1] in base:
            return ("stages", list(base).index(str(named[1])), *named[2:])
        return place


def by_id(place: Position, data: Mapping[str, object]) -> Position:
    """A place with its stage named by id, so that it stays true when an earlier stage is left out."""
    if len(place) > 1 and place[0] == "stages" and isinstance(place[1], int):
        ids = stage_ids(data)
        if place[1] < len(ids) and ids[place[1]] is not None:
            return ("stages", str(ids[place[1]]), *place[2:])
    return place


@dataclass(frozen=True)
class Cell:
    """One combination of the matrix."""

    number: int
    """From 1, in the order of the matrix."""
    entries: tuple[MatrixValue, ...]
    labels: Mapping[str, str]
    """Name of each axis -> name of this cell's entry."""
    draft: Draft
    recipe: Recipe
    refusal: str = ""
    """Why it cannot run; empty when it can."""

    @property
    def folder(self) -> str:
        """Its run folder, below the study's."""
        return f"cells/{self.number:02d}"


@dataclass(frozen=True)
class CellGroup:
    """Cells that share the values that a search finds."""

    number: int
    labels: Mapping[str, str]
    cell: Cell
    """The one that the trials are made from: the first that can run."""
    grid: tuple[Values, ...]
    """What is tried."""
    repeats: tuple[Cell, ...]
    """The cells whose seeds every value is tried with: `cell`, and others that differ from it by their seeds alone."""


@dataclass(frozen=True)
class StudyRecipe:
    """A study, every cell of it checked."""

    recipe: Recipe
    """The study's own: the recipe of a cell, with `matrix` and `study`."""
    axes: tuple[Axis, ...]
    cells: tuple[Cell, ...]
    groups: tuple[CellGroup, ...]
    """What is searched for, none without a search."""
    ids: tuple[str | None, ...]
    """Ids of the stages as the file has them."""

    @property
    def options(self) -> StudyOptions:
        """The key `study`."""
        return self.recipe.study or StudyOptions()

    @property
    def refused(self) -> tuple[Cell, ...]:
        """The cells that cannot run."""
        return tuple(cell for cell in self.cells if cell.refusal)

    def doubts(self) -> list[str]:
        """One sentence for each word that is allowed, and of which its author should know more."""
        search, sentences = self.options.search, [*self.recipe.model.doubts(), *self.recipe.launch.doubts()]
        most = max((len(group.repeats) for group in self.groups), default=0)
        if search is not None and search.seeds is not None and 0 < most < search.seeds:
            sentences.append(f"study.search.seeds: is {search.seeds}, but the matrix has {most}: so many are tried")
        return sentences

    def group_of(self, cell: Cell) -> CellGroup | None:
        """Where the values of a cell are searched for."""
        return next((group for group in self.groups if group.labels.items() <= cell.labels.items()), None)

    def final(self, cell: Cell, chosen: Values, matched: Values | None = None) -> Recipe:
        """The cell's recipe with the values that were found for it, and with those that match its budget."""
        draft = cell.draft
        for path, value in chosen.items():
            draft = draft.put(path, value, ("study", "search", "over", path))
        for path, value in (matched or {}).items():
            draft = draft.put(path, value, ("study", "budget"))
        return draft.recipe(self.ids)

    def budgeted(self, cell: Cell) -> str:
        """Id of the stage of the cell whose budget is matched. Raises Mistakes where the cell has no such stage."""
        budget = self.options.budget
        assert budget is not None
        trained = [stage.id for stage in cell.recipe.stages if stage.trains]
        name = budget.stage or (trained[-1] if trained else "")
        if name not in trained:
            what = f"'{name}' is no stage that trains" if name else "no stage trains"
            raise ConfigIssues(
                [
                    (
                        ("study", "budget", "stage"),
                        f"{what} in the cell {named(cell.labels)}; stages that train: {', '.join(trained) or 'none'}",
                    )
                ]
            )
        return name

    def partner(self, cell: Cell) -> Cell:
        """The cell whose budget this one gets: the same entries but for the reference's. Itself where it is one."""
        budget = self.options.budget
        assert budget is not None
        name = str(budget.reference or self.options.reference)
        axis = reference_axis(name, self.axes)
        assert axis is not None
        wanted = {**cell.labels, axis.name: name}
        return next(each for each in self.cells if each.labels == wanted)

    def probe(self, cell: Cell, chosen: Values, steps: int) -> Recipe:
        """The cell's recipe up to the stage whose budget is matched, for a few steps."""
        target = self.budgeted(cell)
        draft = cell.draft
        for path, value in chosen.items():
            draft = draft.put(path, value, ("study", "search", "over", path))
        for name, value in (("max_steps", steps), ("logging_steps", 1)):  # each step is timed
            draft = draft.put(f"stages.{target}.arguments.{name}", value, ("study", "budget", "probe_steps"))
        data = deepcopy(draft.data)
        ids = stage_ids(data)
        data["stages"] = tuple(
            stage
            for at, stage in enumerate(data["stages"])
            if at <= ids.index(target) and stage["stage"] not in (*EVALUATIONS, "publish")
        )
        return replace(draft, data=data).recipe(self.ids)

    def matched_first(self, cell: Cell) -> bool:
        """Whether the stage whose budget is matched stands before all that the search changes: trials then train it as
        the cells do, and it is made once for both."""
        budget, search = self.options.budget, self.options.search
        group = self.group_of(cell)
        if budget is None or search is None or group is None:
            return False
        try:
            target = self.budgeted(cell)
        except ConfigIssues:  # said where its budget is matched
            return False
        ids = [stage.id for stage in cell.recipe.stages]
        behind = ids[ids.index(target) + 1 :]
        changed = [path_parts(path) for path in (*group.grid[0], *search.budget, *(search.halving or {}))]
        return all(parts[0] == "stages" and parts[1] in behind for parts in changed)

    def trial(
        self,
        group: CellGroup,
        values: Values,
        budget: Values | None = None,
        cell: Cell | None = None,
        matched: Values | None = None,
    ) -> Recipe:
        """The recipe of one trial: trained up to the stage that is searched over, scored on the part of train set
        aside or by `study.search.evaluate`. `cell` is one of the group's repeats, by default the first; `matched` are
        the values that match its budget, where they are known before (`matched_first`)."""
        search = self.options.search
        assert search is not None
        draft = (cell or group.cell).draft
        for path, value in (matched or {}).items():
            draft = draft.put(path, value, ("study", "budget"))
        for path, value in search.budget.items():
            draft = draft.put(path, value, ("study", "search", "budget", path))
        for path, value in (budget or {}).items():
            draft = draft.put(path, value, ("study", "search", "halving", path))
        for path, value in values.items():
            own = next((entry for entry in group.cell.entries if path in entry.search), None)
            draft = draft.put(
                path, value, ("study", "search", "over", path) if own is None else (*own.place, "search", path)
            )
        return _up_to(draft, search).recipe(self.ids)


def expand(source: RecipeSource) -> StudyRecipe:
    """Every cell of a study. Raises RecipeError."""
    axes, options = _read_keys(source)
    ids = tuple(source.ids)
    base = Draft({key: value for key, value in source.data.items() if key not in ("matrix", "study")}, source.folder)
    issues: list[ConfigIssue] = []
    cells: list[Cell] = []
    for number, entries in enumerate(combinations(axes), start=1):
        labels = {axis.name: entry.label for axis, entry in zip(axes, entries, strict=True)}
        try:
            draft = base
            for path, value, written in sorted(
                _put_by(entries), key=lambda each: each[1] is None
            ):  # stages left out come last
                draft = draft.put(path, value, written)
            recipe = draft.recipe(ids, stages_fit=False)
        except ConfigIssues as error:
            issues += error.found
            continue
        cells.append(Cell(number, entries, labels, draft, recipe))
    if issues:
        raise source.error(issues)
    cells = [_refused_or_not(cell, ids, issues) for cell in cells]
    if all(cell.refusal for cell in cells):
        raise source.error(issues)
    fine = [cell for cell in cells if not cell.refusal]
    groups = _groups(axes, cells, options.search) if options.search else ()
    study = StudyRecipe(_base(source, axes, cells, fine[0]), axes, tuple(cells), groups, ids)
    issues = [*_same_destination(fine), *_unfit_trials(study), *_unfit_budgets(study), *_unmeasured(study, fine)]
    if issues:
        raise source.error(issues)
    return study


def _put_by(entries: Iterable[MatrixValue]) -> list[tuple[str, Any, Position]]:
    return [(path, value, entry.place_of(path)) for entry in entries for path, value in entry.values.items()]


def _read_keys(source: RecipeSource) -> tuple[tuple[Axis, ...], StudyOptions]:
    """The keys `matrix` and `study`, each right in itself and fitting the other."""
    issues: list[ConfigIssue] = []
    axes: tuple[Axis, ...] = ()
    options = StudyOptions()
    matrix = source.data["matrix"]
    try:
        axes = axes_of(checked_matrix(matrix))
    except ConfigIssues as error:
        issues += [(("matrix", *place), message) for place, message in error.found]
    try:
        options = StudyOptions.model_validate(source.data.get("study") or {})
    except ValidationError as error:
        issues += [(("study", *place), message) for place, message in flatten(error)]
    if not issues:
        issues += unfit_options(options, axes)
        issues += _overridden_in_vain(source, axes, options)
    if issues:
        raise source.error(issues)
    return axes, options


def _overridden_in_vain(source: RecipeSource, axes: Sequence[Axis], options: StudyOptions) -> list[ConfigIssue]:
    """Values of the command line that the matrix or the search would replace."""
    paths = {
        path: axis.key
        for axis in axes
        for entry in axis.entries
        for path, value in entry.values.items()
        if not _left_out_in_some(path, value, axis)
    }
    paths |= dict.fromkeys(options.search.over if options.search else (), "study.search.over")
    issues: list[ConfigIssue] = []
    for place in source.overridden:
        if place[:1] in (("matrix",), ("study",)):
            continue
        words = [str(part) for part in by_id(place, source.data)]
        for path, where in paths.items():
            parts = path.replace("[", ".").replace("]", "").split(".")
            if words[: len(parts)] == parts:
                inside = where if where.startswith("study.") else f"matrix.{where}"
                issues.append(
                    (
                        place,
                        f"is set by '{where}' in the cells, so this value would never be used; change {inside} instead",
                    )
                )
                break
    return issues


def _left_out_in_some(path: str, value: object, axis: Axis) -> bool:
    """Whether a stage is left out, but not in all cells: what is set in it holds in the others."""
    return leaves_out_stage(path, value) and not all(path in entry.values for entry in axis.entries)


def _refused_or_not(cell: Cell, ids: Sequence[str | None], issues: list[ConfigIssue]) -> Cell:
    try:
        return replace(cell, recipe=cell.draft.recipe(ids))
    except ConfigIssues as error:
        issues += error.found
        return replace(cell, refusal="; ".join(f"{key_path(place)}: {message}" for place, message in error.found))


def _groups(axes: Sequence[Axis], cells: Sequence[Cell], search: Search) -> tuple[CellGroup, ...]:
    per = [axis.name for axis in axes if (axis.name in search.per if search.per is not None else not axis.repeats)]
    seeds = {axis.name for axis in axes if axis.repeats}
    groups: dict[tuple[str, ...], CellGroup] = {}
    for cell in cells:
        labels = {name: cell.labels[name] for name in per}
        key = tuple(labels.values())
        if cell.refusal or key in groups or _without(cell, search.target, cells):
            continue
        own = {path: values for entry in cell.entries for path, values in entry.search.items()}
        grids = {path: own.get(path, values) for path, values in search.over.items()}
        grid = tuple(dict(zip(grids, values, strict=True)) for values in product(*grids.values()))
        alike = [
            each
            for each in cells
            if not each.refusal
            and all(
                label == each.labels[name] for name, label in cell.labels.items() if name not in seeds or name in per
            )
        ]
        groups[key] = CellGroup(len(groups) + 1, labels, cell, grid, tuple(alike[: search.repeats(len(alike))]))
    return tuple(groups.values())


def _without(cell: Cell, target: str, cells: Sequence[Cell]) -> bool:
    """Whether a cell leaves out the stage that others search over: it has nothing to search for."""
    left_out = [target not in [stage.id for stage in each.recipe.stages] for each in cells if not each.refusal]
    return target not in [stage.id for stage in cell.recipe.stages] and not all(left_out)


def _up_to(draft: Draft, search: Search) -> Draft:
    """Only the stages up to the target, without those that score or publish. The target scores itself on the part of
    train that is set aside, unless an evaluate stage of the search does behind it."""
    data = deepcopy(draft.data)
    ids = stage_ids(data)
    data["stages"] = tuple(
        stage
        for at, stage in enumerate(data["stages"])
        if at <= ids.index(search.target) and stage["stage"] not in (*EVALUATIONS, "publish")
    )
    if search.evaluate is not None:
        scored = {"stage": "evaluate", "id": TRIAL_SCORES, "from": search.target, **deepcopy(search.evaluate)}
        data["stages"] = (*data["stages"], scored)
        return replace(
            draft, data=data, written={**draft.written, ("stages", TRIAL_SCORES): ("study", "search", "evaluate")}
        )
    arguments = data["stages"][-1].setdefault("arguments", {})
    if not {"eval_strategy", "evaluation_strategy"} & set(arguments):
        arguments["eval_strategy"] = "epoch"
    return replace(draft, data=data)


def _unmeasured(study: StudyRecipe, cells: Sequence[Cell]) -> list[ConfigIssue]:
    """Hypotheses about a baseline that no cell measures and keeps the answers of; few-shot evaluations keep none."""
    labels = [entry.label for axis in study.axes for entry in axis.entries]
    stages = [stage for cell in cells for stage in cell.recipe.stages if not getattr(stage, "few_shot", None)]
    measured = {name for stage in stages for name in getattr(stage, "baselines", ())}
    known = ", ".join(sorted(measured)) or "none"
    return [
        (
            ("study", "hypotheses", position),
            f"'{name}' is a baseline that no stage measures; put it into 'baselines' of an evaluate stage without "
            f"few_shot. Measured: {known}",
        )
        for position, hypothesis in enumerate(study.options.hypotheses)
        for name in hypothesis.names
        if name in BASELINES and name not in labels and name not in measured
    ]


def _unfit_trials(study: StudyRecipe) -> list[ConfigIssue]:
    """What is wrong with trials: they are checked before anything runs, as cells are."""
    search, issues = study.options.search, []
    if search is None:
        return []
    for group in study.groups:
        if search.target not in [stage.id for stage in group.cell.recipe.stages]:
            place: Position = ("study", "search", "over", next(iter(search.over)))
            trained_stages = ", ".join(stage.id for stage in group.cell.recipe.stages if stage.trains)
            issues.append((place, f"'{search.target}' is no stage of every cell; stages that train: {trained_stages}"))
            continue
        if not group.cell.recipe.stage(search.target).trains:
            issues.append(
                (
                    ("study", "search", "over", next(iter(search.over))),
                    f"'{search.target}' does not train, so there is nothing to search for",
                )
            )
            continue
        if search.evaluate is None:
            issues += _unfit_metric(search, group.cell.recipe.stage(search.target))
        budgets = [{path: value} for path, values in (search.halving or {}).items() for value in values] or [{}]
        for values, budget in product(group.grid, budgets):
            try:
                trial = study.trial(group, values, budget)
            except ConfigIssues as error:
                issues += error.found
            else:
                issues += [] if search.evaluate is None else _unfit_evaluation(search, trial, study.cells)
    return list(dict.fromkeys(issues))


def _unfit_evaluation(search: Search, trial: Recipe, cells: Iterable[Cell]) -> list[ConfigIssue]:
    """A score to choose by that the trials' evaluation does not measure, and what it shares with those that report."""
    evaluation = trial.stages[-1]
    issues: list[ConfigIssue] = []
    measured = evaluation.score_names()
    if search.metric is not None and measured is not None and search.metric not in measured:
        sentence = f"'{search.metric}' is not measured by study.search.evaluate.{nearest(search.metric, measured)}"
        issues.append((("study", "search", "metric"), f"{sentence} Known: {', '.join(measured)}"))
    reported = {
        part
        for cell in cells
        if not cell.refusal
        for stage in cell.recipe.stages
        if stage.stage in EVALUATIONS
        for part in stage.scored_on(cell.recipe)
    }
    parts = sorted(evaluation.scored_on(trial))
    if len(parts) > 1:
        sentence = f"scores trials on {', '.join(parts)}, and a search is decided by one; name one of them"
        issues.append((("study", "search", "evaluate"), sentence))
    for part in sorted(reported.intersection(parts)):
        sentence = f"reads {part}, which the cells report on; choose by another part, such as a split of train"
        issues.append((("study", "search", "evaluate"), sentence))
    return issues


def _unfit_metric(search: Search, stage: Any) -> list[ConfigIssue]:
    """A score to choose by that the searched stage does not measure on its rows set aside."""
    measured = _measured(stage)
    if search.metric is None or measured is None or search.metric in measured:
        return []
    hint = nearest(search.metric, measured)
    return [
        (
            ("study", "search", "metric"),
            f"'{search.metric}' is not measured on the rows that '{stage.id}' sets aside.{hint} Known: "
            f"{', '.join(measured)}",
        )
    ]


def _measured(stage: Any) -> list[str] | None:
    """The scores of a stage on rows set aside; None where they are not known before it runs."""
    scores_known: list[str] = []
    subjects: Mapping[str, Any] = stage.subjects()
    for model, subject in subjects.items():
        task = subject.task
        block = TASKS.load(task) if isinstance(task, str) else task.task(model)
        by_loss = TASK_KINDS.load(block.kind).selects_by_loss or getattr(subject, "as_text", False)
        scores = [] if by_loss else list(score_names(block.metrics))
        prefix = f"{model.rpartition('/')[2]}_" if "/" in model else ""
        scores_known += [f"{prefix}{name}" for name in (*scores, "loss")]
    if any("/" in model for model in subjects):
        scores_known += ["mean", "loss"]
    return scores_known or None


def _unfit_budgets(study: StudyRecipe) -> list[ConfigIssue]:
    """Cells without the stage whose budget is matched, and steps that something else sets."""
    if study.options.budget is None:
        return []
    issues: list[ConfigIssue] = []
    for cell in study.cells:
        if cell.refusal:
            continue
        try:
            path = f"stages.{study.budgeted(cell)}.arguments.max_steps"
        except ConfigIssues as error:
            issues += error.found
            continue
        search = study.options.search
        own = [each for entry in cell.entries for each in entry.values] + list(search.over if search else ())
        if path in own and study.partner(cell) is not cell:
            issues.append(
                (
                    ("study", "budget"),
                    f"works out the steps of the cell {named(cell.labels)}, but '{path}' sets them; leave one "
                    "of the two out",
                )
            )
    return list(dict.fromkeys(issues))


def _same_destination(cells: Sequence[Cell]) -> list[ConfigIssue]:
    """Two cells that publish to one place would replace each other's checkpoint."""
    seen: dict[str, Cell] = {}
    for cell in cells:
        for stage in cell.recipe.stages:
            to = getattr(stage, "to", None) if stage.stage == "publish" else None
            if to is not None and seen.setdefault(str(to), cell) is not cell:
                position = [each.id for each in cell.recipe.stages].index(stage.id)
                return [
                    (
                        ("stages", position, "to"),
                        f"is {to} in every cell, so each would replace the last one's checkpoint; set "
                        f"stages.{stage.id}.to in the matrix, or publish the best cell with a recipe of its "
                        "own",
                    )
                ]
    return []


def _base(source: RecipeSource, axes: Sequence[Axis], cells: Sequence[Cell], first: Cell) -> Recipe:
    """The study's own recipe: as written where that is a recipe, else as the first cell is; folders in it absolute."""
    keys = {key: source.data[key] for key in ("matrix", "study") if source.data.get(key) is not None}
    keys["matrix"] = _absolute(keys["matrix"], axes, cells)
    for data in (source.data, first.draft.data):
        try:
            return validated({**data, **keys}, source.folder)
        except ConfigIssues:
            continue
    raise AssertionError("a cell that is right alone is wrong with its matrix")


def _absolute(matrix: Mapping[str, object], axes: Sequence[Axis], cells: Sequence[Cell]) -> dict[str, Any]:
    """The matrix with texts that the check resolved, such as folders beside the recipe, as they were resolved."""
    absolute: dict[str, Any] = deepcopy(dict(matrix))
    for axis in axes:
        for entry in axis.entries:
            plain = next(cell.recipe.plain() for cell in cells if entry in cell.entries)
            for path, value in entry.values.items():
                resolved = _look_up(plain, path)
                place = entry.place_of(path)[1:]
                holder: Any = absolute
                for key in place[:-1]:
                    if isinstance(holder[key], tuple):
                        holder[key] = list(holder[key])
                    holder = holder[key]
                holder[place[-1]] = _resolved(value, resolved)
    resolved_matrix: dict[str, Any] = _tuples(absolute)
    return resolved_matrix


def _look_up(plain: object, path: str) -> Any:
    here = plain
    for part in path.replace("[", ".").replace("]", "").split("."):
        if isinstance(here, list):
            here = next(
                (
                    each
                    for at, each in enumerate(here)
                    if part in (str(at), each.get("id") if isinstance(each, dict) else None)
                ),
                None,
            )
        elif isinstance(here, dict):
            here = here.get(part)
        else:
            return None
    return here


def _resolved(written: object, checked: object) -> Any:
    if isinstance(written, str) and isinstance(checked, str):
        return checked
    if isinstance(written, Mapping) and isinstance(checked, Mapping):
        return {key: _resolved(value, checked.get(key)) for key, value in written.items()}
    if isinstance(written, tuple | list) and isinstance(checked, list) and len(written) == len(checked):
        return tuple(_resolved(one, other) for one, other in zip(written, checked, strict=True))
    return written


def _tuples(value: object) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(entry) for key, entry in value.items()}
    return tuple(_tuples(entry) for entry in value) if isinstance(value, tuple | list) else value


def named(labels: Mapping[str, str]) -> str:
    """`method lora, seed 2`."""
    return ", ".join(f"{name} {text}" for name, text in labels.items())


def told(values: Values) -> str:
    """`learning_rate 0.001`."""
    return ", ".join(f"{path.rpartition('.')[2]} {label(value)}" for path, value in values.items())
