"""A job that was trained and evaluated: tiny models with random weights, whose logits were computed one text at a time."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.events import EventLog
from pipelines.core.interfaces import Context, Head, World
from pipelines.core.load import loads
from pipelines.core.recipe import Recipe

LABELS = ("not_equivalent", "equivalent")
PAIRS = [
    ("the harbour was closed", "they closed the harbour"),
    ("a train leaves at nine", "the train is late"),
    ("she read the letter twice", "twice she read the letter"),
    ("why", "because it rains"),
    ("the list is sorted " * 12, "sorting a list " * 9),
    ("nine trains", "ten letters"),
    ("it rains at the harbour", "the harbour is where it rains"),
]
KINDS = ("bert", "finery", "bert-lora", "finery-lora")


def stand_in() -> Any:
    """tests/hub_stand_in.py, which no package holds."""
    name = "hub_stand_in"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[2] / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A Hub that listens on this machine, and the real client pointed at it."""
    module = stand_in()
    with module.serving() as serving:
        module.connect(serving, monkeypatch)
        yield serving


def make_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = sorted({word for pair in PAIRS for text in pair for word in text.split()})
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=64,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def make_model(kind: str, folder: Path, head: Head) -> Any:
    """Write a trained model into `folder` as a training stage does; returns it, merged."""
    import torch

    torch.manual_seed(7)
    tokenizer = make_tokenizer()
    words: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
    }
    if head.labels:
        words |= {"id2label": dict(enumerate(head.labels)), "label2id": {name: n for n, name in enumerate(head.labels)}}
    elif head.kind == "sequence_classification":
        words |= {"num_labels": 1, "problem_type": "regression"}
    if kind.startswith("finery"):
        from pipelines.architectures import FineryConfig as Config
        from pipelines.architectures import FineryForMaskedLM as ForMaskedLM
        from pipelines.architectures import FineryForSequenceClassification as ForSequenceClassification
    else:
        from transformers import BertConfig as Config
        from transformers import BertForMaskedLM as ForMaskedLM
        from transformers import BertForSequenceClassification as ForSequenceClassification
    model = {"masked_lm": ForMaskedLM, "sequence_classification": ForSequenceClassification}[head.kind](Config(**words))
    with torch.no_grad():
        for (
            parameter
        ) in model.parameters():  # far from the symmetric start, so that logits differ by more than rounding
            parameter.add_(torch.randn_like(parameter) * 0.3)
    if kind.endswith("-lora"):
        from peft import LoraConfig, PeftModel, get_peft_model

        model.save_pretrained(folder.parent / "base")
        base = type(model).from_pretrained(folder.parent / "base")
        targets = [
            name
            for name, module in base.named_modules()
            if isinstance(module, torch.nn.Linear) and "classifier" not in name
        ]
        adapted = get_peft_model(
            base, LoraConfig(r=2, lora_alpha=4, target_modules=targets, modules_to_save=["classifier"])
        )
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "lora_" in name or "modules_to_save" in name:
                    parameter.add_(torch.randn_like(parameter) * 0.2)
        adapted.save_pretrained(folder)
        again = PeftModel.from_pretrained(type(model).from_pretrained(folder.parent / "base"), str(folder))
        model = again.merge_and_unload()
    else:
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "head.json").write_text(json.dumps({"kind": head.kind, "labels": list(head.labels)}))
    return model.eval()


def logits_one_by_one(model: Any, pairs: list[tuple[str, str]], max_length: int) -> list[list[float]]:
    """The slow way: no batch, no padding."""
    import torch

    tokenizer = make_tokenizer()
    with torch.no_grad():
        return [
            model(**tokenizer(one, other, truncation=True, max_length=max_length, return_tensors="pt"))
            .logits[0]
            .tolist()
            for one, other in pairs
        ]


def write_evaluation(
    folder: Path, model: Any, stage: str, benchmark: str, scores: dict[str, float], max_length: int = 24
) -> None:
    """What an evaluate stage leaves behind."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    logits = logits_one_by_one(model, PAIRS, max_length)
    predictions = [max(range(len(row)), key=row.__getitem__) if len(row) > 1 else row[0] for row in logits]
    table = pa.table(
        {
            "benchmark": [benchmark] * len(PAIRS),
            "split": ["validation"] * len(PAIRS),
            "index": list(range(len(PAIRS))),
            "label": predictions,
            "prediction": predictions,
            "logits": pa.array(logits, pa.list_(pa.float32())),
            "text": [one for one, _ in PAIRS],
            "text_pair": [other for _, other in PAIRS],
        }
    )
    pq.write_table(table, folder / "predictions.parquet")
    (folder / "metrics.json").write_text(json.dumps({benchmark: scores}))
    about = {
        "model": stage,
        "examples": {"validation": len(PAIRS)},
        "intervals": {name: [value - 0.05, value + 0.05] for name, value in scores.items()},
        "baselines": {"majority": dict.fromkeys(scores, 0.5)},
        "max_length": max_length,
    }
    (folder / "details.json").write_text(json.dumps({benchmark: about}))


@dataclass
class Job:
    """A job up to its publish stage."""

    folder: Path
    recipe: Recipe
    kind: str
    tokenizer: Any = field(default_factory=lambda: make_tokenizer())

    @property
    def publish(self) -> Any:
        return self.recipe.stages[-1]

    def folders(self) -> dict[str, Path]:
        return {stage.id: self.folder / "stages" / stage.id for stage in self.recipe.stages[:-1]}

    def context(self, fingerprint: str = "c0ffee" * 5, **changes: Any) -> Context:
        from pipelines.models.opening import open_folder

        own = self.folder / "stages" / fingerprint
        own.mkdir(parents=True, exist_ok=True)
        folders = self.folders()
        source = self.recipe.model_of(self.publish)

        def open_model(head: Head, stage_id: str | None = None, merge: bool = True, trained_head: bool = False) -> Any:
            return open_folder(folders[stage_id or source] / "model", head, 1, merge=merge, trained_head=trained_head)

        values: dict[str, Any] = {
            "stage_id": self.publish.id,
            "folder": own,
            "fingerprint": fingerprint,
            "seed": 1,
            "recipe": self.recipe,
            "events": EventLog(self.folder / "events.jsonl", self.publish.id),
            "world": World(),
            "precision": "no",
            "cache": self.folder,
            "stage_folders": folders,
            "open_model": open_model,
            "open_tokenizer": lambda stage_id=None: self.tokenizer,
        }
        return Context(**(values | changes))


def recipe_text(to: str, tuner: str = "full", publish: str = "", task: str = "glue/mrpc", evaluate: bool = True) -> str:
    scored = f"  - {{stage: evaluate, benchmarks: [{task}]}}\n" if evaluate else ""
    return (
        "name: tiny-mrpc\nmodel: {architecture: {preset: bert-tiny}}\nstages:\n"
        f"  - {{stage: supervised, id: mrpc, task: {task}, tuner: {tuner}, arguments: {{learning_rate: 1e-3}}}}\n"
        f"{scored}  - {{stage: publish, to: '{to}'{publish}}}\n"
    )


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """kind -> the stages of a job with such a model; made once, to be copied."""
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            root = tmp_path_factory.mktemp(kind)
            model = make_model(kind, root / "mrpc" / "model", Head("sequence_classification", LABELS))
            (root / "mrpc" / "metrics.json").write_text(
                json.dumps({"train_runtime": 12.5, "trainable_parameters": 4321})
            )
            (root / "mrpc" / "stage.json").write_text(
                json.dumps({"fingerprint": "ab" * 16, "data": {"train": "cd" * 16}})
            )
            write_evaluation(root / "evaluate", model, "mrpc", "glue/mrpc", {"accuracy": 0.75, "f1": 0.8125})
            made[kind] = root
        return made[kind]

    return make


@pytest.fixture
def job(tmp_path: Path, trained: Callable[[str], Path]) -> Callable[..., Job]:
    """`job(kind, to, publish=", merge: false")`: a job that only has to be published."""

    def make(kind: str = "bert", to: str | None = None, publish: str = "") -> Job:
        folder = tmp_path / "run"
        shutil.copytree(trained(kind), folder / "stages")
        config = folder / "stages/mrpc/model/adapter_config.json"
        if config.exists():  # an adapter names its base by path
            record = json.loads(config.read_text()) | {"base_model_name_or_path": str(folder / "stages/mrpc/base")}
            config.write_text(json.dumps(record))
        text = recipe_text(
            to or str(tmp_path / "registry" / "tiny"), "lora" if kind.endswith("lora") else "full", publish
        )
        return Job(folder, loads(text), kind)

    return make


@pytest.fixture
def language_model(tmp_path: Path) -> Job:
    """A pretrained model that nothing was measured on."""
    text = (
        "name: lm\nmodel: {architecture: {preset: bert-tiny}}\nstages:\n"
        "  - {stage: pretrain, datasets: [{path: builtin/python-docs}], arguments: {max_steps: 1}}\n"
        f"  - {{stage: publish, to: '{tmp_path / 'lm'}'}}\n"
    )
    made = Job(tmp_path / "run", loads(text), "bert")
    stage = tmp_path / "run/stages/pretrain"
    make_model("bert", stage / "model", Head("masked_lm"))
    (stage / "stage.json").write_text(json.dumps({"fingerprint": "ab" * 16, "data": {"x": "y"}}))
    return made


SIZES: dict[str, dict[str, Any]] = {
    "finery": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 64},
    "bert": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 64},
    "albert": {"hidden_size": 16, "embedding_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 64},
    "electra": {"hidden_size": 16, "embedding_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 64},
    "llama": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 64},
    "gpt2": {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64},
    "t5": {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2},
    "bart": {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64},
    "xlnet": {"d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 32},
}  # fmt: skip
"""The smallest shapes, by model type."""


@pytest.fixture
def pretrained(tmp_path: Path) -> Callable[..., Job]:
    """`pretrained(model_type, objective, **words)`: a job whose model learnt by that objective, as the stage leaves it."""

    def make(model_type: str, objective: str, tuner: str = "full", publish: str = "", **words: Any) -> Job:
        import torch

        from pipelines.core.registry import OBJECTIVES
        from pipelines.models import opening
        from pipelines.models.tokenizer import has_segments, without_segments

        shape = {"model_type": model_type, **SIZES[model_type], **words}
        pairs = OBJECTIVES.load(objective).pairs
        learnt = (
            f"{{stage: supervised, id: lm, objective: {objective}, task: {{kind: seq2seq, source: text, target: source, train: builtin/python-docs}}, max_length: 32"
            if pairs
            else f"{{stage: pretrain, id: lm, objective: {objective}, datasets: [{{path: builtin/python-docs}}], block_size: 32"
        )
        text = (
            f"name: lm\nmodel: {{architecture: {json.dumps(shape)}}}\nstages:\n"
            f"  - {learnt}, tuner: {tuner}}}\n  - {{stage: publish, to: '{tmp_path / 'lm'}'{publish}}}\n"
        )
        made = Job(tmp_path / "run", loads(text), model_type)
        if not has_segments(shape):
            made.tokenizer = without_segments(make_tokenizer())
        head = made.recipe.stages[0].objective.head
        stage = tmp_path / "run/stages/lm"
        model = opening.build(shape, head, made.tokenizer, seed=3)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        if tuner != "full":
            model.save_pretrained(stage / "base")
            model.name_or_path = str(stage / "base")
            model = made.recipe.stages[0].tuner.apply(model)
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if "lora_B" in name or ".up." in name:
                        parameter.add_(torch.randn_like(parameter) * 0.1)
        model.save_pretrained(stage / "model")
        (stage / "model/head.json").write_text(json.dumps({"kind": head.kind, "labels": list(head.labels)}))
        (stage / "stage.json").write_text(json.dumps({"fingerprint": "ab" * 16, "data": {"x": "y"}}))
        return made

    return make


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer for the clean process in this one, for tests that are about something else."""
    from pipelines.publishing import clean_room, verify

    def here(folder: Path, groups: Any, auto_class: str, adapter: bool, code: Any = None) -> dict[str, Any]:
        return verify.answers_here(*clean_room.load(str(folder), auto_class, adapter, code), groups)

    monkeypatch.setattr(verify, "clean_answers", here)
