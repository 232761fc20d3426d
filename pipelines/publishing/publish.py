"""The publish stage: requirements, a complete folder, the proof that it scores as measured, and its destination."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from pipelines.core.config import ConfigIssue, ConfigIssues, show
from pipelines.core.costs import Planning, StagePlan
from pipelines.core.errors import DiskFull, PublishError
from pipelines.core.files import JSONObject, finite, read_json, write_bytes
from pipelines.core.recipe import START, Recipe, Stage
from pipelines.core.registry import EXPORTS, nearest
from pipelines.core.results import MARKER, BenchmarkScores, scores_of_model
from pipelines.core.scores import bounds
from pipelines.core.yaml_positions import write_yaml
from pipelines.models.heads import HEAD_CLASSES
from pipelines.publishing import provenance, signature
from pipelines.publishing.assemble import assemble, is_adapter, read_head
from pipelines.publishing.card import card, made_by
from pipelines.publishing.curves import write_curves
from pipelines.publishing.destinations.destination import (
    SUMS,
    Destination,
    destination_of,
    kind_of,
    marker_bytes,
    marker_in,
    write_sums,
)
from pipelines.publishing.exports.beside import export_beside
from pipelines.publishing.exports.export import missing
from pipelines.publishing.footprint import Price, footprint_of
from pipelines.publishing.hub_metadata import EVAL_RESULTS, evaluation_results
from pipelines.publishing.learnt_data import data_of
from pipelines.publishing.provenance import manifest_of
from pipelines.publishing.requirements import (
    OPERATORS,
    Requirement,
    evaluations,
    metrics_of,
    parse,
    scored_before,
)
from pipelines.publishing.sources import portable, renamed, without_folders
from pipelines.publishing.verify import prove

if TYPE_CHECKING:
    from pipelines.core.interfaces import Context
    from pipelines.evaluation.outcomes import Outcomes
    from pipelines.publishing.verify import Proof

ASSEMBLED = "assembled"
CONTENTS = 3
"""What a publication holds: since 2, what others verify and make it again with; since 3, its outcomes on each
example, and its data with their licences, energy, costs and curves. An older one is published again."""


def _require(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ConfigIssues([((), f"is {show(value)}, must be a mapping such as {{glue/mrpc.f1: '>= 0.80'}}")])
    issues: list[ConfigIssue] = []
    for path, comparison in value.items():
        try:
            parse(path, comparison)
        except ValueError as error:
            issues.append(((path,), str(error)))
    if issues:
        raise ConfigIssues(issues)
    return dict(value)


class Publish(Stage):
    """Put a trained model, with its card, scores, recipe and checksums, where others can load it."""

    recipe_examples: ClassVar[tuple[str, ...]] = (
        "{stage: publish, to: registry/model}",
        "{stage: publish, to: registry/model, merge: false}",
        "{stage: publish, to: registry/model, price_per_hour: 2.5, currency: EUR}",
    )
    stage: Literal["publish"] = "publish"
    to: str = Field(min_length=1)
    """A folder, an fsspec URL such as `s3://bucket/name`, or `hub:owner/name`."""
    require: Annotated[
        dict[str, str],
        BeforeValidator(_require),
        WithJsonSchema(
            {
                "type": "object",
                "additionalProperties": {"type": "string", "pattern": rf"^\s*({'|'.join(OPERATORS)})\s*[-+.\d]"},
            }
        ),
    ] = Field(default_factory=dict)
    """What the model must score: `{"glue/mrpc.f1": ">= 0.80"}`. All of them must hold, or nothing is published."""
    merge: bool | None = None
    """Publish an adapter merged into its base, or, `false`, with its base in `base/`. Default: merged where its
    method can be."""
    bake: bool = False
    """Publish an adapter that cannot be merged as part of the model's own code: one folder, one `from_pretrained`."""
    private: bool = True
    """Whether a repository on the Hub is private."""
    license: str | None = Field(None, pattern=r"^[a-z0-9][a-z0-9.+-]*$")
    """The model's licence by its identifier on the Hub, such as `apache-2.0`. Default: the card names none."""

    export: tuple[Annotated[str, WithJsonSchema({"enum": list(EXPORTS)})], ...] = ()
    """Other forms to write into the publication, each in a folder of its name and scored once more: `onnx`, `gguf`,
    `int8`, `int4`. An adapter is merged in them."""
    price_per_hour: float | None = Field(None, ge=0)
    """What an hour of the machine costs, for the card: it then says what the job cost. Default: the card says hours."""
    currency: str = Field("USD", pattern=r"^[A-Z]{3}$")
    """The currency of `price_per_hour`, by its code of three letters."""

    joins: ClassVar[bool] = False
    trains: ClassVar[bool] = False

    def check(self, recipe: Recipe, position: int) -> Iterable[ConfigIssue]:
        mistake = kind_of(self.to).mistake(self.to)
        if mistake:
            yield ("to",), mistake
        source = recipe.model_of(self)
        owner = source.partition("/")[0]
        trained = next((stage for stage in recipe.stages[:position] if stage.id == owner and stage.trains), None)
        yield from self._unfit_exports(recipe, trained)
        if not any(stage.trains for stage in recipe.stages[:position]):
            yield (
                (),
                "has nothing to publish: no earlier stage trains a model; add a pretrain or supervised stage before it",
            )
            return
        if trained is not None and trained.subjects() and source not in trained.subjects():
            yield ("from",), f"'{source}' leaves a model for each task; name one: {', '.join(trained.subjects())}"
            return
        if trained is None:
            if source == START or any(stage.id == source for stage in recipe.stages[:position]):
                allowed = ", ".join(stage.id for stage in recipe.stages[:position] if stage.trains)
                yield ("from",), f"'{source}' is no stage that trains a model. Allowed: {allowed}"
            return
        yield from self._unfit_for(trained)
        scored = scored_before(recipe, position)
        for requirement in self._requirements():
            reason = _unscored(requirement, recipe, source, scored)
            if reason is None:  # of a task in place the units are known only here
                beside = metrics_of(recipe, requirement.benchmark)
                reason = requirement.out_of_bounds(bounds(requirement.metric, beside)[1])
            if reason:
                yield ("require", requirement.path), reason

    def _unfit_exports(self, recipe: Recipe, trained: Stage | None) -> Iterable[ConfigIssue]:
        """Forms that there are none of, that cannot hold the model, or that this machine has no library for."""
        head = None if trained is None else trained.head_left()
        words = None if recipe.model.architecture is None else recipe.model.shape()
        vocabulary = getattr(getattr(recipe.tokenizer, "train", None), "name", None)
        for position, name in enumerate(self.export):
            if name not in EXPORTS:
                yield ("export", position), EXPORTS.unknown(name)
            elif name in self.export[:position]:
                yield ("export", position), f"'{name}' stands there twice"
            elif name == "gguf" and trained is not None and head is not None and head.kind != "causal_lm":
                yield (
                    ("export",),
                    f"holds gguf, which is for decoders that continue texts, and stage '{trained.id}' leaves a model "
                    f"with the head {head.kind}; write onnx, int8 or int4",
                )
            elif words is not None and (misfit := EXPORTS.load(name).misfit(words, vocabulary)) is not None:
                yield ("export", position), f"is {name}, which {misfit}"
            elif (lacking := missing(EXPORTS.load(name))) is not None:
                yield ("export", position), f"is {name}: {lacking}"

    def _unfit_for(self, trained: Stage) -> Iterable[ConfigIssue]:
        """Ways to publish that the tuner of the stage rules out."""
        tuner = getattr(trained, "tuner", None)
        if self.export and getattr(tuner, "adapts", False) and not getattr(tuner, "merges", True):
            yield (
                ("export",),
                f"is {show(list(self.export))}, but {getattr(tuner, 'name', 'the adapter')} cannot be merged, and "
                "exports hold one model; leave export out",
            )
        if not getattr(tuner, "adapts", False):
            for key, wanted in (("merge", self.merge is False), ("bake", self.bake)):
                if wanted:
                    why = f"stage '{trained.id}' trains every weight and leaves no adapter; leave {key} out"
                    yield (key,), f"is {show(getattr(self, key))}, but {why}"
            return
        assert tuner is not None
        if self.merge and not tuner.merges:
            baked = ", or write bake: true instead" if tuner.merges_into_code else ""
            yield (
                ("merge",),
                f"is true, but {tuner.name} cannot be merged; leave merge out to publish the adapter with its "
                f"base in base/{baked}",
            )
        if self.bake and not tuner.merges_into_code:
            yield (
                ("bake",),
                f"is true, but {tuner.name} {'is merged' if tuner.merges else 'is loaded by PEFT'}; leave bake out",
            )
        elif self.bake and self.merge is False:
            yield ("bake",), "is true, but merge: false asks for an adapter beside its base; leave one of the two out"

    def reads(self, recipe: Recipe) -> tuple[str, ...]:
        """The model's stage, and every earlier evaluate stage."""
        scorers = (stage.id for stage in evaluations(recipe, recipe.stages.index(self)))
        return tuple(dict.fromkeys((recipe.model_of(self), *scorers)))

    def still_there(self, folder: Path) -> bool:
        """Whether the destination still holds, byte for byte, what was published, signed by the key that is named.
        Raises PublishError where that key cannot be used."""
        try:
            record = marker_in((folder / MARKER).read_bytes())
        except OSError:
            return False
        destination = destination_of(self.to, self.private)
        if record is None or record.get("location") != destination.location:
            return False
        if not signature.is_current(record["checksums"]):
            return False
        try:
            return _is_complete(destination.marker(), record["fingerprint"]) and destination.holds(record["checksums"])
        except PublishError:
            # Out of reach is not gone: what is complete here stays complete until somebody can look.
            return True

    def modules(self, recipe: Recipe) -> set[str]:
        return {EXPORTS.module(name) for name in self.export}

    def cost(self, planning: Planning) -> StagePlan:
        stages = [each.id for each in evaluations(planning.recipe, planning.recipe.stages.index(self))]
        again = f", and does {', '.join(stages)} again with each" if stages else ""
        notes = (f"writes {', '.join(self.export)}, opens each{again}; that is not counted",) if self.export else ()
        return StagePlan(self.id, self.stage, notes=notes)

    def run(self, context: Context) -> None:
        """Check, assemble, prove, place, mark."""
        source = context.recipe.model_of(self)
        scorers = [each for each in self.reads(context.recipe) if each != source]
        scores = scores_of_model(source, scorers, context.stage_folders)
        self._refuse_low_scores(scores)
        destination = destination_of(self.to, self.private)
        there = destination.marker()
        if (
            there is not None
            and _is_complete(there, context.fingerprint)
            and signature.is_current(there["checksums"])
            and destination.holds(there["checksums"])
        ):
            context.events.emit("progress", what=f"already published at {destination.location}")
            _mark(context.folder, {**there, "location": destination.location})
            return
        assembled = context.folder / ASSEMBLED
        try:
            publication = self._assemble(context, source, scores, destination, assembled)
            context.events.emit("progress", what=f"publishing to {destination.location}")
            destination.push(assembled, publication)
            _mark(context.folder, {**publication, "location": destination.location})
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull("the disk is full; free some space and run again") from error
            raise
        finally:
            shutil.rmtree(assembled, ignore_errors=True)

    def _requirements(self) -> list[Requirement]:
        return [parse(path, comparison) for path, comparison in self.require.items()]

    def _refuse_low_scores(self, scores: Mapping[str, BenchmarkScores]) -> None:
        metrics = {benchmark: each.metrics for benchmark, each in scores.items()}
        unmet = [reason for each in self._requirements() if (reason := each.unmet(metrics)) is not None]
        if unmet:
            raise PublishError(
                f"nothing was published, because {'; '.join(unmet)}; train better, or lower publish.require"
            )

    def _assemble(
        self,
        context: Context,
        source: str,
        scores: Mapping[str, BenchmarkScores],
        destination: Destination,
        assembled: Path,
    ) -> JSONObject:
        """The complete folder, proven; returns what its marker says."""
        from pipelines.evaluation.outcomes import OUTCOMES, write_outcomes  # numpy, which checks of recipes do without

        trained = context.stage_folders[source] / "model"
        head = read_head(trained)
        tuner = getattr(context.recipe.stage(source), "tuner", None)
        mergeable = is_adapter(trained) and getattr(tuner, "merges", True)
        adapter = is_adapter(trained) and not self.bake and (self.merge is False or not mergeable)
        written = assembled.with_name(f"{ASSEMBLED}.written")
        for place in (assembled, written):
            shutil.rmtree(place, ignore_errors=True)  # left by an attempt that was killed
        try:
            context.events.emit("progress", what="writing the checkpoint")
            code = assemble(context, head, source, written, adapter, self.bake)
            written.rename(assembled)  # moved before it is proven: no file may know where it was written
        finally:
            shutil.rmtree(written, ignore_errors=True)
        auto_class = HEAD_CLASSES[head.kind].auto_class
        proof = prove(context, head, source, assembled, auto_class, mergeable, adapter, scores, code)
        self._report(context, proof)
        exports = export_beside(context, head, source, assembled, self.export, scores)

        history = [stage.id for stage in made_by(context.recipe, self)]
        others = [each for each in self.reads(context.recipe) if each.partition("/")[0] not in history]
        recipe, read, names = portable(context.recipe.plain())
        made = manifest_of(context, [*history, *others], source, scores)
        data = data_of(context.recipe, [context.recipe.stage(each["id"]) for each in made["stages"]], scores)
        took = footprint_of([{"hardware": made.get("hardware"), **each} for each in made["stages"]], self._price())
        manifest = provenance.public(
            {**made, "sources": read, "data": renamed(data, names), "footprint": took, "exports": exports}
        )
        manifest["model"] |= {"head": head.kind, "labels": list(head.labels)}
        write_outcomes(assembled / OUTCOMES, _outcomes(context, scores))
        shown = write_curves(assembled, {each: context.stage_folders[each] for each in history})
        if results := evaluation_results(scores, str(made["started"])[:19] + "Z" if "started" in made else None):
            (assembled / EVAL_RESULTS).parent.mkdir()
            _write(assembled / EVAL_RESULTS, results)
        _write(assembled / "recipe.yaml", write_yaml(provenance.public(recipe)))
        _write(assembled / "manifest.json", json.dumps(finite(manifest), indent=2, ensure_ascii=False) + "\n")
        text = card(
            context.recipe,
            self,
            head,
            assembled,
            destination,
            scores,
            {each: read_json(context.stage_folders[each] / "metrics.json") for each in history},
            proof.plain(),
            manifest,
            self.license,
            self.require,
            shown,
        )
        _write(assembled / "README.md", without_folders(provenance.public(text), names))
        return {
            "name": context.recipe.name,
            "fingerprint": context.fingerprint,
            "to": self.to,
            "contents": CONTENTS,
            "checksums": write_sums(assembled) | signature.sign(assembled / SUMS),
            "verification": proof.plain(),
        }

    def _price(self) -> Price | None:
        return None if self.price_per_hour is None else Price(self.price_per_hour, self.currency)

    def _report(self, context: Context, proof: Proof) -> None:
        plain = proof.plain()
        numbers = {f"verification.{key}": value for key, value in plain.items() if isinstance(value, int | float)}
        context.events.emit("metric", step=proof.rows, metrics=numbers)
        if proof.flips:
            context.events.emit(
                "warning",
                message=f"{proof.flips} of {proof.rows} predictions differ from the evaluation when computed again "
                "in fp32: their two best classes are almost equal",
            )


def _outcomes(context: Context, scores: Mapping[str, BenchmarkScores]) -> list[Outcomes]:
    """How the model did on each example of each benchmark, as far as its evaluate stages left it."""
    from pipelines.evaluation.outcomes import outcomes_of

    outcomes = []
    for benchmark, each in scores.items():
        stage: Any = context.recipe.stage(each.stage)
        choices = {choice.name: choice for choice in stage.choices(context.recipe)[0]}
        if (defined := each.defined()) is not None:
            outcomes.append(outcomes_of(defined, choices.get(benchmark)))
    return [each for each in outcomes if each is not None]


def _unscored(requirement: Requirement, recipe: Recipe, source: str, scored: Mapping[str, set[str]]) -> str | None:
    """Why a requirement could never be looked up."""
    name = requirement.benchmark
    mine = [benchmark for benchmark, models in scored.items() if source in models]
    if name not in scored:
        hint = nearest(name, mine)
        others = ", ".join(mine) or "nothing; add an evaluate stage before"
        return f"no earlier evaluate stage scores '{name}'.{hint} Scored: {others}"
    if source not in scored[name]:
        others = ", ".join(sorted(scored[name]))
        return (
            f"'{name}' is scored on the model of {others}, but this stage publishes the model of '{source}'; "
            f"evaluate it with from: {source}"
        )
    metrics = metrics_of(recipe, name)
    if requirement.metric not in metrics:
        hint = nearest(requirement.metric, metrics)
        return f"'{name}' has no '{requirement.metric}'.{hint} It has: {', '.join(metrics)}"
    return None


def _is_complete(record: JSONObject | None, fingerprint: str) -> bool:
    """Whether a marker speaks of this publication with all that is written today, whoever signed it."""
    wanted = {"complete": True, "fingerprint": fingerprint, "contents": CONTENTS}
    return record is not None and all(record.get(key) == value for key, value in wanted.items())


def _mark(folder: Path, publication: JSONObject) -> None:
    """The stage's own marker, atomically, after the destination's."""
    write_bytes(folder / MARKER, marker_bytes(publication, complete=True))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
