"""Every name a recipe may use, and where the code behind it lives.

One table per family: public name on the left, `module:attribute` on the right. A new method is one new file and
one line here. Recipes never hold import paths, so a recipe that arrives over the network can only name what stands
in these tables. Looking a name up imports its module; no table imports anything by being read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from pipelines.core.files import configs_folder


def nearest(word: str, names: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the closest known name, or nothing."""
    close = get_close_matches(word, list(names), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""


class UnknownName(ValueError):
    """A name that stands in no table; the message lists what does."""


class Registry(Mapping[str, str]):
    """A table of public names. `load` imports what a name stands for."""

    def __init__(self, kind: str, table: dict[str, str]) -> None:
        self.kind = kind
        self._table = table

    def __getitem__(self, name: str) -> str:
        return self._table[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def unknown(self, name: object) -> str:
        """The sentence for a name that is not in the table."""
        return f"unknown {self.kind} '{name}'.{nearest(str(name), self)} Available: {', '.join(sorted(self))}"

    def module(self, name: str) -> str:
        """The dotted module that holds `name`."""
        return self[name].partition(":")[0]

    def load(self, name: str) -> Any:
        """The class or value behind `name`. Raises UnknownName."""
        if name not in self:
            raise UnknownName(self.unknown(name))
        module, _, attribute = self[name].partition(":")
        return getattr(import_module(module), attribute)

    def where(self, holds: Callable[[Any], bool]) -> tuple[str, ...]:
        """The names of what it holds for, in the order of the table. Imports every entry."""
        return tuple(name for name in self if holds(self.load(name)))


class TaskKinds(Registry):
    """A table of folders, each a kind of task; `…:Causal` names what stands in them.

    `task.py` has the block `Causal`, which a recipe check loads; `training.py` has `CausalTraining` and `evaluation.py`
    has `CausalEvaluation`, loaded where a model is open.
    """

    def load(self, name: str) -> Any:
        """The block that describes a task of the kind in a recipe. Raises UnknownName."""
        return self.part(name, "task")

    def part(self, name: str, part: Literal["task", "training", "evaluation"]) -> Any:
        """The class in one of the three files of a kind's folder. Raises UnknownName."""
        if name not in self:
            raise UnknownName(self.unknown(name))
        folder, _, named = self[name].partition(":")
        return getattr(import_module(f"{folder}.{part}"), named if part == "task" else named + part.title())


class Benchmarks(Registry):
    """The named tasks: a YAML file each below `configs/tasks`, read when it is asked for."""

    def path(self, name: str) -> Path:
        """The file that describes the task."""
        return self._files[name]

    @cached_property
    def _files(self) -> dict[str, Path]:
        folder = configs_folder() / "tasks"
        return {str(file.relative_to(folder).with_suffix("")): file for file in sorted(folder.rglob("*.yaml"))}

    def __getitem__(self, name: str) -> str:
        self._files[name]
        return "pipelines.tasks.benchmarks:read"

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def load(self, name: str) -> Any:
        """The task. Raises UnknownName."""
        return super().load(name)(name)


STAGES = Registry(
    "stage",
    {
        "pretrain": "pipelines.trainers.pretrain:Pretrain",
        "supervised": "pipelines.trainers.supervised:Supervised",
        "multi_task": "pipelines.trainers.multi_task:MultiTask",
        "reward": "pipelines.trainers.reward:Reward",
        "dpo": "pipelines.trainers.dpo:DPO",
        "kto": "pipelines.trainers.kto:KTO",
        "grpo": "pipelines.trainers.grpo:GRPO",
        "rloo": "pipelines.trainers.rloo:RLOO",
        "feedback": "pipelines.feedback.feedback:Feedback",
        "ppo": "pipelines.trainers.ppo:PPO",
        "evaluate": "pipelines.evaluation.evaluate:Evaluate",
        "features": "pipelines.evaluation.features.stage:FeatureProbe",
        "publish": "pipelines.publishing.publish:Publish",
    },
)
"""What a recipe is a list of."""

OBJECTIVES = Registry(
    "objective",
    {
        "masked_lm": "pipelines.objectives.masked_lm:MaskedLM",
        "next_sentence": "pipelines.objectives.sentence_pairs:NextSentence",
        "sentence_order": "pipelines.objectives.sentence_pairs:SentenceOrder",
        "causal_lm": "pipelines.objectives.causal_lm:CausalLM",
        "bidirectional_lm": "pipelines.objectives.bidirectional_lm:BidirectionalLM",
        "prefix_lm": "pipelines.objectives.prefix_lm:PrefixLM",
        "permutation_lm": "pipelines.objectives.permutation_lm:PermutationLM",
        "span_corruption": "pipelines.objectives.span_corruption:SpanCorruption",
        "denoising": "pipelines.objectives.denoising:Denoising",
        "replaced_token_detection": "pipelines.objectives.replaced_token_detection:ReplacedTokenDetection",
        "seq2seq": "pipelines.objectives.seq2seq:Seq2SeqObjective",
        "mask_predict": "pipelines.objectives.mask_predict:MaskPredict",
    },
)
"""What pretraining asks the model to do."""

TUNERS = Registry(
    "tuner",
    {
        "full": "pipelines.tuners.full:Full",
        "last_layer": "pipelines.tuners.last_layer:LastLayer",
        "bitfit": "pipelines.tuners.bitfit:BitFit",
        "lora": "pipelines.tuners.lora:LoRA",
        "qlora": "pipelines.tuners.qlora:QLoRA",
        "ia3": "pipelines.tuners.ia3:IA3",
        "adapter": "pipelines.tuners.adapter:Adapter",
        "fusion": "pipelines.tuners.fusion:Fusion",
        "prefix": "pipelines.tuners.prefix:Prefix",
        "prompt": "pipelines.tuners.prompt:Prompt",
        "p_tuning": "pipelines.tuners.p_tuning:PTuning",
    },
)
"""Which weights learn."""

TOKENIZERS = Registry(
    "tokenizer",
    {
        "wordpiece": "pipelines.data.tokenizers.wordpiece:WordPiece",
        "bpe": "pipelines.data.tokenizers.bpe:BPE",
        "byte_bpe": "pipelines.data.tokenizers.bpe:ByteBPE",
        "unigram": "pipelines.data.tokenizers.unigram:Unigram",
    },
)
"""How a vocabulary is trained."""

SOURCES = Registry(
    "source",
    {
        "builtin": "pipelines.data.builtin:find",
        "stage": "pipelines.data.stage_files:find",
        "mirror": "pipelines.data.mirror:find",
        "files": "pipelines.data.files:find",
        "hub": "pipelines.data.hub:find",
    },
)
"""Where a data set is looked for, in this order."""

TASK_KINDS = TaskKinds(
    "task kind",
    {
        "classification": "pipelines.tasks.classification:Classification",
        "regression": "pipelines.tasks.regression:Regression",
        "seq2seq": "pipelines.tasks.seq2seq:Seq2Seq",
        "token_classification": "pipelines.tasks.token_classification:TokenClassification",
        "qa": "pipelines.tasks.extractive_qa:ExtractiveQA",
        "multiple_choice": "pipelines.tasks.multiple_choice:MultipleChoice",
        "causal": "pipelines.tasks.causal:Causal",
        "instruction_pairs": "pipelines.tasks.instruction_pairs:InstructionPairs",
        "preference": "pipelines.tasks.preference:Preference",
    },
)
"""Shapes of a labelled task: how each is described, learnt and evaluated."""

TASKS = Benchmarks("task", {})
"""Labelled tasks that a recipe names instead of describing: `glue/mrpc` is the file `configs/tasks/glue/mrpc.yaml`."""

METRICS = Registry(
    "metric",
    {
        "accuracy": "pipelines.metrics.classification:Accuracy",
        "bleu": "pipelines.metrics.sacrebleu:Bleu",
        "chrf": "pipelines.metrics.sacrebleu:Chrf",
        "f1": "pipelines.metrics.classification:F1",
        "matthews_correlation": "pipelines.metrics.classification:MatthewsCorrelation",
        "pearson": "pipelines.metrics.correlation:Pearson",
        "spearmanr": "pipelines.metrics.correlation:Spearmanr",
        "seqeval": "pipelines.metrics.seqeval:Seqeval",
        "squad": "pipelines.metrics.squad:Squad",
        "squad_v2": "pipelines.metrics.squad:SquadV2",
        "rouge1": "pipelines.metrics.rouge:Rouge1",
        "rouge2": "pipelines.metrics.rouge:Rouge2",
        "rougeL": "pipelines.metrics.rouge:Rougel",
        "exact_match": "pipelines.metrics.exact_match:ExactMatch",
    },
)
"""What predictions are worth: see `pipelines.metrics.base`."""

BASELINES = Registry(
    "baseline",
    {
        "copy_source": "pipelines.evaluation.baselines:copy_source",
        "longer": "pipelines.evaluation.baselines:longer",
        "majority": "pipelines.evaluation.baselines:majority",
        "majority_by_word": "pipelines.evaluation.baselines:majority_by_word",
        "naive_bayes": "pipelines.evaluation.baselines:naive_bayes",
        "naive_bayes_pairs": "pipelines.evaluation.baselines:naive_bayes_pairs",
        "shorter": "pipelines.evaluation.baselines:shorter",
    },
)
"""Guessers without a network that a score is held against."""

FEATURES = Registry(
    "features",
    {
        "word2vec": "pipelines.evaluation.features.word2vec:Word2Vec",
        "glove": "pipelines.evaluation.features.glove:GloVe",
        "encoder": "pipelines.evaluation.features.encoder:EncoderFeatures",
    },
)
"""What makes a vector of a text, without learning it for the task."""

DESTINATIONS = Registry(
    "destination",
    {
        "hub": "pipelines.publishing.destinations.hub:Hub",
        "url": "pipelines.publishing.destinations.url:Url",
        "folder": "pipelines.publishing.destinations.folder:Folder",
    },
)
"""Where a checkpoint is published to: the first that claims a recipe's `to`."""

REWARDS = Registry(
    "reward",
    {
        "keyword": "pipelines.rewards.rules:Keyword",
        "length": "pipelines.rewards.rules:Length",
        "pattern": "pipelines.rewards.rules:Pattern",
        "classifier": "pipelines.rewards.classifier:Classifier",
        "model": "pipelines.rewards.model:RewardModel",
        "judge": "pipelines.rewards.judge:JudgeReward",
        "grader": "pipelines.rewards.grader:GraderReward",
        "weighted": "pipelines.rewards.weighted:Weighted",
    },
)
"""What a completion is worth to a policy that learns from its own."""

JUDGES = Registry(
    "judge",
    {
        "local": "pipelines.feedback.judges.local:LocalJudgeBlock",
        "endpoint": "pipelines.feedback.judges.endpoint:EndpointJudgeBlock",
        "reward": "pipelines.feedback.judges.reward:RewardJudgeBlock",
        "rule": "pipelines.feedback.judges.rule:RuleJudgeBlock",
    },
)
"""Who says which of two completions is better."""

COMMANDS = Registry(
    "command",
    {
        "attention": "pipelines.commands.attention:answer",
        "generate": "pipelines.commands.generate:answer",
        "harness": "pipelines.commands.harness:answer",
        "network": "pipelines.commands.network:answer",
        "evaluate": "pipelines.commands.evaluate:answer",
        "score": "pipelines.commands.score:answer",
        "predict": "pipelines.commands.predict:answer",
        "publish": "pipelines.commands.publish:answer",
        "verify": "pipelines.commands.verify:answer",
        "export": "pipelines.commands.export:answer",
        "reproduce": "pipelines.commands.reproduce:answer",
        "data": "pipelines.commands.show_data:answer",
        "serve-model": "pipelines.serving.serve:answer",
    },
)
"""Verbs of `python -m pipelines` that answer one JSON object with another."""

EXPORTS = Registry(
    "format",
    {
        "onnx": "pipelines.publishing.exports.onnx:Onnx",
        "gguf": "pipelines.publishing.exports.gguf:Gguf",
        "int8": "pipelines.publishing.exports.quantized:Int8",
        "int4": "pipelines.publishing.exports.quantized:Int4",
    },
)
"""Forms that `finery export` writes a published model in, each a class with the methods of `Export`."""

REGISTRIES: dict[str, Registry] = {
    "stages": STAGES,
    "objectives": OBJECTIVES,
    "tuners": TUNERS,
    "tokenizers": TOKENIZERS,
    "sources": SOURCES,
    "task_kinds": TASK_KINDS,
    "tasks": TASKS,
    "metrics": METRICS,
    "baselines": BASELINES,
    "features": FEATURES,
    "destinations": DESTINATIONS,
    "rewards": REWARDS,
    "judges": JUDGES,
}
