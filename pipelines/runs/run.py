"""The story of a run, in the order it happens: the only file that sees every stage.

`run` makes the tokenizer and each stage, or reuses what is complete. A stage on several processes is started by
`distributed.run_ranks`; each of them calls `run_rank`, which does its share and leaves an error for the driver.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    DataError,
    FineryError,
    IncompatibleError,
    StageError,
    Stopped,
    Unforeseen,
    understood,
)
from pipelines.core.events import read_events
from pipelines.core.files import read_json
from pipelines.core.interfaces import PROFILE, Context, Precision, Profile, World
from pipelines.core.launch import BY_DEEPSPEED
from pipelines.core.load import load as load_recipe
from pipelines.core.load import refuse_study
from pipelines.core.recipe import START, TOKENIZER, Model, Recipe, Stage
from pipelines.core.shared_bases import base_of
from pipelines.core.signals import StopSignal, stop_on_signals
from pipelines.data import stage_files
from pipelines.models import stage_models, tokenizer
from pipelines.models.checkpoint_content import checkpoint_content, commit_of
from pipelines.models.stage_models import StageModels
from pipelines.runs import distributed, fingerprints, hardware
from pipelines.runs.distributed import hosts
from pipelines.runs.hardware import EnergyCounter
from pipelines.runs.workspace import RunFolder, StageStore

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def run(recipe: Recipe, folder: Path, store: StageStore | None = None, stop: StopSignal | None = None) -> Path:
    """Do what the recipe describes, stage by stage; returns the run folder. Raises FineryError after telling the
    events."""
    refuse_study(recipe, str(folder))
    stop = stop or StopSignal()
    job = RecipeRun(recipe, RunFolder(folder, store or StageStore()), stop)
    try:
        with job.place.open(recipe.to_yaml()), stop_on_signals(stop):
            started = time.monotonic()
            try:
                job.begin()
                job.refuse_what_is_lacking()
                job.make_tokenizer()
                for position, stage in enumerate(recipe.stages, start=1):
                    job.do(position, stage)
                job.finish(time.monotonic() - started)
            except BaseException as error:
                failure = job.fail(error)
                if failure is error:
                    raise
                raise failure from error
    except OSError as error:  # the run folder or the home itself: there is no place for an event
        raise understood(error) from error
    return folder


@dataclass
class RecipeRun:
    """A recipe on its way through its stages."""

    recipe: Recipe
    place: RunFolder
    stop: StopSignal
    at: str | None = None
    """Id of the stage being worked on."""
    folders: dict[str, Path] = field(default_factory=dict)
    """Folders of the complete stages, by id."""
    fingerprints: dict[str, str] = field(default_factory=dict)
    """Fingerprints, by stage id."""
    energy: dict[str, EnergyCounter] = field(default_factory=dict)
    """The counters of energy when the run began."""

    @cached_property
    def processes(self) -> int:
        """How many processes a stage runs on."""
        return hardware.processes(self.recipe.launch.num_processes)

    @cached_property
    def profile(self) -> Profile:
        """How the processes of a stage share its training."""
        return self.profile_and_why[0]

    @cached_property
    def profile_and_why(self) -> tuple[Profile, str]:
        """The profile, and why it is that one where the recipe leaves it open."""
        from pipelines.runs.planning.plan import profile_of

        return profile_of(self.recipe, self.processes, self.precision)

    @cached_property
    def precision(self) -> Precision:
        """`no`, `bf16` or `fp16`."""
        return hardware.precision(self.recipe.launch.mixed_precision)

    @cached_property
    def start(self) -> Model:
        """The recipe's model at the commit that its revision stands for now: one run reads one state of a
        repository."""
        own = self.recipe.model
        if own.checkpoint is None:
            return own
        if (adapted := base_of(Path(own.checkpoint))) is not None and not Path(adapted).is_dir():
            commit_of(adapted, read_json(Path(own.checkpoint) / "adapter_config.json").get("revision"))
        commit = _commit(own.checkpoint, own.revision)
        return own if commit == own.revision else own.model_copy(update={"revision": commit})

    @cached_property
    def special_tokens(self) -> list[str]:
        """Tokens that the stages need of a trained tokenizer, beside the usual ones."""
        return list(dict.fromkeys(token for stage in self.recipe.stages for token in stage.special_tokens()))

    @cached_property
    def segments(self) -> bool:
        """Whether the tokenizer tells the two texts of a pair apart: a checkpoint's own does what it did."""
        return self.recipe.model.architecture is None or tokenizer.has_segments(self.recipe.model.shape())

    def begin(self) -> None:
        """The manifest's first lines, and the event that opens the run."""
        self.energy = hardware.energy_counters()
        self.place.prune(
            {f"stages/{number:02d}-{stage.id}" for number, stage in enumerate(self.recipe.stages, start=1)}
        )
        self.place.manifest = {
            "finery": version("finery"),
            "name": self.recipe.name,
            "started": datetime.now(UTC).isoformat(),
            "working_folder": str(Path.cwd()),
            "versions": fingerprints.versions(),
            "hardware": hardware.describe(),
            "launch": {
                "profile": self.profile,
                "num_processes": self.processes,
                "mixed_precision": self.precision,
            },
            "stages": [],
        }
        self.place.save_manifest()
        self.place.events.emit("started", name=self.recipe.name, stages=[stage.id for stage in self.recipe.stages])
        for sentence in [*self.recipe.doubts(), *hardware.doubts(self.precision)]:
            self.place.events.emit("warning", message=sentence)
        if why := self.profile_and_why[1]:
            self.place.events.emit("progress", message=f"launch.profile auto is {self.profile}: {why}")

    def refuse_what_is_lacking(self) -> None:
        """Raise Misfit when a stage needs what this machine has not got, before the stages ahead of it take their
        time."""
        asked, here = self.recipe.launch.hosts, hosts().count
        if asked is not None and asked != here:
            raise IncompatibleError(
                f"the recipe's launch.hosts is {asked}, and this run was started on {here}; start it "
                f"on each of {asked} hosts "
                "as docs/how-to/several-hosts.md says, or leave launch.hosts out"
            )
        if self.profile != "single" and self.processes == 1:
            raise IncompatibleError(
                f"the profile {self.profile} needs at least 2 processes, and launch.num_processes: auto is 1 here, "
                "one for each GPU; write a number, or the profile single"
            )
        if self.profile in BY_DEEPSPEED and (lacking := hardware.lacking_for_deepspeed()) is not None:
            raise IncompatibleError(f"the profile {self.profile} {lacking}")
        for stage_id, sentence in self.recipe.lacking():
            self.at = stage_id
            raise IncompatibleError(sentence)

    def make_tokenizer(self) -> None:
        """Train the tokenizer, or copy the pretrained one; reused like a stage."""
        self.at = TOKENIZER
        wanted = self.recipe.tokenizer
        if wanted is not None and wanted.train is None:
            source = str(wanted.pretrained)
        elif wanted is None and self.recipe.model.checkpoint is not None:
            source = self.recipe.model.checkpoint
        else:
            source = None
        if source is not None:
            start = self.start if wanted is None else None
            revision = start.revision if start is not None else _commit(source, None)
            identity: dict[str, Any] = {
                "pretrained": source,
                "content": checkpoint_content(source, revision),
                "segments": self.segments,
            }
            if start is not None and start.trust_remote_code:
                identity["trust_remote_code"] = True
            self._complete(
                TOKENIZER,
                TOKENIZER,
                identity,
                [],
                {},
                {tokenizer.__name__},
                partial(self._copy_tokenizer, source, revision, start),
            )
            return
        algorithm, size = (
            (wanted.train, wanted.vocab_size) if wanted is not None else (tokenizer.block(tokenizer.DEFAULT), 8192)
        )
        reader = next((stage for stage in self.recipe.stages if type(stage).texts is not Stage.texts), None)
        if reader is None:
            raise StageError(
                "there is no text to train a tokenizer on; name a pretrained one: tokenizer: {pretrained: …}"
            )
        most = None if wanted is None else wanted.max_train_samples
        identity = {
            "train": algorithm.plain() | {"name": algorithm.name},
            "vocab_size": size,
            "extra": self.special_tokens,
            "segments": self.segments,
            "rows": reader.vocabulary_rows() if most is None else most,
        }
        self.at = reader.id  # what goes wrong with its rows is this stage's to mend
        content = reader.content(self.recipe)
        code = {tokenizer.__name__} | fingerprints.modules_of(algorithm)
        self._complete(
            TOKENIZER,
            TOKENIZER,
            identity,
            [],
            content,
            code,
            partial(self._train_tokenizer, algorithm, size, reader, most),
        )

    def do(self, number: int, stage: Stage) -> None:
        """Reuse the stage when it is complete with this fingerprint, else do it."""
        stage_files.use(self.folders)
        self.at = stage.id
        if self.stop.requested:
            raise Stopped("stopped between two stages")
        identity = stage.identity() | {"seed": self.recipe.seed_of(stage), "precision": self.precision}
        arguments = getattr(stage, "arguments", None)
        if arguments is not None and "global_batch_size" not in arguments.given():
            identity["processes"] = self.processes if stage.joins else 1
        inputs = [self.fingerprints[TOKENIZER], *(self._fingerprint(read) for read in stage.reads(self.recipe))]
        if not stage.trains:
            identity["reads"] = stage.reads(self.recipe)  # its files name these stages
        code = fingerprints.modules_of(stage) | stage.modules(self.recipe) | {stage_models.__name__}
        name = f"stages/{number:02d}-{stage.id}"
        self._complete(
            stage.id, name, identity, inputs, stage.content(self.recipe), code, partial(self._run_stage, stage), stage
        )

    def _complete(
        self,
        stage_id: str,
        name: str,
        identity: Mapping[str, Any],
        inputs: list[str],
        content: Mapping[str, str],
        code: set[str],
        work: Callable[[Path, str], None],
        stage: Stage | None = None,
    ) -> None:
        """Reuse or make one stage: whatever happens, it is complete or invisible."""
        started = time.monotonic()
        events, store = self.place.events.of(stage_id), self.place.store
        fingerprint, code_hash = fingerprints.fingerprint_of(identity, inputs, content, code)
        self.fingerprints[stage_id] = fingerprint

        def reusable() -> Path | None:
            complete = store.complete(fingerprint)
            return None if complete is not None and stage is not None and not stage.still_there(complete) else complete

        record = {
            "id": stage_id,
            "fingerprint": fingerprint,
            **({} if stage is None else {"stage": stage.stage}),
            "identity": dict(identity),
            "inputs": inputs,
            "data": dict(content),
            "code": code_hash,
        }
        folder = reusable()
        reused = folder is not None
        if reused and stage is not None and stage.trains and os.environ.get(PROFILE) == "1":
            events.emit("warning", message=f"stage '{stage_id}' is complete already: there was nothing to profile")
        if folder is None:
            if (lost := store.damage(fingerprint)) is not None:
                place = store.stages / fingerprint
                events.emit(
                    "warning", message=f"{lost} of the complete stage {place} is missing or changed; it is made again"
                )
            with store.attempt(fingerprint) as attempt:
                folder = reusable()  # another run may have made it while this one waited
                if folder is None:
                    self.place.link(name, attempt)
                    events.emit("started", fingerprint=fingerprint)
                    before = hardware.energy_counters()
                    with self._given_up_on_error(name, attempt, fingerprint):
                        work(attempt, fingerprint)
                        if stage is not None and stage.trains:
                            self._keep_curves(attempt, stage_id)
                        made = self._spent(started, before) | {"versions": fingerprints.versions()}
                        folder = store.finish(fingerprint, record | made)
        self.place.link(name, folder)
        self.folders[stage_id] = folder
        for model in sorted((folder / "tasks").glob("*/model")):  # a stage that leaves a model a task
            part = f"{stage_id}/{model.parent.name}"
            self.folders[part], self.fingerprints[part] = model.parent, fingerprint
        spent = {"seconds": round(time.monotonic() - started, 3), "reused": reused}
        events.emit("stage_finished", **spent, fingerprint=fingerprint, metrics=read_json(folder / "metrics.json"))
        listed = {key: record[key] for key in ("id", "fingerprint", "code", "data")}
        self.place.manifest["stages"].append(listed | spent)
        self.place.save_manifest()

    @contextmanager
    def _given_up_on_error(self, name: str, attempt: Path, fingerprint: str) -> Iterator[None]:
        """What a stage has made and is of no use after an error is taken away."""
        try:
            yield
        except BaseException:
            self.place.store.give_up(fingerprint)
            if not attempt.exists():
                self.place.unlink(name)
            raise

    def _keep_curves(self, attempt: Path, stage_id: str) -> None:
        """What the stage reported while it trained stays with it, for pages and cards of runs that reuse it."""
        from pipelines.reports.results import write_curves

        write_curves(attempt, read_events(self.place.events.path), stage_id)

    def _spent(self, started: float, before: Mapping[str, EnergyCounter]) -> dict[str, Any]:
        """What making a stage took, and on which machine: `energy_joules` is of all that ran on it meanwhile."""
        spent: dict[str, Any] = {
            "seconds": time.monotonic() - started,
            "hardware": self.place.manifest["hardware"] | {"hosts": hosts().count},
        }
        now = hardware.energy_counters()
        if hosts().count == 1 and (joules := hardware.energy_since(before, now)) is not None:
            spent |= {"energy_joules": round(joules, 1), "energy_counters": sorted(before.keys() & now.keys())}
        return spent

    def _fingerprint(self, stage_id: str) -> str:
        """Fingerprint of a stage's model, or of the recipe's own."""
        if stage_id != START:
            return self.fingerprints[stage_id]
        model = self.start
        if model.checkpoint is not None:
            code = {"trust_remote_code": True} if model.trust_remote_code else {}
            return fingerprints.digest({"checkpoint": checkpoint_content(model.checkpoint, model.revision), **code})
        return fingerprints.digest({"architecture": self.recipe.model.shape()})

    def _run_stage(self, stage: Stage, attempt: Path, fingerprint: str) -> None:
        if self.processes > 1 and stage.joins:
            distributed.run_ranks(self.processes, self.place.folder, stage.id, attempt, self.stop, self.profile)
            return
        stage.run(self.context(stage, attempt, fingerprint))

    def context(
        self,
        stage: Stage,
        attempt: Path,
        fingerprint: str,
        world: World | None = None,
        beat: Callable[[], None] = lambda: None,
    ) -> Context:
        """Everything a stage is given."""
        stage_files.use(self.folders)
        world = world or World()
        main = distributed.MainProcess(world, self.place.folder, distributed.timeout(stage), self.stop)
        barrier = distributed.barrier(main)
        models = StageModels(self.recipe, stage, self.start, self.folders, self.precision, world, barrier)
        return Context(
            stage_id=stage.id,
            folder=attempt,
            fingerprint=fingerprint,
            seed=self.recipe.seed_of(stage),
            recipe=self.recipe,
            events=self.place.events.of(stage.id),
            world=world,
            precision=self.precision,
            cache=self.place.store.data,
            stage_folders=self.folders,
            open_model=models.open_model,
            open_tokenizer=models.open_tokenizer,
            stop=self.stop,
            barrier=barrier,
            beat=beat,
            fits=partial(self._fits, stage, world),
            gather=distributed.gather(main),
        )

    def _fits(self, stage: Stage, world: World, each: int) -> bool:
        """Whether a step on so many examples at once fits into memory; True where the plan cannot tell."""
        from pipelines.runs.planning.plan import peak_memory

        peak = peak_memory(self.recipe, stage, each, world.size, world.profile, self.precision)
        return peak is None or peak <= hardware.ROOM * hardware.free_memory(world.size)

    def open_tokenizer(self) -> PreTrainedTokenizerBase:
        """The run's tokenizer."""
        return stage_models.open_tokenizer(self.folders, self.start)

    def _train_tokenizer(
        self, algorithm: Any, size: int, reader: Stage, most: int | None, attempt: Path, fingerprint: str
    ) -> None:
        texts: Iterator[str] | None = reader.vocabulary_texts(most)
        rows = reader.vocabulary_rows() if most is None else most
        if rows is not None and rows != getattr(reader, "max_train_samples", None):
            what = f"learning the vocabulary from at most {rows:,} documents of each data set"
            self.place.events.of(TOKENIZER).emit("progress", what=what)
        if texts is None:
            raise DataError(f"stage '{reader.id}' has no text to train a tokenizer on")
        self._save_tokenizer(algorithm.train(texts, size, extra=self.special_tokens), attempt)

    def _copy_tokenizer(
        self, source: str, revision: str | None, start: Model | None, attempt: Path, fingerprint: str
    ) -> None:
        self._save_tokenizer(tokenizer.open_tokenizer(source, revision, start), attempt)

    def _save_tokenizer(self, made: PreTrainedTokenizerBase, attempt: Path) -> None:
        (made if self.segments else tokenizer.without_segments(made)).save_pretrained(str(attempt / "model"))

    def fail(self, error: BaseException) -> BaseException:
        """Tell the events; returns the error that the user should see."""
        failure = error if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit) else understood(error)
        if isinstance(failure, StageError) and failure.stage is None:
            failure.stage = self.at
        kind = "stopped" if isinstance(failure, Stopped) else "failed"
        reason = failure.reason if isinstance(failure, FineryError) else "internal"
        events = self.place.events.of(self.at) if self.at else self.place.events
        with suppress(OSError):  # a full disk must not hide the first error
            events.emit(kind, message=str(failure), reason=reason)
        self.write_report()
        return failure

    def finish(self, seconds: float) -> None:
        """The manifest's last lines, and the event that closes the run."""
        self.place.manifest |= {"finished": datetime.now(UTC).isoformat(), "wall_time": round(seconds, 3)}
        if (joules := hardware.energy_since(self.energy, hardware.energy_counters())) is not None:
            self.place.manifest["energy_joules"] = round(joules, 1)
        self.place.save_manifest()
        self.write_report()
        self.place.events.emit("finished", seconds=round(seconds, 3))

    def write_report(self) -> None:
        """`report.html` and `README.md`: a page that cannot be made is a warning, for the run is what counts."""
        from pipelines.reports.run_page import write_run_report

        try:
            write_run_report(self.place.folder, self.recipe)
        except Exception as error:
            with suppress(OSError):
                self.place.events.emit(
                    "warning",
                    message=f"report.html could not be written ({type(error).__name__}: {error}); everything else is "
                    "in place",
                )


def _commit(source: str, revision: str | None) -> str | None:
    """The commit of a Hub repository, where it can be told; asked for by every run, with its own token. Raises
    DataError."""
    return revision if Path(source).is_dir() else commit_of(source, revision) or revision


def working_folder(run_folder: Path) -> Path:
    """The folder a run was started in: relative destinations mean the same after a resume from elsewhere."""
    try:
        recorded = Path(json.loads((run_folder / "manifest.json").read_text())["working_folder"])
    except (OSError, ValueError, KeyError):
        return Path.cwd()
    return recorded if recorded.is_dir() else Path.cwd()


def run_rank(run_folder: Path, stage_id: str, folder: Path, profile: Profile, processes: int) -> int:
    """Run the stage on this rank. Returns the exit code; an error is left for the driver in the stage's folder."""
    stop = StopSignal()
    try:
        with stop_on_signals(stop):
            recipe = load_recipe(run_folder / "recipe.yaml")
            stage = recipe.stage(stage_id)
            seconds = distributed.timeout(stage)
            world = distributed.join_world(processes, profile, seconds)
            job = RecipeRun(recipe, RunFolder(run_folder, StageStore()), stop)
            job.folders = complete_stages(run_folder)
            fingerprint = folder.name.removesuffix(".partial")
            with distributed.Heartbeat(run_folder, world.rank) as heart:
                try:
                    stage.run(job.context(stage, folder, fingerprint, world, heart.step))
                except RuntimeError as error:
                    raise distributed.absence(error, run_folder, world, seconds) or error from error
    except BaseException as error:
        failure = understood(error)
        if isinstance(failure, Unforeseen):
            traceback.print_exc()
        distributed.write_failure(folder, failure)
        sys.stderr.flush()
        # The other ranks may wait for this one for ever: leave without the clean-up that would wait for them too.
        os._exit(failure.exit_code if isinstance(failure, FineryError) else EXIT_FAILED)
    return EXIT_DONE


def complete_stages(run_folder: Path) -> dict[str, Path]:
    """Folders of the complete stages that a run links to, by id."""
    folders = {}
    for link in run_folder.glob("stages/*"):
        target = link.resolve()
        if target.is_dir() and not target.name.endswith(".partial"):
            folders[link.name.partition("-")[2]] = target
            folders |= {
                f"{link.name.partition('-')[2]}/{model.parent.name}": model.parent
                for model in target.glob("tasks/*/model")
            }
    if (run_folder / "tokenizer").exists():
        folders[TOKENIZER] = (run_folder / "tokenizer").resolve()
    return folders
