"""A study, in the order it happens: search each method's values, run every cell, put the results side by side.

A study's folder holds its cells as ordinary run folders. What is complete is recognised by its fingerprints and reused,
so a study that was stopped, killed or changed continues with what is missing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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
from pipelines.studies.workers import RunEnd, WaitingRun, Workers, is_complete, slots

REFUSED = "misfit"
"""The reason of a run that cannot be done with its model: refused, not failed."""
BAD_TRIAL = "diverged"
"""The reason of a trial that only shows that its values are bad ones."""
Runs = dict[str, tuple[Recipe, Mapping[str, str]]]
"""Runs to do by name, each with its labels."""


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
        """Find the values of each group by its trials, rung by rung. Beside the last rung the cells run whose values
        are known by then, so that nothing waits for the trials of another group."""
        search = self.plan.options.search
        if search is None:
            return
        seeds = [axis.name for axis in self.plan.axes if axis.repeats]
        budgets = rungs(search)
        survivors = {group.number: list(range(len(group.grid))) for group in self.plan.groups}
        for rung, budget in enumerate(budgets, start=1):
            last = rung == len(budgets)
            trials: dict[str, tuple[CellGroup, Trial, Cell]] = {}
            for group in self.plan.groups:
                for at in survivors[group.number]:
                    name = f"search/{group.number:02d}-{at + 1:02d}" + (f"-{rung}" if len(budgets) > 1 else "")
                    trial = Trial(name, rung, at, group.grid[at])
                    self.tried.setdefault(group.number, []).append(trial)
                    for number, cell in enumerate(group.repeats, start=1):
                        trials[name if number == 1 else f"{name}-seed{number}"] = (group, trial, cell)
            runs: Runs = {}
            for name, (group, trial, cell) in trials.items():
                labels = {**group.labels, "trial": told(trial.values)}
                if len(group.repeats) > 1:
                    labels |= {seed: cell.labels[seed] for seed in seeds}
                runs[name] = self.plan.trial(group, trial.values, budget, cell, self._matched(cell)), labels
            open_trials = Counter(group.number for group, _, _ in trials.values())
            if last:
                runs |= self._ready(state for state in self.states if self.plan.group_of(state.cell) is None)
            for name, ended in self._do(runs):
                if name not in trials:
                    self._cell_ended(name, ended)
                    continue
                group, trial, _ = trials[name]
                trial.ended(_status(ended), ended.message, ended.reason)
                if ended.code == EXIT_DONE:
                    trial.measured(*score_of(self.folder / name, runs[name][0].stages[-1].id, search.metric))
                open_trials[group.number] -= 1
                if last and not open_trials[group.number] and not self.stopped:
                    self._choose(group)
                    runs |= self._ready(self._states_of(group))
            if self.stopped:
                return
            if not last:
                for group in self.plan.groups:
                    order = ranked([each for each in self.tried[group.number] if each.rung == rung])
                    keep = _kept(len(survivors[group.number]), search.halving or {}, rung)
                    survivors[group.number] = [each.at for each in order[:keep]]

    def _matched(self, cell: Cell) -> Values:
        """What matches the budget of a cell, as far as it is known."""
        matched = self.states[cell.number - 1].matched
        return matched.values if matched is not None else {}

    def _states_of(self, group: CellGroup) -> list[CellState]:
        """The cells that run with what a search finds."""
        return [
            state
            for state in self.states
            if not state.cell.refusal and group.labels.items() <= state.cell.labels.items()
        ]

    def _choose(self, group: CellGroup) -> None:
        last = max(each.rung for each in self.tried[group.number])
        order = ranked([each for each in self.tried[group.number] if each.rung == last])
        mine = self._states_of(group)
        broken = [each for each in self.tried[group.number] if each.status == "failed" and each.reason != BAD_TRIAL]
        if broken or not order:  # a choice from fewer trials than the others had would not be a fair one
            reasons = "; ".join(
                dict.fromkeys(each.message for each in broken or self.tried[group.number] if each.message)
            )
            refused = all(each.status == "refused" for each in self.tried[group.number])
            why = "a trial of its search failed" if broken else "no trial of its search gave a score"
            for state in mine:
                self._give_up(state, *(("refused", reasons) if refused else ("failed", f"{why}: {reasons}")))
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
                    self._give_up(state, "refused", f"its budget cannot be matched: {error}")
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
            {
                name: (recipe, {**rows[names[name]].cell.labels, "measured": f"{steps} steps"})
                for name, recipe in recipes.items()
            }
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
        """Run every cell that can run and has not."""
        for state in self.states:
            if state.cell.refusal:
                self._emit(state.cell.folder, state.status, state.cell.labels, message=state.message)
        for name, ended in self._do(self._ready(self.states)):
            self._cell_ended(name, ended)

    def _ready(self, states: Iterable[CellState]) -> Runs:
        """Those cells that have not run and have all that they need."""
        ready: Runs = {}
        for state in states:
            if state.status == "queued" and (self.plan.options.budget is None or state.matched is not None):
                try:
                    ready[state.cell.folder] = self.recipe_of(state), state.cell.labels
                except ConfigIssues as error:  # the values fit the trials, but not the whole cell
                    self._give_up(state, "refused", str(error))
        return ready

    def _cell_ended(self, name: str, ended: RunEnd) -> None:
        state = next(each for each in self.states if each.cell.folder == name)
        state.status, state.message, state.seconds = _status(ended), ended.message, ended.seconds

    def _give_up(self, state: CellState, status: str, message: str) -> None:
        """A cell that cannot run."""
        state.status, state.message = status, message
        self._emit(state.cell.folder, status, state.cell.labels, message=message)

    def _do(self, runs: Runs) -> Iterator[tuple[str, RunEnd]]:
        """Do runs, yielding each as it ends; what is complete already ends at once. `runs` may grow meanwhile."""
        seen: set[str] = set()
        queue: list[WaitingRun] = []

        def admitted() -> Iterator[tuple[str, RunEnd]]:
            while new := [name for name in runs if name not in seen]:
                for name in new:
                    if self.stopped:
                        return
                    seen.add(name)
                    recipe, labels = runs[name]
                    folder = self.folder / name
                    try:
                        reused = is_complete(recipe, folder, self.processes)
                    except Exception:  # the run itself says what is wrong, in full
                        reused = False
                    if reused:
                        self._emit(name, "reused", labels)
                        yield name, RunEnd(name, EXIT_DONE, 0.0, reason="reused")
                        continue
                    folder.mkdir(parents=True, exist_ok=True)
                    write_text(folder / "recipe.yaml", recipe.to_yaml())
                    queue.append(WaitingRun(name, folder, _shared_training(recipe)))

        yield from admitted()
        for ended in self.workers.do(
            queue,
            started=lambda name: self._emit(name, "running", runs[name][1]),
            warn=lambda message: self.events.emit("warning", message=message),
        ):
            self._emit(
                ended.name, _status(ended), runs[ended.name][1], message=ended.message, seconds=round(ended.seconds, 3)
            )
            yield ended.name, ended
            yield from admitted()

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


def _shared_training(recipe: Recipe) -> str:
    """What the first training of a run is: other runs may begin with the same one. Empty where none is trained."""
    first = next((stage for stage in recipe.stages if stage.trains), None)
    return "" if first is None else same_work(recipe, first)


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
