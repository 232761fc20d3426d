"""Experiment trackers beside the events: `arguments.report_to` names trackio, wandb, mlflow or others of transformers.

What is reported is what transformers' own callback of that tracker reports. Around it stands what a service needs:

- **One tracker run for each stage that trains**, called after the job (`FINERY_JOB_ID`), or after the recipe and the
  stage's fingerprint; with the stage's id behind it where a recipe trains several. A stage that goes on after a kill
  goes on in the same tracker run.
- **Nothing waits for a tracker and nothing fails for it.** Its calls are made in a thread of their own. The first that
  fails is one warning, and the tracker is told nothing more; at the end it has a minute for what it still has to send.
- **Keys are secrets** (`core.secrets`): WANDB_API_KEY, MLFLOW_TRACKING_URI with MLFLOW_TRACKING_TOKEN or user name and
  password. Without a key wandb writes to the run folder, for `wandb sync`. On a server trackio writes there too, and an
  address that is not public is refused where attempts may reach public ones only.
"""

from __future__ import annotations

import copy
import hashlib
import os
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from transformers import TrainerCallback

from pipelines.core import egress
from pipelines.core.errors import StageError
from pipelines.core.secrets import may_see, secret, served

if TYPE_CHECKING:
    from pipelines.core.interfaces import Context
    from pipelines.core.training_arguments import TrainingArguments

FINISH_SECONDS = 60.0
"""How long a stage that has trained waits for a tracker."""
MOST_WAITING = 100_000
"""Reports that wait for a slow tracker."""
PUBLIC_ONLY = "FINERY_PUBLIC_ENDPOINTS_ONLY"
WANDB_URL = "https://api.wandb.ai"
MLFLOW_KEYS = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
FOLDER = "trackers"
"""Of a run folder: what trackers write that send nothing, or have not sent it yet."""
EVENTS = tuple(name for name in dir(TrainerCallback) if name.startswith("on_"))
COSTLY = ("on_step_begin", "on_step_end", "on_substep_end", "on_pre_optimizer_step", "on_optimizer_step")
"""Events of each step, which are passed on to callbacks that look at them alone."""


def run_name(context: Context) -> str:
    """What the tracker calls the run of this stage: the same for every attempt at it."""
    job = os.environ.get("FINERY_JOB_ID") or f"{context.recipe.name}-{context.fingerprint[:8]}"
    folder = context.events.path.parent
    job += f"/{folder.name}" if folder.parent.name == "cells" else ""  # of a study
    trained = [stage.id for stage in context.recipe.stages if getattr(stage, "arguments", None) is not None]
    return f"{job}/{context.stage_id}" if len(trained) > 1 else job


def run_id(context: Context) -> str:
    """What tells two tracker runs of one name apart: the run folder or the job, the stage and its fingerprint."""
    place = os.environ.get("FINERY_JOB_ID") or str(context.events.path.parent.resolve())
    return hashlib.sha256(f"{place}\n{context.stage_id}\n{context.fingerprint}".encode()).hexdigest()[:24]


def project_of(context: Context, arguments: TrainingArguments) -> str:
    """`arguments.project`, else the recipe's name."""
    return arguments.project if "project" in arguments.given() else context.recipe.name


def trackers(context: Context, arguments: TrainingArguments) -> list[TrainerCallback]:
    """A callback for each tracker that the stage reports to; none on other ranks than the main one."""
    given = arguments.report_to
    names = [each for each in ([given] if isinstance(given, str) else given) if each != "none"]
    return [Tracker(name, context, arguments) for name in dict.fromkeys(names)] if context.world.is_main else []


class Tracker(TrainerCallback):  # type: ignore[misc]
    """Passes everything on to transformers' callback of a tracker, in a thread of its own."""

    def __init__(self, name: str, context: Context, arguments: TrainingArguments) -> None:
        self.name, self.context = name, context
        self.project = project_of(context, arguments)
        self.folder = context.events.path.parent.resolve() / FOLDER
        self.inner: Any = None
        self.opened = False
        self.close: Callable[[], None] = lambda: None
        self.failed = False
        self.heard: frozenset[str] = frozenset(EVENTS) - frozenset(COSTLY)
        self.waiting: queue.Queue[Callable[[], None] | None] = queue.Queue(MOST_WAITING)
        self.thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        try:
            self._import()
        except BaseException as error:
            self._give_up(_words(error))
        self.thread.start()

    def _import(self) -> None:
        """In the main thread, because two threads that import the same modules get them half made."""
        from transformers.integrations import get_reporting_integration_callbacks

        if self.name == "trackio" and served():
            os.environ["TRACKIO_DIR"] = str(self.folder / "trackio")  # read when trackio is imported
        if self.name in OPEN:
            import_module(self.name)
        (self.kind,) = get_reporting_integration_callbacks([self.name])
        self.inner = self.kind()
        self.heard = frozenset(
            name for name in EVENTS if getattr(self.kind, name) is not getattr(TrainerCallback, name)
        )

    def _work(self) -> None:
        while (call := self.waiting.get()) is not None:
            if self.failed:
                continue
            try:
                call()
            except BaseException as error:  # whatever a library raises: SystemExit of a missing login among it
                self._give_up(_words(error))

    def _give_up(self, why: str) -> None:
        if not self.failed:
            self.failed = True
            self.context.events.emit(
                "warning", message=f"{self.name} does not take what is reported, and is left out from here on: {why}"
            )

    def _pass(self, event: str, args: Any, state: Any, control: Any, **words: Any) -> None:
        if self.failed or event not in self.heard:
            return
        # what the training goes on changing is copied; models and loaders are only looked at
        live = copy.copy(args)
        live.run_name, live.project = run_name(self.context), self.project
        now, then = copy.copy(state), copy.copy(control)
        now.log_history = list(state.log_history)
        kept = {key: dict(value) if key in ("logs", "metrics") and value else value for key, value in words.items()}
        try:
            self.waiting.put_nowait(partial(self._tell, event, live, now, then, kept))
        except queue.Full:
            self._give_up(f"{MOST_WAITING:,} reports wait for it")

    def _tell(self, event: str, args: Any, state: Any, control: Any, words: Mapping[str, Any]) -> None:
        if not self.opened:
            self.opened = True
            self.close = OPEN[self.name](self) if self.name in OPEN else self.close
        getattr(self.inner, event)(args, state, control, **words)

    def finish(self) -> None:
        """Let the tracker send what it still has; gives up after a minute."""
        if self.thread.is_alive():
            with suppress(queue.Full):
                self.waiting.put(lambda: self.close(), timeout=FINISH_SECONDS)
                self.waiting.put(None, timeout=FINISH_SECONDS)
                self.thread.join(FINISH_SECONDS)
        if self.thread.is_alive():
            self._give_up(f"it did not end within {FINISH_SECONDS:.0f} s")


def _event(name: str) -> Callable[..., None]:
    def tell(self: Tracker, args: Any, state: Any, control: Any, **words: Any) -> None:
        self._pass(name, args, state, control, **words)
        if name == "on_train_end":
            self.finish()

    return tell


for _name in EVENTS:
    setattr(Tracker, _name, _event(_name))


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def checked(name: str, url: str, *keys: str) -> None:
    """Raise StageError where this process may not ask `url`, or may not send one of the secrets there."""
    parts = urlsplit(url)
    if served() and parts.scheme not in ("http", "https"):
        raise StageError(f"{name} on a server is an http or https address, and not '{parts.scheme}:'")
    if wrong := next((key for key in keys if not may_see(key, url)), None):
        raise StageError(f"the secret {wrong} may not be sent to {parts.hostname}; keep it with that host")
    if os.environ.get(PUBLIC_ONLY) == "1" and not os.environ.get(egress.EGRESS):  # else the proxy looks at it
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            egress.checked_addresses(parts.hostname or "", port)
        except (egress.NotAllowed, OSError) as error:
            raise StageError(f"{error}; jobs here reach public addresses only") from None


def _open_wandb(tracker: Tracker) -> Callable[[], None]:
    import wandb

    key = secret("WANDB_API_KEY")
    url = secret("WANDB_BASE_URL") or WANDB_URL
    offline = key is None and (served() or not _logged_in(url))
    if not offline:
        checked("WANDB_BASE_URL", url, *(["WANDB_API_KEY"] if key else []))
    tracker.folder.mkdir(exist_ok=True)
    mode = None if not served() and "WANDB_MODE" in os.environ else "offline" if offline else "online"
    words = {"api_key": key, "base_url": url} if key else {}
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT") or tracker.project,
        name=run_name(tracker.context),
        group=os.environ.get("FINERY_JOB_ID") or tracker.context.recipe.name,
        id=run_id(tracker.context),
        resume="allow" if mode == "online" else None,  # offline parts of one id are joined by `wandb sync --append`
        dir=str(tracker.folder),
        mode=mode,
        settings=wandb.Settings(
            silent=True,
            console="off",
            save_code=False,
            disable_git=True,
            x_disable_stats=True,
            init_timeout=FINISH_SECONDS / 2,
            finish_timeout=FINISH_SECONDS / 2,
            **words,
        ),
    )
    return lambda: run.finish()


def _logged_in(url: str) -> bool:
    """Whether `wandb login` has left a key on this machine."""
    from requests.utils import get_netrc_auth

    return get_netrc_auth(url) is not None


def _open_mlflow(tracker: Tracker) -> Callable[[], None]:
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "15")
    keys = {name: value for name in MLFLOW_KEYS if (value := secret(name))}
    address = secret("MLFLOW_TRACKING_URI")
    if address is None and served():
        raise StageError("it needs the secret MLFLOW_TRACKING_URI, the address of the project's MLflow server")
    if address is not None and (served() or urlsplit(address).scheme in ("http", "https")):
        checked("MLFLOW_TRACKING_URI", address, *keys)
    os.environ.update(keys)  # where the client looks for them, request by request
    import mlflow

    if address is not None:
        mlflow.set_tracking_uri(address)
    experiment = mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME") or tracker.project)
    name, tag = run_name(tracker.context), run_id(tracker.context)
    earlier = mlflow.MlflowClient().search_runs(
        [experiment.experiment_id], filter_string=f"tags.`finery.run` = '{tag}'", max_results=1
    )
    if earlier:
        mlflow.start_run(run_id=earlier[0].info.run_id)
    else:
        tags = {"finery.run": tag, "finery.stage": tracker.context.stage_id}
        mlflow.start_run(run_name=name, tags=tags)

    def end() -> None:
        mlflow.flush_async_logging()
        if mlflow.active_run() is not None:
            mlflow.end_run()

    return end


def _open_trackio(tracker: Tracker) -> Callable[[], None]:
    if served():
        tracker.folder.mkdir(exist_ok=True)
    return lambda: None


OPEN: dict[str, Callable[[Tracker], Callable[[], None]]] = {
    "wandb": _open_wandb,
    "mlflow": _open_mlflow,
    "trackio": _open_trackio,
}
"""What is done before transformers' callback begins; returns what ends the tracker's run."""
