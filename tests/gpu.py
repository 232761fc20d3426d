"""What only GPUs can show, made for ten minutes: `make test-gpu`, on any number of NVIDIA GPUs from one up.

Each recipe of `tests/end_to_end/test_profiles.py` runs on one GPU, then under every profile on two and on all of them: the
losses and the norms of gradients must be those of one GPU, and each process must hold the share of the weights that the
profile promises. A run that is killed under fsdp2 goes on on one GPU. Attention by sequences is held against torch's scaled dot
products, and against masks in whole models; steps that are replayed as CUDA graphs against launched ones. DeepSpeed's ZeRO, where it is installed, is held against `ddp`, with its shares
of weights and of the optimizer's state, with LoRA, and killed and resumed. What needs more GPUs, or a package that is not
installed, is listed as not run. A check that the time did not suffice for is listed as `skipped: time` and counts as one
that did not pass: `--seconds 1800` gives more.

On one H100 what needs one GPU passed. What DeepSpeed's checks ask for, and how they read what it leaves, has not run.

`python -m tests.gpu --on-cpu 2` does the same with two processes on the CPU, to try the script itself.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipelines.core.events import read_events
from tests.end_to_end.test_profiles import ENCODER, RECIPES, RELATIVE, SMALLEST, numbers

LIMIT = 600.0
"""Seconds for everything, unless `--seconds` says otherwise."""
SKIPPED = "skipped: time"
UNAVAILABLE = 69
"""The exit code where there is no GPU, as EX_UNAVAILABLE of sysexits.h."""
PRETRAINING = RECIPES["decoder"].partition("  - {stage: evaluate")[0]
LONG = "stages.pretrain.arguments={max_steps: 4000, global_batch_size: 8, learning_rate: 1e-3, save_steps: 50, logging_steps: 50}"


ZERO = (
    ENCODER.partition("  - {stage: supervised, id: adapter")[0]
    .replace(", load_best_model_at_end: true", "")
    .replace("early_stopping_patience: 2, ", "")
)
"""Pretraining by two objectives, then a full fine-tune and LoRA: what runs under DeepSpeed, without what is refused there."""
STATES = 3
"""Numbers of an optimizer for each weight: float32 weights, and AdamW's two moments."""

PACKED = """
name: packed
model:
  architecture: {family: decoder, position: rotary, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4,
    num_key_value_heads: 2, intermediate_size: 128, max_position_embeddings: 128, attention_probs_dropout_prob: 0.0}
tokenizer: {train: byte_bpe, vocab_size: 400}
stages:
  - {stage: pretrain, objective: causal_lm, block_size: 128, cross_document_attention: false, max_train_samples: 300,
     datasets: [{path: builtin/python-docs}],
     arguments: {max_steps: 20, global_batch_size: 8, learning_rate: 1e-3, logging_steps: 5}}
"""
"""Documents of one block that do not see each other."""
WINDOWS = ((-1, -1), (-1, 0), (5, 0), (5, 5))
"""All keys; those before; those of a window before, or on both sides."""
MODELS = ("gpt2", "bert", "llama", "qwen3", "encoder, rotary", "encoder, windows", "decoder, windows")
"""Of `tests/pipelines/models/test_varlen.py`."""


RECORDED = (
    *("bert", "encoder", "decoder", "gpt2", "llama", "answers", "words", "choices", "numbers", "lora", "prefix"),
    *("preferences", "rewards"),
)
"""Models, heads, tuners and losses whose steps are recorded as CUDA graphs."""


def recorded_kind(kind: str) -> tuple[Any, list[dict[str, Any]], Any]:
    """(a model, batches of two shapes, the loss of a stage) of one of RECORDED."""
    import torch

    from pipelines.core.interfaces import Head
    from pipelines.objectives import losses
    from pipelines.tasks.preference.training import pair_loss
    from pipelines.trainers.dpo_settings import DPOArguments
    from pipelines.trainers.dpo_step import PreferenceStep
    from pipelines.trainers.reference import FrozenCopy
    from pipelines.tuners.lora import LoRA
    from pipelines.tuners.prefix import Prefix
    from tests import tiny

    torch.manual_seed(0)
    heads = {
        "answers": Head("question_answering"),
        "words": Head("token_classification", ("O", "A", "B")),
        "choices": Head("multiple_choice"),
        "numbers": tiny.NUMBER,
        "rewards": tiny.NUMBER,
        "preferences": Head("causal_lm"),
    }
    families = {"gpt2": "gpt2", "llama": "llama", "encoder": "finery", "decoder": "finery", "preferences": "gpt2"}
    changed = {"family": "decoder"} if kind == "decoder" else {}
    if kind in ("encoder", "decoder") or kind not in families:
        changed |= {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    model = tiny.build(families.get(kind, "bert"), heads.get(kind, tiny.THREE), **changed)
    tuners = {"lora": LoRA(r=2), "prefix": Prefix()}
    if kind in tuners:
        model = tuners[kind].apply(model)
    batches = []
    for number in range(4):
        length = 8 + 8 * (number % 2)
        shape = (4, 2, length) if kind == "choices" else (4, length)
        ids = torch.randint(5, 60, shape)
        mask = (torch.arange(length) < torch.randint(length // 2, length + 1, (*shape[:-1], 1))).long()
        labels = {
            "answers": torch.randint(0, 4, (4, 2)),
            "words": torch.randint(0, 3, shape),
            "choices": torch.randint(0, 2, (4,)),
            "numbers": torch.rand(4),
            "rewards": torch.ones(2).long(),
            "preferences": torch.where((torch.arange(length) > 2) & (mask == 1), ids, -100),
        }.get(kind, torch.randint(0, 3, (4,)))
        pad = model.config.pad_token_id or 0
        batches.append({"input_ids": ids * mask + pad * (1 - mask), "attention_mask": mask, "labels": labels})
        if kind == "preferences":
            batches[-1]["pairs"] = torch.ones(2).long()
    meter = losses.Meter()
    if kind == "rewards":
        return model, batches, partial(pair_loss, meter=meter)
    if kind == "preferences":
        step = PreferenceStep({"sigmoid": 1.0}, DPOArguments(), FrozenCopy.of(model, "bf16"), meter)
        return model, batches, step
    plain = losses.regression_loss if kind == "numbers" else losses.classification_loss
    alone = partial(plain, head_alone=kind != "words")
    return model, batches, losses.span_loss if kind == "answers" else alone


class Failure(Exception):
    """What was not as it should be."""


@dataclass(frozen=True)
class Check:
    """One row of the table."""

    what: str
    processes: int
    do: Callable[[], None]
    lacking: str = ""
    """Why it is not run."""


class Bench:
    """The folder that all checks work in, and the time that is left."""

    def __init__(self, folder: Path, devices: int, on_cpu: bool, seconds: float = LIMIT) -> None:
        self.folder, self.devices, self.on_cpu = folder, devices, on_cpu
        self.ends = time.monotonic() + seconds

    def command(self, place: Path, recipe: str, words: list[str]) -> subprocess.Popen[bytes]:
        place.mkdir(parents=True, exist_ok=True)
        (place / "recipe.yaml").write_text(recipe)
        environment = os.environ | {"FINERY_HOME": str(place / "home"), "HF_HUB_OFFLINE": "1"}
        return subprocess.Popen(
            [sys.executable, "-m", "pipelines", "run", "recipe.yaml", *words],
            cwd=place,
            env=environment | ({"CUDA_VISIBLE_DEVICES": ""} if self.on_cpu else {}),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def run(self, name: str, recipe: str, words: list[str]) -> Path:
        """The run folder of a recipe that was run to its end. Raises Failure."""
        place = self.folder / name
        child = self.command(place, recipe, words)
        try:
            _, said = child.communicate(timeout=max(1.0, self.ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            raise Failure("did not end in time") from None
        if child.returncode != 0:
            raise Failure(
                said.decode(errors="replace").strip().splitlines()[-1] if said else f"exit {child.returncode}"
            )
        return next((place / "runs").iterdir())

    def equal(self, name: str, profile: str, processes: int, precision: str) -> None:
        """One recipe under one profile against the same on one device."""
        words = [f"launch.mixed_precision={precision}"]
        recipe = RECIPES[name]
        alone = self.folder / f"{name}-{precision}"
        if not alone.exists():
            self.run(alone.name, recipe, [*words, "launch.num_processes=1"])
        expected = numbers(next((alone / "runs").iterdir()))
        words += [f"launch.profile={profile}", f"launch.num_processes={processes}"]
        run = self.run(f"{name}-{precision}-{profile}-{processes}", recipe, words)
        compare(run, expected, "on one device")
        check_shares(run, profile, processes)

    def goes_on(self, processes: int) -> None:
        """Killed under fsdp2 behind its first checkpoint, a run goes on on one device."""
        place = self.killed("killed", "fsdp2", processes)
        self.resumed(place, ["launch.num_processes=1"])

    def killed(self, name: str, profile: str, processes: int) -> Path:
        """The folder of a run that is killed when it has written a checkpoint. Raises Failure."""
        place = self.folder / name
        words = [LONG, f"launch.profile={profile}", f"launch.num_processes={processes}"]
        child = self.command(place, PRETRAINING, words)
        events = place / "runs" / "decoder" / "events.jsonl"
        try:
            while not any(event["event"] == "checkpoint" for event in read_events(events)):
                if child.poll() is not None or time.monotonic() > self.ends:
                    raise Failure("no checkpoint was written")
                time.sleep(0.1)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        return place

    def resumed(self, place: Path, words: list[str]) -> None:
        """The run in the folder goes on from its checkpoint to its end. Raises Failure."""
        run = self.run(place.name, PRETRAINING, [LONG, *words])
        if not any(event.get("what") == "resumed" for event in read_events(run / "events.jsonl")):
            raise Failure("it began anew")

    def checks(self) -> Iterator[Check]:
        """Every row, in the order of the table."""
        yield Check("vocabulary losses, the kernels", 1, self.vocabulary)
        yield Check("attention by sequences, the kernel", 1, self.kernel)
        yield Check("attention by sequences, whole models", 1, self.sequences)
        yield Check("attention by sequences, a recipe", 1, self.packed)
        for kind in RECORDED:
            yield Check(
                f"steps as CUDA graphs, {kind}",
                1,
                lambda k=kind: self.recorded(k),
                "needs a GPU" if self.on_cpu else "",
            )
        lacking = "" if self.devices >= 2 else "needs 2 GPUs"
        without = "needs the package deepspeed" if find_spec("deepspeed") is None else ""
        without = without or ("needs GPUs" if self.on_cpu else lacking)
        for profile in ("zero2", "zero3"):
            yield Check(f"{profile}: losses, shares, LoRA", 2, lambda p=profile: self.by_zero(p), without)
            yield Check(f"{profile}: killed, goes on", 2, lambda p=profile: self.zero_goes_on(p), without)
        counts = sorted({2, self.devices} - {1})
        for precision in ("no", "bf16"):
            for profile in ("ddp", "fsdp2"):
                for processes in counts:
                    lacking = "" if self.devices >= processes else f"needs {processes} GPUs"
                    for name in RECIPES:
                        do = lambda n=name, p=profile, c=processes, m=precision: self.equal(n, p, c, m)  # noqa: E731
                        yield Check(f"{name}, {profile}, precision {precision}", processes, do, lacking)
        lacking = "" if self.devices >= 2 else "needs 2 GPUs"
        yield Check("killed under fsdp2, goes on on one", 2, lambda: self.goes_on(2), lacking)
        for name, precision in [(name, precision) for precision in ("no", "bf16") for name in RECIPES]:
            yield Check(f"{name}, one device, precision {precision}", 1, lambda n=name, m=precision: self.alone(n, m))

    def vocabulary(self) -> None:
        """Losses, log-probabilities, entropies and their gradients are those of all logits in double precision."""
        import torch

        from pipelines.models import linear_cross_entropy as ours

        kind = "cpu" if self.on_cpu else "cuda"
        if (ours._kernels(torch.device(kind, 0)) is None) != self.on_cpu:
            raise Failure("the kernels cannot be built: is there a C compiler?")
        generator = torch.Generator(kind).manual_seed(0)
        for tokens, dim, words, dtype, closest in (
            (300, 64, 50_257, torch.float32, 1e-4),
            (3000, 64, 50_257, torch.bfloat16, 1e-2),
            (500, 32, 4096, torch.float16, 1e-2),
        ):
            shapes = ((tokens, dim), (words, dim), (words,))
            states, weight, bias = (torch.randn(each, generator=generator, device=kind).to(dtype) for each in shapes)
            labels = torch.randint(0, words, (tokens,), generator=generator, device=kind)
            upstream = torch.rand(tokens, generator=generator, device=kind)
            exact = [each.double().requires_grad_() for each in (states, weight * 0.3, bias)]
            chances = (exact[0] @ exact[1].t() + exact[2]).log_softmax(-1)
            named = chances.gather(1, labels[:, None])[:, 0]
            summed = -0.9 * named.sum() - 0.1 * chances.mean(-1).sum()
            weighed = ((named - (chances.exp() * chances).sum(-1)) * upstream).sum()
            for what, expected in (("a sum", summed), ("log-probabilities", weighed)):
                own = [each.float().clone().requires_grad_() for each in (states, weight * 0.3, bias)]
                if what == "a sum":
                    found = ours.summed_cross_entropy(*own, labels, dtype, 0.1)
                else:
                    single, entropies = ours.log_probabilities_and_entropies(*own, labels, dtype)
                    found = ((single + entropies) * upstream).sum()
                if not abs(found.item() / expected.item() - 1) < closest:
                    raise Failure(f"{what} in {dtype} is {found.item():.6g}, not {expected.item():.6g}")
                found.backward()
                gradients = torch.autograd.grad(expected, exact, retain_graph=True)
                for name, one, other in zip(("states", "weight", "bias"), own, gradients, strict=True):
                    away = (one.grad.double() - other).norm() / other.norm()
                    if not away < closest:
                        raise Failure(f"{what} in {dtype}: the gradient of {name} is off by {away:.2g}")

    def kernel(self) -> None:
        """Outputs and gradients of `varlen_attn` in bfloat16 are those of scaled dot products in float32."""
        import torch

        from pipelines.models import varlen

        kind = "cpu" if self.on_cpu else "cuda"
        ask = varlen.one_by_one if self.on_cpu else torch.nn.attention.varlen.varlen_attn
        bounds = torch.tensor([0, 1, 8, 13, 78, 100], dtype=torch.int32, device=kind)
        generator = torch.Generator(kind).manual_seed(0)
        for window in WINDOWS:
            for heads, keys, size in ((4, 4, 8), (4, 2, 64), (8, 1, 128)):
                shapes = [(100, count, size) for count in (heads, keys, keys, heads)]
                *exact, upstream = (torch.randn(shape, generator=generator, device=kind) for shape in shapes)
                words = {"scale": size**-0.5, "window_size": window, "enable_gqa": heads != keys}
                answers = []
                for function, dtype in ((varlen.one_by_one, torch.float32), (ask, torch.bfloat16)):
                    states = [each.to(torch.bfloat16).to(dtype).requires_grad_() for each in exact]
                    said = function(*states, bounds, bounds, 65, 65, **words)
                    said.backward(upstream.to(torch.bfloat16).to(dtype))
                    answers.append([said, *(each.grad for each in states)])
                for what, expected, found in zip(("output", "query", "key", "value"), *answers, strict=True):
                    away = (found.float() - expected).norm() / expected.norm()
                    if not away < 0.02:
                        raise Failure(
                            f"window {window}, {heads} heads of {size}, {keys} keys: {what} is off by {away:.3f}"
                        )

    def sequences(self) -> None:
        """Losses and gradients of packed batches are those of masks, in single precision and by the kernel."""
        import torch

        from pipelines.models import varlen
        from tests.pipelines.models.test_varlen import CASES, learnt

        kind = "cpu" if self.on_cpu else "cuda"
        plain, asked = torch.nn.attention.varlen.varlen_attn, []

        def counted(*args: object, **kwargs: object) -> torch.Tensor:
            asked.append(kwargs)
            return plain(*args, **kwargs)

        torch.nn.attention.varlen.varlen_attn = counted
        try:
            for name in MODELS:
                case, answers = CASES[name], []
                for adopted, half in ((False, False), (True, False), (True, True)):
                    model = case.model(torch.float32).to(kind)
                    if adopted:
                        varlen.adopt(model)
                    batch = {key: value.to(kind) for key, value in case.batch(masks=not adopted).items()}
                    asked.clear()
                    with torch.autocast(kind, torch.bfloat16, enabled=half):
                        answers.append(learnt(model, batch))
                    if bool(asked) != (half and not self.on_cpu):
                        raise Failure(f"{name}: the kernel was asked {len(asked)} times")
                for (loss, gradients), closest in zip(answers[1:], ((1e-4, 0.9999), (2e-2, 0.99)), strict=True):
                    away = abs(loss - answers[0][0]) / answers[0][0]
                    alike = torch.nn.functional.cosine_similarity(gradients, answers[0][1], dim=0)
                    if not (away < closest[0] and alike > closest[1]):
                        raise Failure(f"{name}: the loss is off by {away:.2g}, cosine of the gradients {alike:.4f}")
        finally:
            torch.nn.attention.varlen.varlen_attn = plain

    def packed(self) -> None:
        """A recipe whose documents are kept apart takes the kernel, and its losses are numbers that fall."""
        run = self.run("packed", PACKED, ["launch.mixed_precision=bf16", "launch.num_processes=1"])
        events = list(read_events(run / "events.jsonl"))
        taken = any("kept apart by finery_varlen" in str(event.get("message")) for event in events)
        if taken == self.on_cpu:
            raise Failure("the stage did not say that it attends by sequences")
        losses = [number for (_, _, name), number in sorted(numbers(run).items()) if name == "loss"]
        if not losses or not losses[-1] < losses[0]:
            raise Failure(f"the losses are {losses}")

    def recorded(self, kind: str) -> None:
        """Replayed steps have the losses of launched ones, those that drop at random too, and gradients as near as two
        runs of launched steps have them."""
        import torch

        from pipelines.trainers.step_graphs import StepGraphs

        def learnt(graphs: bool) -> tuple[list[float], torch.Tensor, int]:
            model, batches, loss_of = recorded_kind(kind)
            model.cuda().train()
            torch.manual_seed(1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            told: list[str] = []
            meter = getattr(loss_of, "meter", None) or getattr(loss_of, "keywords", {}).get("meter")
            recordings, losses = StepGraphs(model, told.append, meter=meter), []

            def passes(batch: dict[str, torch.Tensor], items: torch.Tensor | None) -> torch.Tensor:
                with torch.autocast("cuda", torch.bfloat16):
                    loss = loss_of(model, batch)[0].sum() / items
                loss.backward()
                return loss.detach()

            for step in range(12):
                batch = {name: each.cuda() for name, each in batches[step % len(batches)].items()}
                items = torch.tensor([4.0], device="cuda")
                losses.append(recordings.loss(batch, items, passes) if graphs else passes(batch, items))
                optimizer.step()
                model.zero_grad()
            if graphs and not recordings.recordings:
                raise Failure(told[-1] if told else "nothing was recorded")
            weights = torch.cat([each.detach().flatten() for each in model.parameters()])
            means = {} if meter is None else meter.take(True)
            numbers = [each.item() for each in losses]
            numbers += [mean for name, mean in means.items() if "accurac" not in name]  # which a last digit decides
            return numbers, weights, len(recordings.recordings)

        launched, weights, _ = learnt(False)
        replayed, found, count = learnt(True)
        if count != 2:
            raise Failure(f"{count} shapes were recorded, not 2")
        away = max(abs(one - other) / max(abs(one), 1e-2) for one, other in zip(launched, replayed, strict=True))
        apart = ((weights - found).norm() / weights.norm()).item()
        print(f"    losses differ by {away:.1e}, weights by {apart:.1e}")
        if not (away < 1e-3 and apart < 1e-3):
            raise Failure(f"losses differ by {away:.2g}, weights by {apart:.2g}")

    def alone(self, name: str, precision: str) -> None:
        """The recipe ends on one device, with losses that are numbers."""
        place = self.folder / f"{name}-{precision}"
        run = next((place / "runs").iterdir()) if place.exists() else None
        run = run or self.run(
            place.name, RECIPES[name], [f"launch.mixed_precision={precision}", "launch.num_processes=1"]
        )
        if not numbers(run):
            raise Failure("no losses were logged")

    def by_zero(self, profile: str) -> None:
        """The losses of `ddp` on as many devices, LoRA included, and the share of the weights that the profile promises."""
        words = ["launch.num_processes=2", "launch.mixed_precision=no"]
        if not (self.folder / "zero-ddp").exists():
            self.run("zero-ddp", ZERO, [*words, "launch.profile=ddp"])
        expected = numbers(next((self.folder / "zero-ddp" / "runs").iterdir()))
        run = self.run(profile, ZERO, [*words, f"launch.profile={profile}"])
        compare(run, expected, "under ddp")
        check_shares(run, profile, 2)

    def zero_goes_on(self, profile: str) -> None:
        """Killed under DeepSpeed, a run goes on under the same profile; each process kept its part of the optimizer."""
        place = self.killed(f"{profile}-killed", profile, 2)
        run = next((place / "runs").iterdir())
        told = next(event for event in read_events(run / "events.jsonl") if event["event"] == "distributed")
        check_optimizer(place / "home", told["ranks"][0]["global"], 2)
        self.resumed(place, [f"launch.profile={profile}", "launch.num_processes=2"])


def compare(run: Path, expected: dict[tuple[str, int, str], float], where: str) -> None:
    """Raise Failure where what was logged is not what was expected."""
    found = numbers(run)
    if found.keys() != expected.keys():
        raise Failure(f"other steps were logged than {where}")
    for key, number in expected.items():
        if not abs(found[key] - number) <= max(RELATIVE[key[2]] * abs(number), SMALLEST):
            raise Failure(f"{key[0]}, step {key[1]}: {key[2]} is {found[key]:.5g}, {where} {number:.5g}")


def check_shares(run: Path, profile: str, processes: int) -> None:
    """Raise Failure where a process holds another share of the weights than the profile promises."""
    told = [event for event in read_events(run / "events.jsonl") if event["event"] == "distributed"]
    if not told:
        raise Failure("it does not say what each process holds")
    for event in told:
        for rank in event["ranks"]:
            share = rank["local"] / rank["global"]
            if not (share == 1 if profile in ("ddp", "zero2") else share < 1.3 / processes):
                raise Failure(f"{event['stage']}: rank {rank['rank']} holds {share:.0%} of the weights")


def check_optimizer(home: Path, weights: int, processes: int) -> None:
    """Raise Failure where DeepSpeed's newest checkpoint has another share of the optimizer's state for a process."""
    import torch

    steps: dict[Path, list[Path]] = {}
    for file in home.glob("stages/*/checkpoints/checkpoint-*/global_step*/*zero_pp_rank_*_optim_states.pt"):
        steps.setdefault(file.parent, []).append(file)
    if not steps:
        raise Failure("DeepSpeed left no state of an optimizer")
    files = sorted(steps[max(steps, key=lambda folder: int(folder.name.removeprefix("global_step")))])
    if len(files) != processes:
        raise Failure(f"{len(files)} processes kept a state of the optimizer")
    for file in files:
        share = elements(torch.load(file, map_location="cpu", weights_only=False)) / (STATES * weights)
        if not 0.7 / processes < share < 1.3 / processes:
            raise Failure(f"{file.name} holds {share:.0%} of the optimizer's state")


def elements(state: object) -> int:
    """How many numbers the tensors in nested containers hold, each storage counted once."""
    import torch

    seen: dict[int, int] = {}

    def walk(value: object) -> None:
        if isinstance(value, torch.Tensor):
            seen[value.data_ptr()] = value.numel()
        elif isinstance(value, dict):
            walk(list(value.values()))
        elif isinstance(value, list | tuple):
            for each in value:
                walk(each)

    walk(state)
    return sum(seen.values())


def main() -> int:
    """Run the checks; returns the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--on-cpu", type=int, metavar="N", help="so many processes on the CPU instead of GPUs")
    arguments.add_argument("--seconds", type=float, default=LIMIT, help="for everything (default %(default).0f)")
    given = arguments.parse_args()
    import torch

    devices = given.on_cpu or torch.cuda.device_count()
    if not devices:
        print("make test-gpu needs an NVIDIA GPU that torch can use, and there is none here.", file=sys.stderr)
        return UNAVAILABLE
    where = "the CPU" if given.on_cpu else torch.cuda.get_device_name(0)
    print(f"{devices} x {where}, torch {torch.__version__}\n")
    folder = Path(tempfile.mkdtemp(prefix="finery-gpu-"))
    return report(Bench(folder, devices, bool(given.on_cpu), given.seconds))


def report(bench: Bench) -> int:
    """Do each check and print its row; returns the exit code."""
    counts = dict.fromkeys(("passed", "FAILED", SKIPPED, "not run"), 0)
    print(f"{'what':<44} {'processes':>9}  {'seconds':>7}  outcome")
    for check in bench.checks():
        began, why = time.monotonic(), check.lacking
        outcome = "not run" if why else SKIPPED if began > bench.ends else "passed"
        if outcome == "passed":
            try:
                check.do()
            except Exception as error:  # whatever it is, the other rows are still to come
                outcome, why = "FAILED", str(error) if isinstance(error, Failure) else repr(error)
        counts[outcome] += 1
        told = f"{outcome}: {why}" if why else outcome
        print(f"{check.what:<44} {check.processes:>9}  {time.monotonic() - began:>7.1f}  {told}", flush=True)
    print("\n" + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    if counts["FAILED"]:
        print(f"The runs lie in {bench.folder}")
    else:
        shutil.rmtree(bench.folder)
    return 1 if counts["FAILED"] or counts[SKIPPED] else 0


if __name__ == "__main__":
    sys.exit(main())
