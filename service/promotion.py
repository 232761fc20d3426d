"""Promotion: an alias moves to another version of a model only where that is better beyond noise, or with a reason.

The first version that an alias names is free. After it, a version must be better than the one that the alias names, on
one named score, by the paired bootstrap on the same examples: the 95 % interval of the difference leaves out zero, and
p is at most 0.05. It is one test that was chosen before, so nothing is corrected. A reason moves the alias all the
same, which is how one goes back; the trail keeps the reason beside the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.api.context import Caller, Service
from service.api.problems import Problem
from service.safety.references import ALIAS, AUTOMATIC, PRODUCTION
from service.serving.comparing import compared
from service.store.errors import NotFound
from service.store.models import ModelName, PublishedModel, score_of, split_score

BETTER = "better"


@dataclass(frozen=True)
class Promotion:
    """What was asked."""

    to: str = PRODUCTION
    on: str = ""
    """`glue/mrpc.f1`; empty for the score that the name's `@best` goes by."""
    reason: str = ""
    """Given where the alias is to move whatever the test says."""


@dataclass(frozen=True)
class Promoted:
    """What became of it."""

    about: ModelName
    before: PublishedModel | None
    """What the alias named; None where it named nothing."""
    sentence: str
    figures: Mapping[str, Any]
    """As the trail keeps them."""


def alias_named(alias: str, setting: bool = True) -> str:
    """An alias that people may set. Raises Problem."""
    if alias in AUTOMATIC and setting:
        hint = "; name the score that it goes by instead (PUT /api/v1/models/NAME/benchmark)" if alias == "best" else ""
        raise Problem(422, f"'@{alias}' sets itself{hint}.", "automatic_alias")
    if ALIAS.fullmatch(alias) is None:
        raise Problem(
            422, f"'{alias}' is no alias: small letters, digits, '-' and '_', a letter first, 40 at most.", "bad_alias"
        )
    return alias


def removable(alias: str, caller: Caller) -> str:
    """An alias that the caller may have name nothing. Raises Problem."""
    if alias_named(alias) == PRODUCTION and caller.role != "admin":
        raise Problem(
            403,
            f"Only an admin removes '@{PRODUCTION}': then any version would be its first, without a test; promote "
            "another version instead.",
            "forbidden",
        )
    return alias


def promote(service: Service, caller: Caller, model: PublishedModel, wanted: Promotion) -> Promoted:
    """Have an alias name this version, if it may. Raises Problem 412 with the figures where it is not better beyond
    noise, and other Problems."""
    alias = alias_named(wanted.to)
    store = service.store
    about = store.model_name(model.project, model.name)
    holder = next((each for each in about.aliases if each.alias == alias), None)
    if holder is None:
        made = store.set_alias(model.id, alias, caller.scope, promotion=_kept({}, wanted))
        return Promoted(made, None, f"{model.name}@{alias} names version {model.version}, its first.", {})
    before = store.model_by_id(holder.model, model.project)
    if before.id == model.id:
        sentence = f"{model.name}@{alias} names version {model.version} already."
        return Promoted(about, before, sentence, {})
    figures, sentence = _tested(service, caller, model, before, alias, about, wanted)
    made = store.set_alias(model.id, alias, caller.scope, expect=before.id, promotion=_kept(figures, wanted))
    return Promoted(made, before, sentence, figures)


def _tested(
    service: Service,
    caller: Caller,
    model: PublishedModel,
    before: PublishedModel,
    alias: str,
    about: ModelName,
    wanted: Promotion,
) -> tuple[dict[str, Any], str]:
    """The figures and what they say. Raises Problem where that is not enough and no reason is given."""
    moved = f"{model.name}@{alias} moves from version {before.version} to {model.version}"
    try:
        benchmark, metric = _score(model, before, about, wanted)
        figures = figures_of(compared(service, caller, model, before), model, before, benchmark, metric)
    except (Problem, NotFound) as problem:
        if not wanted.reason:
            raise
        return {"untested": str(problem)}, f"{moved}, untested, because: {wanted.reason}"
    told = said(figures)
    if figures["verdict"] == BETTER:
        return figures, f"{moved}: {told}."
    if wanted.reason:
        return figures, f"{moved} although {told}, because: {wanted.reason}"
    refused = Problem(
        412,
        f"'{model.reference}' is not better beyond noise than '{before.reference}', which '@{alias}' names: {told}. "
        "Promote another version, or give a reason (--force REASON).",
        "not_better",
    )
    refused.members = {"figures": figures}
    raise refused


def _score(model: PublishedModel, before: PublishedModel, about: ModelName, wanted: Promotion) -> tuple[str, str]:
    """The score that is tested. Raises Problem."""
    benchmark, metric = split_score(wanted.on) if wanted.on else (about.benchmark, about.metric)
    known = sorted(
        f"{of}.{each}"
        for of, values in model.scores.items()
        if isinstance(values, Mapping)
        for each in values
        if score_of(before, of, each) is not None
    )
    if not benchmark or f"{benchmark}.{metric}" not in known:
        asked = f"'{benchmark}.{metric}' is not a score of both" if benchmark else "no score is named"
        raise Problem(
            409,
            f"{asked}; '{model.reference}' and '{before.reference}' share: {', '.join(known) or 'none'}.",
            "no_such_score",
        )
    return benchmark, metric


def figures_of(
    document: Mapping[str, Any], model: PublishedModel, before: PublishedModel, benchmark: str, metric: str
) -> dict[str, Any]:
    """The figures of one score, by which a promotion is decided. Raises Problem where they could not be tested."""
    section = next((each for each in document["benchmarks"] if each["benchmark"] == benchmark), None)
    row = None if section is None else section["metrics"].get(metric)
    difference = None if row is None else row["difference"]
    if section is None or row is None or difference is None or not difference["verdict_alone"]:
        why = (
            "they were scored on other examples"
            if section is not None and not section["same_examples"]
            else "this score cannot be had again from single examples"
        )
        raise Problem(
            409,
            f"'{model.reference}' and '{before.reference}' cannot be tested on {benchmark} {metric}: {why}; evaluate "
            "both on the same split, or name another score.",
            "not_tested",
        )
    return {
        "on": f"{benchmark}.{metric}",
        "score": row["model"],
        "before": row["against"],
        "difference": difference["value"],
        "low": difference["low"],
        "high": difference["high"],
        "p": difference["p"].get("bootstrap"),
        "examples": section["examples"],
        "verdict": difference["verdict_alone"],
    }


def said(figures: Mapping[str, Any]) -> str:
    """The figures in words: `glue/mrpc.f1 0.812 against 0.806, +0.006 (-0.010 to +0.021), p 0.48, inside the noise`."""
    p_value = figures["p"]
    shown = "< 0.001" if p_value is not None and p_value < 0.001 else f"{p_value:.3f}" if p_value is not None else "?"
    return (
        f"{figures['on']} {figures['score']:.4g} against {figures['before']:.4g}, {figures['difference']:+.3f} "
        f"(95 % interval {figures['low']:+.3f} to {figures['high']:+.3f}), paired bootstrap p {shown} on "
        f"{figures['examples']} examples, {figures['verdict']}"
    )


def _kept(figures: Mapping[str, Any], wanted: Promotion) -> dict[str, Any]:
    """What the trail says of it."""
    return {**figures, "forced": bool(wanted.reason), "reason": wanted.reason or None}
