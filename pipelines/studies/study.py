"""A study, in the order it happens: search each method's values, run every cell, put the results side by side.

A study's folder holds its cells as ordinary run folders. What is complete is recognised by its fingerprints and reused,
so a study that was stopped, killed or changed continues with what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipelines.core.config import ConfigIssues
from pipelines.core.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_STOPPED,
    EXIT_USAGE,
    CommandError,
    FineryError,
    understood,
)
from pipelines.core.events import EventLog
from pipelines.core.files import JSONObject, lock, write_json, write_text
from pipelines.core.fork_server import ForkServer
from pipelines.core.recipe import Recipe
from pipelines.core.signals import StopSignal, stop_on_signals
from pipelines.core.study_cells import Cell, CellGroup, StudyRecipe, Values, named, told
from pipelines.runs import fingerprints, hardware
from pipelines.studies.budget import UnmatchedBudgetError, match_budget, measured_seconds
from pipelines.studies.page import write_results
from pipelines.studies.plan import same_work
from pipelines.studies.search import Trial, edge, ranked, rungs, score_of
from pipelines.studies.state import CellState, StudyState
from pipelines.studies.workers import RunEnd, Workers, is_complete, slots

REFUSED = "misfit"
"""The reason of a run that cannot be done with its model: refused, not failed."""
BAD_TRIAL = "diverged"
"""The reason of a trial that only shows that its values are bad ones."""


class Study(StudyState):
    """A study on its way."""

    def __init__(self, plan: StudyRecipe, folder: Path, workers: Workers, processes: int) -> None:
        super().__init__(plan, folder)
        self.workers = workers
        self.processes = processes
        """Of each run."""
        self.events = EventLog(folder / "events.jsonl")

    @property
    def stopped(self) -> bool:
        """Whether a signal asked to stop."""
        return self.workers.stop.requested

    def search(self) -> None:
        """Find the values of each group by its trials, rung by rung."""
        search = self.plan.options.search
        if search is None:
            return
        survivors = {group.number: list(range(len(group.grid))) for group in self.plan.groups}
        for rung, budget in enumerate(rungs(search), start=1):
            trials: dict[str, tuple[CellGroup, Trial, Cell]] = {}
            for group in self.plan.groups:
                for at in survivors[group.number]:
                    name = f"search/{group.number:02d}-{at + 1:02d}" + (f"-{rung}" if len(rungs(search)) > 1 else "")
                    trial = Trial(name, rung, at, group.grid[at])
                    self.tried.setdefault(group.number, []).append(trial)
                    for number, cell in enumerate(group.repeats, start=1):
                        trials[name if number == 1 else f"{name}-seed{number}"] = (group, trial, cell)
            recipes = {
                name: self.plan.trial(group, trial.values, budget, cell, self._matched(cell))
                for name, (group, trial, cell) in trials.items()
            }
            labels = {name: {**group.labels, "trial": told(trial.values)} for name, (group, trial, _) in trials.items()}
            for name, ended in self._do(recipes, labels):
                trial = trials[name][1]
                trial.ended(_status(ended), ended.message, ended.reason)
                if ended.code == EXIT_DONE:
                    trial.measured(*score_of(self.folder / name, recipes[name].stages[-1].id, search.metric))
            for trial in {id(each): each for _, each, _ in trials.values()}.values():
                trial.score = trial.score if trial.complete else None
            if self.stopped:
                return
            for group in self.plan.groups:
                order = ranked([each for each in self.tried[group.number] if each.rung == rung])
                keep = (
                    len(order)
                    if rung == len(rungs(search))
                    else _kept(len(survivors[group.number]), search.halving or {}, rung)
                )
                survivors[group.number] = [each.at for each in order[:keep]]
        for group in self.plan.groups:
            self._choose(group)

    def _matched(self, cell: Cell) -> Values:
        """What matches the budget of a cell, as far as it is known."""
        matched = self.states[cell.number - 1].matched
        return matched.values if matched is not None else {}

    def _choose(self, group: CellGroup) -> None:
        last = max(each.rung for each in self.tried[group.number])
        order = ranked([each for each in self.tried[group.number] if each.rung == last])
        mine = [
            state
            for state in self.states
            if not state.cell.refusal and group.labels.items() <= state.cell.labels.items()
        ]
        broken = [each for each in self.tried[group.number] if each.status == "failed" and each.reason != BAD_TRIAL]
        if broken or not order:  # a choice from fewer trials than the others had would not be a fair one
            reasons = "; ".join(
                dict.fromkeys(each.message for each in broken or self.tried[group.number] if each.message)
            )
            refused = all(each.status == "refused" for each in self.tried[group.number])
            for state in mine:
                state.status = "refused" if refused else "failed"
                state.message = (
                    reasons
                    if refused
                    else f"a trial of its search failed: {reasons}"
                    if broken
                    else f"no trial of its search gave a score: {reasons}"
                )
            return
        best = order[0]
        best.chosen = True
        for state in mine:
            state.chosen = best.values
        if sentence := edge(group.grid, best.values):
            self.edges[group.number] = sentence
            self.events.emit("warning", message=f"{named(group.labels)}: {sentence}")

    def match(self, searched: bool) -> None:
        """Give every cell its budget, after measuring steps where time is what is matched. Before the search
        those whose budget it does not change, behind it the others."""
        budget = self.plan.options.budget
        if budget is None:
            return
        names = [axis.name for axis in self.plan.axes if not axis.repeats]

        def row_of(cell: Cell) -> tuple[str, ...]:
            return tuple(cell.labels[name] for name in names)

        rows: dict[tuple[str, ...], list[CellState]] = {}
        for state in self.states:
            if state.status == "queued" and self.plan.matched_first(state.cell) != searched:
                rows.setdefault(row_of(state.cell), []).append(state)
        times = (
            self._probe({key: states[0] for key, states in rows.items()}, budget.probe_steps)
            if budget.match == "time"
            else {}
        )
        if self.stopped:
            return
        for states in rows.values():
            try:
                budget_of_row = match_budget(
                    self.plan,
                    states[0].cell,
                    lambda cell, more: self.recipe_of(self.states[cell.number - 1], more),
                    lambda cell: times.get(row_of(cell)),
                )
            except (UnmatchedBudgetError, ConfigIssues) as error:
                for state in states:
                    state.status, state.message = "refused", f"its budget cannot be matched: {error}"
                continue
            for state in states:
                state.matched = budget_of_row

    def _probe(self, rows: Mapping[tuple[str, ...], CellState], steps: int) -> dict[tuple[str, ...], float]:
        """Seconds of a step of each row, measured on its first cell."""
        names = {f"probe/{state.cell.number:02d}": key for key, state in rows.items()}
        recipes: dict[str, Recipe] = {}
        for name, key in names.items():
            with suppress(ConfigIssues):
                recipes[name] = self.plan.probe(rows[key].cell, rows[key].chosen, steps)
        times: dict[tuple[str, ...], float] = {}
        for name, ended in self._do(
            recipes, {name: {**rows[key].cell.labels, "measured": f"{steps} steps"} for name, key in names.items()}
        ):
            key = names[name]
            seconds = (
                measured_seconds(self.folder / name, self.plan.budgeted(rows[key].cell))
                if ended.code == EXIT_DONE
                else None
            )
            if seconds is not None:
                times[key] = seconds
        return times

    def run(self) -> None:
        """Run every cell that can run."""
        waiting = {state.cell.folder: state for state in self.states if state.status == "queued"}
        recipes: dict[str, Recipe] = {}
        for name, state in waiting.items():
            try:
                recipes[name] = self.recipe_of(state)
            except ConfigIssues as error:  # the values fit the trials, but not the whole cell
                state.status, state.message = "refused", str(error)
        for state in self.states:
            if state.status in ("refused", "failed"):
                self._emit(state.cell.folder, state.status, state.cell.labels, message=state.message)
        for name, ended in self._do(recipes, {name: state.cell.labels for name, state in waiting.items()}):
            state = waiting[name]
            state.status, state.message, state.seconds = _status(ended), ended.message, ended.seconds

    def _do(
        self, recipes: Mapping[str, Recipe], labels: Mapping[str, Mapping[str, str]]
    ) -> Iterator[tuple[str, RunEnd]]:
        """Do runs by name, yielding each as it ends; what is complete already ends at once."""
        left = []
        for name, recipe in recipes.items():
            if self.stopped:
                return
            folder = self.folder / name
            try:
                reused = is_complete(recipe, folder, self.processes)
            except Exception:  # the run itself says what is wrong, in full
                reused = False
            if reused:
                self._emit(name, "reused", labels[name])
                yield name, RunEnd(name, EXIT_DONE, 0.0, reason="reused")
                continue
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / "recipe.yaml", recipe.to_yaml())
            left.append((name, folder))
        for ended in self.workers.do(
            left if len(self.workers.slots) < 2 else _one_of_each_first(left, recipes),
            started=lambda name: self._emit(name, "running", labels[name]),
            warn=lambda message: self.events.emit("warning", message=message),
        ):
            self._emit(
                ended.name, _status(ended), labels[ended.name], message=ended.message, seconds=round(ended.seconds, 3)
            )
            yield ended.name, ended

    def _emit(self, name: str, status: str, labels: Mapping[str, str], **more: Any) -> None:
        self.events.emit(
            "cell",
            cell=name,
            status=status,
            labels=dict(labels),
            **{key: value for key, value in more.items() if value},
        )

    def exit_code(self) -> int:
        """0 when every cell is done or refused, 75 after a stop, else 1."""
        if self.stopped or any(state.status in ("queued", "stopped") for state in self.states):
            return EXIT_STOPPED
        failed = any(state.status == "failed" for state in self.states)
        bad = any(
            each.status == "failed" and each.reason != BAD_TRIAL for trials in self.tried.values() for each in trials
        )
        return EXIT_FAILED if failed or bad else EXIT_DONE


def _status(ended: RunEnd) -> str:
    if ended.code == EXIT_DONE:
        return "reused" if ended.reason == "reused" else "done"
    if ended.code == EXIT_STOPPED:
        return "stopped"
    return "refused" if ended.code == EXIT_USAGE or ended.reason == REFUSED else "failed"


def _one_of_each_first(runs: list[tuple[str, Path]], recipes: Mapping[str, Recipe]) -> list[tuple[str, Path]]:
    """The runs in an order in which those side by side train different things first, where they can: two that begin
    with the same training, a pretraining for instance, wait for one of them."""
    first: list[tuple[str, Path]] = []
    rest: list[tuple[str, Path]] = []
    seen: set[str] = set()
    for run in runs:
        recipe = recipes[run[0]]
        trained = [stage for stage in recipe.stages if stage.trains]
        shared = same_work(recipe, trained[0]) if len(trained) > 1 else run[0]
        (rest if shared in seen else first).append(run)
        seen.add(shared)
    return [*first, *rest]


def _kept(count: int, halving: JSONObject, rung: int) -> int:
    """How many of `count` values go on from a rung: n·b/b', rounded up."""
    [budgets] = halving.values()
    return max(1, -int(-count * budgets[rung - 1] // budgets[rung]))


def run_study(
    plan: StudyRecipe,
    folder: Path,
    parallel: int | None,
    source: JSONObject,
    stop: StopSignal | None = None,
    workers: Workers | None = None,
    server: ForkServer | None = None,
) -> int:
    """Do what a study asks for; returns the exit code.

    `source` says where it came from, for its manifest; `workers` do the runs, by default as processes of their own,
    forked from `server` where there is one.
    """
    if parallel is not None and parallel < 1:
        raise CommandError(f"--parallel is {parallel}, must be at least 1")
    stop = stop or StopSignal()
    try:
        with _opened(folder, plan), stop_on_signals(stop), stop.deferred():
            processes = plan.recipe.launch.num_processes
            study = Study(
                plan,
                folder,
                workers or Workers(slots(parallel, processes), stop, server),
                1 if processes == "auto" else int(processes),
            )
            return _through(study, source)
    except OSError as error:
        raise understood(error) from error


def _through(study: Study, source: JSONObject) -> int:
    began, events = time.monotonic(), study.events
    manifest = {
        "finery": version("finery"),
        "name": study.plan.recipe.name,
        "started": datetime.now(UTC).isoformat(),
        "working_folder": str(Path.cwd()),
        **source,
        "versions": fingerprints.versions(),
        "hardware": hardware.describe(),
        "slots": len(study.workers.slots),
        "cells": len(study.states),
        "searched": len(study.plan.groups),
    }
    write_json(study.folder / "manifest.json", manifest)
    events.emit(
        "started",
        name=study.plan.recipe.name,
        cells=len(study.states),
        trials=sum(len(each.grid) * len(each.repeats) for each in study.plan.groups),
    )
    try:
        study.match(searched=False)
        if not study.stopped:
            study.search()
        if not study.stopped:
            study.match(searched=True)
        if not study.stopped:
            study.run()
        code = study.exit_code()
        seconds = round(time.monotonic() - began, 3)
        write_results(study, code, seconds)
    except BaseException as error:
        failure = understood(error) if isinstance(error, Exception) else error
        events.emit("failed", message=str(failure), reason=getattr(failure, "reason", "internal"))
        if isinstance(failure, FineryError) and failure is not error:
            raise failure from error
        raise
    write_json(
        study.folder / "manifest.json",
        manifest | {"finished": datetime.now(UTC).isoformat(), "wall_time": seconds, "exit_code": code},
    )
    if code == EXIT_STOPPED:
        events.emit("stopped", message="the study stopped; what is done is kept", reason="stopped")
    elif code == EXIT_FAILED:
        failed = sum(state.status == "failed" for state in study.states)
        events.emit("failed", message=f"{failed} of {len(study.states)} cells failed", reason="internal")
    else:
        events.emit("finished", seconds=seconds)
    return code


@contextmanager
def _opened(folder: Path, plan: StudyRecipe) -> Iterator[None]:
    """The study's folder, other writers kept out, the resolved recipe in it."""
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder / ".lock", wait=False):
        write_text(folder / "recipe.yaml", plan.recipe.to_yaml())
        yield
