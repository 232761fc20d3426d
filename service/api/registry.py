"""The registry of models: aliases, promotion, comparison of two versions, lineage, restoring what was deleted."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from service.api.context import Caller, Service, ServiceOf, Submitter, Viewer, apart
from service.api.documents import ModelDocument, moment
from service.api.jobs import clean
from service.api.models import documents_of, model_of
from service.api.problems import Problem, described
from service.lineage import lineage_of
from service.promotion import Promotion, alias_named, removable
from service.promotion import promote as move
from service.safety.references import PRODUCTION, parsed
from service.serving.comparing import compared
from service.store.models import ModelName, split_score

router = APIRouter(tags=["models"], responses=described())
Text = Annotated[str, Field(max_length=500, pattern=r"^[^\x00]*$")]
Score = Annotated[str, Field(min_length=3, max_length=400, pattern=r"^[^\x00]+\.[^\x00.]+$")]


class AliasDocument(BaseModel):
    """An alias and the version that it names."""

    alias: str
    version: int
    model: str = Field(description="Id of the version.")
    automatic: bool = Field(description="latest and best set themselves.")
    set_by: str = Field(description="The token that set it.")
    set: datetime | None


class ModelNameDocument(BaseModel):
    """What belongs to a name rather than to one version."""

    name: str
    project: str
    benchmark: str = Field(description="What best goes by and promotions are tested on; empty without a score.")
    metric: str
    aliases: list[AliasDocument]

    @classmethod
    def of(cls, about: ModelName) -> ModelNameDocument:
        return cls(
            name=about.name,
            project=about.project,
            benchmark=about.benchmark,
            metric=about.metric,
            aliases=[
                AliasDocument(
                    alias=each.alias,
                    version=each.version,
                    model=each.model,
                    automatic=each.set is None,
                    set_by=each.set_by,
                    set=moment(each.set),
                )
                for each in about.aliases
            ],
        )


def name_of(service: Service, caller: Caller, reference: str) -> tuple[str, str]:
    """(project, name) of a reference that names something. Raises NotFound."""
    model = model_of(service, caller, parsed(reference)[0])
    return model.project, model.name


@router.get("/models/{name}/aliases", responses=described(404))
def aliases(name: str, service: ServiceOf, caller: Viewer) -> ModelNameDocument:
    """The aliases of a name, and the score that `best` goes by."""
    return ModelNameDocument.of(service.store.model_name(*name_of(service, caller, name)))


class NewAlias(BaseModel):
    """The version that an alias is to name."""

    model_config = ConfigDict(extra="forbid")

    version: int = Field(ge=1, lt=10**9)


@router.put("/models/{name}/aliases/{alias}", responses=described(404, 409))
def set_alias(name: str, alias: str, body: NewAlias, service: ServiceOf, caller: Submitter) -> ModelNameDocument:
    """Have an alias of one's own name a version. `production` is moved by a promotion alone."""
    if alias_named(clean(alias) or "") == PRODUCTION:
        raise Problem(
            409,
            f"'@{PRODUCTION}' is moved by a promotion, which tests the version that it is given.",
            "promote_instead",
        )
    plain = model_of(service, caller, parsed(name)[0]).name
    model = service.store.model(caller.project, f"{plain}@{body.version}")
    return ModelNameDocument.of(service.store.set_alias(model.id, alias, caller.scope))


@router.delete("/models/{name}/aliases/{alias}", responses=described(404))
def remove_alias(name: str, alias: str, service: ServiceOf, caller: Submitter) -> ModelNameDocument:
    """Have an alias name nothing. The next version that is promoted to it is its first, so that `production` is
    removed by admins alone."""
    return ModelNameDocument.of(
        service.store.remove_alias(*name_of(service, caller, name), removable(clean(alias) or "", caller))
    )


class NewBenchmark(BaseModel):
    """The score that a name goes by."""

    model_config = ConfigDict(extra="forbid")

    on: Score = Field(description="`glue/mrpc.f1`: a benchmark, a dot, a metric.")


@router.put("/models/{name}/benchmark", responses=described(404, 409))
def set_benchmark(name: str, body: NewBenchmark, service: ServiceOf, caller: Submitter) -> ModelNameDocument:
    """Name the score that `best` goes by and that promotions are tested on; by default the first one of the newest
    version."""
    benchmark, metric = split_score(body.on)
    return ModelNameDocument.of(service.store.set_benchmark(*name_of(service, caller, name), benchmark, metric))


class NewPromotion(BaseModel):
    """A promotion that is asked for."""

    model_config = ConfigDict(extra="forbid")

    to: str = Field(PRODUCTION, max_length=40, description="The alias.")
    on: Score | None = Field(None, description="The score that is tested; by default the one that the name goes by.")
    reason: Text = Field(
        "", description="Moves the alias whatever the test says; the audit trail keeps it with the figures."
    )


class PromotionDocument(BaseModel):
    """What became of a promotion."""

    model: ModelDocument
    alias: str
    before: int | None = Field(description="The version that the alias named; null where it named none.")
    sentence: str
    figures: dict[str, Any] = Field(
        description="`on`, `score`, `before`, `difference`, `low`, `high`, `p`, `examples`, `verdict`; empty where "
        "nothing had to be tested."
    )


@apart("comparisons", router.post("/models/{name}/promote", responses=described(404, 409, 412, 503)))
def promote(name: str, body: NewPromotion, service: ServiceOf, caller: Submitter) -> PromotionDocument:
    """Have an alias name this version. 412, with the figures, where it is not better beyond noise than the version
    that the alias names."""
    model = model_of(service, caller, name)
    done = move(service, caller, model, Promotion(body.to, body.on or "", body.reason.strip()))
    return PromotionDocument(
        model=ModelDocument.of(model, done.about),
        alias=body.to,
        before=done.before.version if done.before else None,
        sentence=done.sentence,
        figures=done.figures,
    )


class ScoreDifference(BaseModel):
    """The first version's score minus the other's, on the same examples."""

    value: float | None
    low: float | None = Field(description="Lower end of its 95 % interval, by the paired bootstrap.")
    high: float | None
    p: dict[str, float | None] = Field(description="By test: bootstrap, randomisation, mcnemar.")
    verdict: str = Field(
        description="better, worse or inside the noise; a benchmark's first score is corrected (Holm) for all "
        "benchmarks. Empty where no test can be made."
    )
    verdict_alone: str = Field(description="The same of this score by itself, as a promotion is decided.")


class ComparedScore(BaseModel):
    """One score of two versions."""

    model: float | None
    against: float | None
    difference: ScoreDifference | None = Field(description="Null where it cannot be had on single examples.")


class ComparedBenchmark(BaseModel):
    """Two versions on one benchmark."""

    benchmark: str
    same_examples: bool
    examples: int
    mcnemar: dict[str, float | None] | None = Field(description="Answers that one alone gets right.")
    metrics: dict[str, ComparedScore]


class VersionComparison(BaseModel):
    """Two versions of models on the same examples."""

    model: ModelDocument
    against: ModelDocument
    benchmarks: list[ComparedBenchmark]


@apart("comparisons", router.get("/models/{name}/compare", responses=described(404, 409, 503)))
def compare(
    name: str,
    against: Annotated[str, Query(max_length=250, description="A reference, or a version alone: 2.")],
    service: ServiceOf,
    caller: Viewer,
) -> VersionComparison:
    """Two versions, of one model or of two, by the paired tests of `finery compare`. Computed once and kept."""
    model = model_of(service, caller, name)
    other = model_of(service, caller, f"{model.name}@{against}" if against.isdecimal() else against)
    document = compared(service, caller, model, other)
    one, two = documents_of(service, [model, other])
    return VersionComparison(model=one, against=two, benchmarks=document["benchmarks"])


class LineageNodeDocument(BaseModel):
    """One thing that a model comes from, or the model."""

    id: str
    kind: Literal["data", "tokenizer", "start", "stage", "model"]
    title: str
    detail: str
    reads: list[str] = Field(description="Ids of what it was made from.")
    model: str = Field(description="Id of the version of the project's model that it is; empty for anything else.")


class LineageDocument(BaseModel):
    """Everything that led to a version, what is read before what reads it, and what was made from it."""

    nodes: list[LineageNodeDocument]
    children: list[ModelDocument]


@apart("readings", router.get("/models/{name}/lineage", responses=described(404)))
def lineage(name: str, service: ServiceOf, caller: Viewer) -> LineageDocument:
    """Data, tokenizer, the model that it began with, and the stages that made a version."""
    found = lineage_of(service.store, model_of(service, caller, name))
    return LineageDocument(
        nodes=[LineageNodeDocument.model_validate(vars(node) | {"reads": list(node.reads)}) for node in found.nodes],
        children=documents_of(service, found.children),
    )


@router.post("/models/{name}/restore", responses=described(404))
def restore(name: str, service: ServiceOf, caller: Submitter) -> ModelDocument:
    """Bring back the version that a reference with its number names, or the one of the name that was deleted last."""
    return documents_of(service, [service.store.restore_model(caller.project, clean(name) or "")])[0]
