"""What is a group of its own when a model is divided, what is refused, and what each process holds."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from pipelines.core.errors import IncompatibleError, RecipeError
from pipelines.core.load import loads
from pipelines.models import fsdp
from tests import tiny


class Layer(nn.Module):
    def __init__(self, inner: nn.Linear | None = None) -> None:
        super().__init__()
        self.inner = inner or nn.Linear(4, 4)
        self.parts = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.inner(states)


class Model(nn.Module):
    def __init__(self, layers: list[Layer], heads: int = 0) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"layers": nn.ModuleList(layers)})
        self.heads = nn.ModuleList(nn.ModuleDict({"out": nn.Linear(4, 2)}) for _ in range(heads))


def test_each_layer_of_the_outermost_stacks_is_a_group() -> None:
    layers = [Layer(), Layer()]
    assert fsdp.layers_of(Model(layers, heads=2)) == layers  # not what is inside of them, nor dictionaries of heads


def test_layers_that_share_weights_stay_with_the_rest() -> None:
    shared = nn.Linear(4, 4)
    alone = Layer()
    assert fsdp.layers_of(Model([Layer(shared), Layer(shared), alone])) == [alone]
    model = Model([first := Layer(), alone])
    model.tied = first.inner
    assert fsdp.layers_of(model) == [alone]
    repeated = Layer()
    assert fsdp.layers_of(Model([repeated, repeated])) == [repeated]  # one layer, asked twice


@pytest.mark.parametrize(
    "weight", [nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(3, dtype=torch.uint8), False)]
)
def test_a_weight_that_cannot_be_divided_is_refused(weight: nn.Parameter) -> None:
    model = nn.Linear(2, 2)
    model.odd = weight
    with pytest.raises(
        IncompatibleError, match=r"the weight odd is .*, which fsdp2 cannot divide; use the profile ddp"
    ):
        fsdp.shard(model, torch.device("cpu"), 2)


RECIPE = """\
name: divided
launch: {profile: fsdp2, num_processes: 2}
model: {architecture: {preset: bert-tiny}}
stages:
  - {stage: pretrain, datasets: [{path: builtin/python-docs}]}
  - {stage: supervised, task: builtin/python-docs}
"""


@pytest.mark.parametrize(
    ("override", "mistake"),
    [
        ("stages.pretrain.arguments.optim=muon", "arguments.optim: is muon, which needs whole matrices"),
        ("stages.pretrain.arguments.torch_compile=true", "is true, which is not offered with the profile fsdp2"),
        ("stages.supervised.tuner={name: full, gradual_unfreezing: true}", "is full with gradual_unfreezing, which"),
        ("stages.supervised.tuner=qlora", "is qlora, whose packed weights fsdp2 cannot divide"),
        ("stages.pretrain.arguments.optim=adafactor", "arguments.optim: is adafactor, which needs whole matrices"),
    ],
)
def test_what_divided_weights_cannot_do_is_said_before_anything_loads(override: str, mistake: str) -> None:
    loads(RECIPE.replace("fsdp2", "ddp"), overrides=[override])
    with pytest.raises(RecipeError) as raised:
        loads(RECIPE, overrides=[override])
    assert mistake in str(raised.value)


STAGES = """\
name: divided
launch: {profile: fsdp2, num_processes: 2}
model: {architecture: {preset: gpt-tiny}}
stages:
  - {stage: pretrain, objective: causal_lm, datasets: [{path: builtin/python-docs}]}
  - {stage: supervised, id: one, from: pretrain, task: builtin/python-docs, tuner: adapter}
  - {stage: supervised, id: two, from: pretrain, task: builtin/python-docs, tuner: adapter}
  - {from: pretrain, LAST}
"""
TASKS = "stage: multi_task, tasks: [{task: builtin/python-docs}, {id: b, task: builtin/python-docs}]"
SAMPLING = "prompts: {path: builtin/python-docs, text: text}, reward: {name: pattern, pattern: a}"


@pytest.mark.parametrize(
    ("last", "mistake"),
    [
        (
            "stage: supervised, task: builtin/python-docs, tuner: {name: fusion, adapters: [one, two]}",
            "tuner.value_regularization: is a penalty on whole matrices, which no process has under fsdp2; make it 0, or",
        ),
        (f"{TASKS}, gradient_surgery: pcgrad", "gradient_surgery: works on one process, and fsdp2 has several"),
        (
            f"{TASKS}, tasks_per_step: 2, gradient_conflicts: 2",
            "gradient_conflicts: compares whole gradients, which no",
        ),
        (f"stage: grpo, {SAMPLING}", "stage: is grpo, whose sampling by TRL gathers no divided weights"),
        (f"stage: rloo, {SAMPLING}", "stage: is rloo, whose sampling by TRL gathers no divided weights"),
        (f"stage: ppo, {SAMPLING}, rollouts: vllm", "rollouts: is vllm, which is used on one process here"),
    ],
)
def test_a_stage_that_needs_whole_weights_or_gradients_is_refused_once(last: str, mistake: str) -> None:
    recipe = STAGES.replace("LAST", last)
    loads(recipe.replace("{profile: fsdp2, num_processes: 2}", "{num_processes: 1}"))
    with pytest.raises(RecipeError) as raised:
        loads(recipe)
    assert mistake in str(raised.value)
    assert len(raised.value.mistakes) == 1


def on_two_processes(program: str, *words: object) -> None:
    """Run `program` in two processes, each with its rank, a port for both and the words."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank), port, *map(str, words)], stderr=subprocess.PIPE, text=True
        )
        for rank in (0, 1)
    ]
    for child in children:
        _, wrong = child.communicate(timeout=300)
        assert child.returncode == 0, wrong[-2000:]


MEASURED = """
import sys
import torch
import torch.distributed
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import BertConfig, BertForSequenceClassification
from pipelines.models import fsdp
rank, port = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
words = dict(hidden_size=128, intermediate_size=512, num_attention_heads=4, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
model = BertForSequenceClassification(BertConfig(vocab_size=256, num_hidden_layers=8, max_position_embeddings=32, **words))
whole = sum(each.numel() for each in model.parameters()) * 4
layer = sum(each.numel() for each in model.bert.encoder.layer[0].parameters()) * 4
rest = whole - 8 * layer
fsdp.shard(model, torch.device("cpu"), 2)
assert fsdp.elements(model)[1] * 4 == whole
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
tracker = MemTracker()
tracker.track_external(model, optimizer)
with tracker:
    for step in range(2):
        model(input_ids=torch.arange(8)[None], labels=torch.zeros(1, dtype=torch.long)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 0:
            tracker.reset_mod_stats()
peak = {str(kind): held for kind, held in tracker.get_tracker_snapshot("peak")[torch.device("cpu")].items()}
kinds = {kind.rpartition(".")[2]: held for kind, held in peak.items()}
assert kinds["PARAM"] <= whole / 2 + layer + rest + 4096, (kinds, whole, layer, rest)
assert kinds["OPT"] <= whole + 4096, (kinds, whole)
held = kinds["Total"] - kinds["ACT"] - kinds["BUFFER"]
assert held <= 4 * whole / 2 + 4 * layer, (kinds, whole, layer, rest)  # a part of all, and of one layer all
assert kinds["Total"] <= 4 * whole / 2 + 3 * layer + 2 * rest + kinds["ACT"] + kinds["BUFFER"] + 8192, (kinds, whole, layer, rest)
torch.distributed.destroy_process_group()
"""


@pytest.mark.long
def test_a_process_holds_its_part_and_what_is_whole_at_once() -> None:
    """Weights, gradients and two moments: a half of each, and beside it three layers and twice what is in none."""
    on_two_processes(MEASURED)


SAMPLED = """
import sys
import torch
import torch.distributed
import torch.distributed.fsdp._fully_shard._fsdp_param_group as groups
from transformers import LlamaConfig, LlamaForCausalLM
from pipelines.runs.planning.communication import communication
from pipelines.models import fsdp
rank, port = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
words = dict(hidden_size=16, intermediate_size=32, num_attention_heads=2, num_hidden_layers=3)
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, eos_token_id=63, pad_token_id=0, **words))
fsdp.shard(model, torch.device("cpu"), 2)
made, own = [], groups.foreach_all_gather
groups.foreach_all_gather = lambda *given, **named: made.append(1) or own(*given, **named)
ids = torch.ones(2, 4, dtype=torch.long)
for tokens in (1, 5):
    made.clear()
    with torch.no_grad():
        model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens)
    planned = communication("fsdp2", 2, 1, 1, 1, 3, 0, reads=1, sampled=tokens - 1).operations
    assert len(made) == planned == 3 * tokens + 1, (len(made), planned)
made.clear()
model(input_ids=ids, labels=ids).loss.backward()
assert len(made) == 2 * 3 + 1, made
torch.distributed.destroy_process_group()
"""


@pytest.mark.long
def test_a_plan_counts_the_gathers_of_a_divided_model_that_writes() -> None:
    """Each token gathers every layer; what is in no layer stays until the text is written."""
    on_two_processes(SAMPLED)


DIVIDED_REWARDS = """
import sys
import torch
import torch.distributed
from pathlib import Path
from types import SimpleNamespace
from pipelines.core.interfaces import World
from pipelines.models import fsdp, opening
from pipelines.rewards import reward
from pipelines.rewards.classifier import Classifier
from pipelines.runs.distributed import MainProcess, gather
from transformers import AutoTokenizer
rank, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)

def open_model(head, stage_id=None, checkpoint=None, trained_head=False):
    return opening.open_folder(checkpoint, head, 3, trained_head=trained_head)

def open_tokenizer(stage_id=None, checkpoint=None):
    return AutoTokenizer.from_pretrained(checkpoint)

held, make = [], reward.ready
reward.ready = lambda *given: held.append(make(*given)) or held[-1]
texts = (["the film", "a", "a book was"], [" is good", " cat reads and the dog runs", " dull"])
texts = tuple(column[rank:] + column[:rank] for column in texts)  # each process its own
found = {}
for profile in ("ddp", "fsdp2"):
    world = World(rank, 2, profile)
    context = SimpleNamespace(world=world, gather=gather(MainProcess(world, Path(folder))), open_model=open_model, open_tokenizer=open_tokenizer)
    block = Classifier.model_validate({"checkpoint": folder, "label": "yes", "output": "logit", "max_length": 16})
    scorer = block.open(context)
    found[profile] = scorer(*texts)
    own, whole = fsdp.elements(held[-1])
    assert own == whole if profile == "ddp" else own < 0.55 * whole, (profile, own, whole)
    layers = sum(1 for each in held[-1].modules() if isinstance(each, fsdp.FSDPModule))
    assert layers == (0 if profile == "ddp" else 3), layers
    assert all(isinstance(each, fsdp.DTensor) for each in held[-1].parameters()) == (profile == "fsdp2")
assert max(abs(a - b) for a, b in zip(found["ddp"], found["fsdp2"])) < 1e-5, found
assert len(set(found["ddp"])) == 3, found
torch.distributed.destroy_process_group()
"""


@pytest.mark.long
def test_a_classifier_that_rewards_is_divided_as_what_it_rewards(tmp_path: Path) -> None:
    """The scores are those of a whole copy; a process keeps its part alone, before and after it has scored."""
    tiny.build("finery", tiny.TWO, initializer_range=0.5).save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    on_two_processes(DIVIDED_REWARDS, tmp_path)


OPENED_ONCE = """
import sys
import psutil
import torch
import torch.distributed
from pathlib import Path
from types import SimpleNamespace
from transformers import BertConfig, BertForSequenceClassification
from pipelines.core.interfaces import Head, World
from pipelines.models import opening
from pipelines.models.open_once import open_once
from pipelines.runs.distributed import MainProcess, gather
from pipelines.models import fsdp
rank, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
world, head = World(rank, 2, "fsdp2"), Head("sequence_classification", ("bad", "good"))
opening.open_folder(folder, head, 3)  # libraries and caches are there, whoever opens
before = psutil.Process().memory_full_info().uss
context = SimpleNamespace(world=world, gather=gather(MainProcess(world, Path(folder))))
model = open_once(context, head, lambda: opening.open_folder(folder, head, 3))
opened = psutil.Process().memory_full_info().uss - before
weights = list(model.parameters())
whole, largest = (4 * choose(each.numel() for each in weights) for choose in (sum, max))
del weights
assert opened < whole / 10 if rank else opened > whole / 2, (opened, whole)
fsdp.shard(model, torch.device("cpu"), 2)
after = psutil.Process().memory_full_info().uss - before
assert after < whole / 2 + largest / 2 + 30e6, (rank, after, whole, largest)
plain = dict(opening.open_folder(folder, head, 3).named_parameters())
for name, weight in model.named_parameters():
    assert torch.equal(fsdp.whole(weight), plain[name]), name
mask = torch.ones(2, 8, dtype=torch.long)
assert fsdp.is_sharded(model) and model.finery_text_place == "first"
torch.distributed.destroy_process_group()
"""


@pytest.mark.long
def test_a_model_is_read_by_one_process_and_every_other_gets_its_part(tmp_path: Path) -> None:
    """Of 300 MB the second process has next to nothing when the model is open, and half of it when it is divided."""
    from transformers import BertConfig, BertModel

    words = {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, "num_hidden_layers": 16}
    model = BertModel(BertConfig(vocab_size=40_000, **words))
    model.bfloat16().save_pretrained(tmp_path)  # as most are published: float32 would only be mapped
    on_two_processes(OPENED_ONCE, tmp_path)


SAVED = """
import ctypes
import re
import sys
from pathlib import Path
import torch
import torch.distributed
from transformers import BertConfig, BertForSequenceClassification
from pipelines.core.interfaces import World
from pipelines.models import fsdp
from pipelines.trainers.sharding import write_optimizer
rank, port, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
words = dict(hidden_size=512, intermediate_size=2048, num_attention_heads=8, num_hidden_layers=32)
model, world = BertForSequenceClassification(BertConfig(vocab_size=40_000, **words)), World(rank, 2, "fsdp2")
sizes = [4 * each.numel() for each in model.parameters()]
whole, largest = sum(sizes), max(sizes)
fsdp.shard(model, torch.device("cpu"), 2)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for weight in model.parameters():
    weight.grad = torch.zeros_like(weight)
optimizer.step()
optimizer.zero_grad()

def status(name):
    return int(re.search(rf"{name}:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

def most(work):
    ctypes.CDLL(None).malloc_trim(0)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the most begins anew
    work()
    torch.distributed.barrier()
    return status("VmHWM") - before

def save():
    with fsdp.gathered(model, world=world):
        if world.is_main:
            model.save_pretrained(folder)

saving, writing = most(save), most(lambda: write_optimizer(optimizer, folder, world))
assert 5 * largest < whole, (whole, largest)
assert saving < (0 if rank else whole) + 3.5 * largest, (rank, saving, whole, largest)
assert writing < 3.5 * largest, (rank, writing, largest)
torch.distributed.destroy_process_group()
"""


@pytest.mark.long
def test_saving_takes_one_whole_model_on_the_first_process_and_a_weight_at_a_time_on_others(tmp_path: Path) -> None:
    """Of a model of 488 MB whose largest weight has 82, gathering which takes it twice, and once more where gloo's
    thread is late to give its own copy back."""
    on_two_processes(SAVED, tmp_path)
