"""The training loop over several tasks: one task a part of a step, losses weighed, gradients compared, tasks that
leave.

Uncertainty: each task's noise is a learnt number, and noisy tasks count less. Kendall, Gal and Cipolla 2018,
arxiv.org/abs/1705.07115, equations 7 and 10, with s = log sigma^2 (section 3.2): a squared error enters as exp(-s) / 2
times the loss plus s / 2, a cross-entropy as exp(-s) times the loss plus s / 2.

Gradient surgery: where two tasks pull in opposite directions, each gives up the part that harms the other. PCGrad, Yu
et al. 2020, "Gradient Surgery for Multi-Task Learning", arxiv.org/abs/2001.06782, algorithm 1.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.utils import SAFE_WEIGHTS_NAME

from pipelines.core.interfaces import IGNORED
from pipelines.core.scores import bounds, smaller_is_better
from pipelines.models import fsdp
from pipelines.tasks.training import PreparedTask
from pipelines.trainers.multi_task_model import TaskView
from pipelines.trainers.multi_task_sampling import MixtureSampler, tasks_left
from pipelines.trainers.trainer import FineryTrainer, without_padding

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.utils import ModelOutput

    from pipelines.trainers.checkpoints import State
    from pipelines.trainers.model_selection import Examples
    from pipelines.trainers.multi_task_model import SharedBody
    from pipelines.trainers.trainer import Collate, Example, Loss


def weighed(losses: Tensor, log_variances: Tensor, squared: Tensor, present: Tensor) -> Tensor:
    """The sum over tasks of their losses, weighed.

    losses (tasks,): the mean loss of each task in this batch, as its share of the step; log_variances (tasks,);
    squared (tasks,): whether the loss is a squared error; present (tasks,): the share of the task's items of the step
    that are in this batch, 0 where it has none.
    """
    half = 1.0 - 0.5 * squared.to(losses.dtype)
    return ((-log_variances).exp() * half * losses + 0.5 * log_variances * present).sum()


def project(gradients: Tensor, seed: Sequence[int]) -> Tensor:
    """The sum (weights,) of the tasks' `gradients` (tasks, weights) after surgery.

    Each gradient is projected onto the normal plane of every other *original* gradient that it conflicts with, in an
    order drawn by `seed`: g_i <- g_i - (g_i . g_j) / |g_j|^2 g_j where g_i . g_j < 0. What comes out is a sum of the
    originals, so that their products with each other say how much of each, and no projection is written down.
    """
    generator = np.random.default_rng(list(seed))
    products = _products(gradients)
    shares = np.eye(len(gradients))
    """(tasks, tasks): what each projected gradient is made of."""
    for here, share in enumerate(shares):
        for there in generator.permutation(len(gradients)).tolist():
            along = share @ products[there]
            if there != here and along < 0 and products[there, there] > 0:
                share[there] -= along / products[there, there]
    return torch.from_numpy(shares.sum(0)).to(gradients) @ gradients


def _products(gradients: Tensor) -> NDArray[np.float64]:
    """The products (tasks, tasks) of gradients with each other, row by row: a GPU may round those of two matrices."""
    products: NDArray[np.float64] = torch.stack([gradients.mv(each) for each in gradients]).double().cpu().numpy()
    return products


def cosines(gradients: Tensor) -> dict[tuple[int, int], float]:
    """The cosine between each two of `gradients` (tasks, weights); 0 where one of them vanishes."""
    products = _products(gradients)
    norms = np.sqrt(products.diagonal())
    return {
        (here, there): float(products[here, there] / scale) if (scale := norms[here] * norms[there]) > 0 else 0.0
        for here in range(len(gradients))
        for there in range(here + 1, len(gradients))
    }


SURGERY = 0x9C6D


@dataclass(frozen=True)
class MultiTaskPlan:
    """What the loop is told about its tasks."""

    ids: Sequence[str]
    lessons: Sequence[PreparedTask]
    selections: Sequence[Any]
    """Held-out examples of each task, or None."""
    weights: Sequence[float]
    squared: Sequence[bool]
    """Whether each task's loss is a squared error."""
    metrics: Sequence[str]
    """The score that stands for each task in the mean; `loss` where there is none."""
    sampler: Callable[..., MixtureSampler]
    """`sampler(part=…, seed=…, epochs=…)`."""
    tasks_per_step: int
    surgery: bool
    conflicts_every: int | None
    patience: int | None


def label_names(ids: Sequence[str], lessons: Sequence[PreparedTask], weights: Sequence[float]) -> dict[str, float]:
    """Every task's labels as parts of one loss: `mrpc.labels`, with the task's weight."""
    return {
        f"{name}.{label}": weight * share
        for name, lesson, weight in zip(ids, lessons, weights, strict=True)
        for label, share in lesson.label_names.items()
    }


def collator(ids: Sequence[str], lessons: Sequence[PreparedTask]) -> Collate:
    """Puts examples of one task together, their labels under the task's own names."""
    together = [without_padding(lesson.collate, lesson.label_names) for lesson in lessons]

    def collate(examples: list[Example]) -> dict[str, Tensor]:
        task = examples[0]["task"]
        if any(example["task"] != task for example in examples):
            raise AssertionError("a batch holds examples of two tasks")
        batch = together[task](
            [{name: value for name, value in example.items() if name != "task"} for example in examples]
        )
        return {
            f"{ids[task]}.{name}" if name in lessons[task].label_names else name: value for name, value in batch.items()
        }

    return collate


def loss_of(ids: Sequence[str], lessons: Sequence[PreparedTask]) -> Loss:
    """The loss of whichever task the batch is of: the sums of all tasks' parts (parts,), zero for the others."""
    widths = [len(lesson.label_names) for lesson in lessons]
    begins = np.cumsum([0, *widths]).tolist()

    def loss(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, ModelOutput]:
        task = task_in(inputs, ids, lessons)
        own = {name.removeprefix(f"{ids[task]}."): value for name, value in inputs.items()}
        sums, outputs = lessons[task].loss(TaskView(model, task), own)
        parts = sums.reshape(-1)
        before, after = parts.new_zeros(begins[task]), parts.new_zeros(begins[-1] - begins[task + 1])
        return torch.cat([before, parts, after]), outputs

    return loss


def task_in(inputs: Mapping[str, Tensor], ids: Sequence[str], lessons: Sequence[PreparedTask]) -> int:
    """Which task a batch is of, by the names of its labels."""
    return next(
        task
        for task, (name, lesson) in enumerate(zip(ids, lessons, strict=True))
        if f"{name}.{next(iter(lesson.label_names))}" in inputs
    )


class MultiTaskTrainer(FineryTrainer):
    """FineryTrainer for a SharedBody: batches of one task each."""

    def __init__(self, *, plan: MultiTaskPlan, **keywords: Any) -> None:
        self.plan = plan
        self.parts_of = torch.tensor([task for task, lesson in enumerate(plan.lessons) for _ in lesson.label_names])
        self.since_log = torch.zeros(len(plan.ids), 2)
        """Sum of each task's step losses since the last log, and the steps that it was part of."""
        self.scores: dict[str, list[float]] = {name: [] for name in plan.ids}
        self.gradients: Tensor | None = None
        """(tasks of a step, weights): the memory is kept from step to step."""
        self.taken: dict[int, int] = {}
        """The row of each task that the step has had."""
        self.micro = 0
        super().__init__(**keywords)

    # -- the order -------------------------------------------------------------------------------------------------

    def _get_train_sampler(self, train_dataset: object = None) -> MixtureSampler:
        at_once = self.args.train_batch_size * self.args.world_size
        part = at_once * self.args.gradient_accumulation_steps // self.plan.tasks_per_step
        epochs = max(1, int(np.ceil(self.args.num_train_epochs)))
        left = getattr(self.sampler, "left", {})
        sampler: Any = self.plan.sampler(part=part, seed=self.args.seed, epochs=epochs)
        sampler.left = left
        self.sampler = sampler
        return sampler

    # -- the loss --------------------------------------------------------------------------------------------------

    def _items(self, batch: dict[str, Tensor]) -> Tensor:
        device = next(iter(batch.values())).device
        return torch.stack(
            [
                batch[name].ne(IGNORED).sum() if name in batch else torch.zeros((), dtype=torch.int64, device=device)
                for name in self.label_weights
            ]
        )

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, ModelOutput]:
        sums, outputs = self.loss(model, inputs)
        shared = 1 if num_items_in_batch is None else self.args.world_size
        here = self._items(inputs)
        items = here.clamp(min=1) if num_items_in_batch is None else num_items_in_batch
        weights = torch.tensor(list(self.label_weights.values()), device=sums.device)
        parts_of = self.parts_of.to(sums.device)
        losses = sums.new_zeros(len(self.plan.ids)).index_add(0, parts_of, weights * sums / items) * shared  # (tasks,)
        first = torch.tensor(
            [self.parts_of.tolist().index(task) for task in range(len(self.plan.ids))], device=sums.device
        )
        present = (here / items)[first] * shared  # (tasks,): the share of the task's items of the step
        log_variances = self.bare.log_variances
        if model.training:
            with torch.no_grad():
                unweighed = losses.detach() / torch.tensor(self.plan.weights, device=losses.device)
                self.since_log += torch.stack([unweighed, present], dim=1).cpu()
        value = (
            losses.sum()
            if log_variances is None
            else weighed(losses, log_variances, torch.tensor(self.plan.squared, device=sums.device), present)
        )
        penalty = self.tuner.penalty(model) if model.training and self.tuner is not None else None
        value = value if penalty is None else value + penalty / self.current_gradient_accumulation_steps
        return (value, outputs) if return_outputs else value

    @property
    def bare(self) -> SharedBody:
        """The SharedBody inside whatever wraps it."""
        return self.accelerator.unwrap_model(self.model, keep_torch_compile=False)

    def get_decay_parameter_names(self, model: PreTrainedModel) -> list[str]:
        return [name for name in super().get_decay_parameter_names(model) if "log_variances" not in name]

    # -- gradients -------------------------------------------------------------------------------------------------

    def training_step(
        self, model: nn.Module, inputs: dict[str, Tensor], num_items_in_batch: Tensor | None = None
    ) -> Tensor:
        steps = self.current_gradient_accumulation_steps
        every = self.plan.conflicts_every
        measured = every is not None and self.state.global_step % every == 0
        task = task_in(inputs, self.plan.ids, self.plan.lessons)
        value = super().training_step(model, inputs, num_items_in_batch)
        if not (self.plan.surgery or measured):
            return value
        self._take(task)
        self.micro += 1
        if self.micro == steps:
            assert self.gradients is not None
            gradients = self.gradients[: len(self.taken)]
            if measured:
                self._tell_conflicts(list(self.taken), gradients)
            seed = (self.args.seed, self.state.global_step, SURGERY)
            self._give_back(project(gradients, seed) if self.plan.surgery else gradients.sum(0))
            self.taken, self.micro = {}, 0
        return value

    def _learning(self) -> list[nn.Parameter]:
        return [weight for weight in self.bare.parameters() if weight.requires_grad]

    def _take(self, task: int) -> None:
        """Add all gradients to the task's row, and take them away from the weights."""
        weights = self._learning()
        if self.gradients is None:
            rows = min(len(self.plan.ids), self.current_gradient_accumulation_steps)
            self.gradients = weights[0].new_empty(rows, sum(weight.numel() for weight in weights))
        if (first := task not in self.taken) and len(self.taken) == len(self.gradients):
            self.gradients = torch.cat([self.gradients, torch.empty_like(self.gradients[:1])])
        row = self.gradients[self.taken.setdefault(task, len(self.taken))]
        for weight, part in zip(weights, row.split([weight.numel() for weight in weights]), strict=True):
            if weight.grad is not None:
                (part.copy_ if first else part.add_)(weight.grad.reshape(-1))
            elif first:
                part.zero_()
            weight.grad = None

    def _give_back(self, flat: Tensor) -> None:
        weights = self._learning()
        for weight, part in zip(weights, flat.split([weight.numel() for weight in weights]), strict=True):
            if part.any():  # a weight that no task used stays without a gradient, and is not decayed
                weight.grad = part.view(weight.shape)

    def _tell_conflicts(self, tasks: Sequence[int], gradients: Tensor) -> None:
        if not self.context.world.is_main or len(tasks) < 2:
            return
        order = sorted(range(len(tasks)), key=lambda position: tasks[position])
        body = {id(weight) for weight in self.bare.body.parameters()}  # heads are nobody else's
        of_body = torch.cat([torch.full((weight.numel(),), id(weight) in body) for weight in self._learning()])
        shared = gradients[order][:, of_body.to(gradients.device)]
        means = {
            f"cosine_{self.plan.ids[tasks[order[here]]]}_{self.plan.ids[tasks[order[there]]]}": value
            for (here, there), value in cosines(shared).items()
        }
        self.context.events.emit("metric", step=self.state.global_step, metrics=means)

    # -- held-out scores -------------------------------------------------------------------------------------------

    def evaluate(self, *arguments: object, **keywords: object) -> dict[str, float]:
        """Every task's held-out loss and scores, their mean, and which tasks leave. A score that is better when it is
        smaller counts with its sign turned."""
        metrics: dict[str, float] = {}
        best: list[float] = []
        for task, (name, selection) in enumerate(zip(self.plan.ids, self.plan.selections, strict=True)):
            loss, scores = self._scored(task, selection)
            metrics |= {f"eval_{name}_loss": loss} | {f"eval_{name}_{key}": value for key, value in scores.items()}
            metric = self.plan.metrics[task]
            reached = -loss
            if metric in scores:
                reached = -scores[metric] if smaller_is_better(metric) else scores[metric]
                best.append(reached / (100 if bounds(metric, scores)[1] == 100 else 1))
            self.scores[name].append(reached)
        metrics["eval_loss"] = float(np.mean([metrics[f"eval_{name}_loss"] for name in self.plan.ids]))
        if best:
            metrics["eval_mean"] = float(np.mean(best))
        self.log(metrics)
        self._let_go()
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _scored(self, task: int, selection: Examples) -> tuple[float, dict[str, float]]:
        lesson, model = self.plan.lessons[task], self.bare
        size = self.args.per_device_eval_batch_size
        sums, items = 0.0, 0
        logits: list[np.ndarray] = []
        labels: list[np.ndarray] = []
        training = model.training
        model.eval()
        with torch.no_grad(), self.compute_loss_context_manager():
            for start in range(0, len(selection), size):
                rows = [
                    {**selection[place], **({"draw": place} if lesson.marked else {})}
                    for place in range(start, min(start + size, len(selection)))
                ]
                batch = self._prepare_inputs(lesson.collate(rows))
                total, outputs = lesson.loss(TaskView(model, task), batch)
                main = next(iter(lesson.label_names))
                sums += float(total.reshape(-1)[0])
                items += int(batch[main].ne(IGNORED).sum())
                if lesson.score is not None:
                    logits.append(outputs.logits.float().cpu().numpy())
                    labels.append(batch[main].cpu().numpy())
        model.train(training)
        scores = {} if lesson.score is None else lesson.score(np.concatenate(logits), np.concatenate(labels))
        return sums / max(items, 1), scores

    def _let_go(self) -> None:
        """Tasks that no longer improve are not part of the epochs to come; training ends when none is left."""
        if self.plan.patience is None or self.sampler is None:
            return
        left: dict[str, int] = self.sampler.left  # type: ignore[attr-defined]
        for name in tasks_left(self.scores, self.plan.patience):
            if name not in left:
                left[name] = int((self.state.epoch or 0.0) - 1e-6) + 1
                if self.context.world.is_main:
                    message = f"'{name}' has not improved for {self.plan.patience} evaluations and leaves the mixture"
                    self.context.events.emit("progress", message=message, step=self.state.global_step)
        if self.is_over():
            self.control.should_training_stop = True

    def is_over(self) -> bool:
        return super().is_over() or len(getattr(self.sampler, "left", {})) == len(self.plan.ids)

    # -- what is written -------------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """With every training loss the losses of the tasks, over the steps that each was part of."""
        if "loss" in logs:
            total = torch.tensor(np.sum(self.context.gather(self.since_log.numpy()), axis=0)) / self.args.world_size
            for name, (losses, steps) in zip(self.plan.ids, total.tolist(), strict=True):
                if steps > 0:
                    logs[f"loss_{name}"] = losses / steps
            self.since_log.zero_()
            variances = self.bare.log_variances
            if variances is not None:
                learnt = fsdp.whole(variances.detach()).tolist()
                logs |= {f"log_variance_{name}": value for name, value in zip(self.plan.ids, learnt, strict=True)}
        super().log(logs, start_time)

    def own_state(self) -> State:
        every = self.context.gather(self.since_log.tolist())
        return {"tasks_since_log": every, "scores": self.scores, "left": getattr(self.sampler, "left", {})}

    def restore_own(self, state: State) -> None:
        if len(state["tasks_since_log"]) == self.context.world.size:
            self.since_log = torch.tensor(state["tasks_since_log"][self.context.world.rank])
        self.scores = {name: list(values) for name, values in state["scores"].items()}
        if self.sampler is not None:
            self.sampler.left = dict(state["left"])  # type: ignore[attr-defined]

    def _save(self, output_dir: str | None = None, state_dict: Mapping[str, Tensor] | None = None) -> None:
        if not self.args.should_save:
            return
        folder = output_dir or self.args.output_dir
        os.makedirs(folder, exist_ok=True)
        weights = {name: weight.contiguous() for name, weight in self.bare.once().items()}
        safetensors.torch.save_file(weights, os.path.join(folder, SAFE_WEIGHTS_NAME), metadata={"format": "pt"})
        torch.save(self.args, os.path.join(folder, TRAINING_ARGS_NAME))

    def stage_metrics(self) -> dict[str, float]:
        """As of every stage; an epoch of the mixture is as long as its sampler says."""
        metrics = super().stage_metrics()
        filled = len(self.sampler) if self.sampler is not None else 0
        metrics["train_samples_per_second"] = (self.state.epoch or 0.0) * filled / metrics["train_runtime"]
        return metrics
