"""Every name a recipe may use, and where the code behind it lives.

One table per family: public name on the left, `module:attribute` on the right. A new method is one new file and
one line here. Recipes never hold import paths, so a recipe that arrives over the network can only name what stands
in these tables. Looking a name up imports its module; no table imports anything by being read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any


def nearest(word: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the closest known name, or nothing."""
    close = get_close_matches(word, list(known), n=1)
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

TASK_KINDS = Registry(
    "task kind",
    {
        "classification": "pipelines.tasks.classification.task:Classification",
        "regression": "pipelines.tasks.regression.task:Regression",
        "seq2seq": "pipelines.tasks.seq2seq.task:Seq2Seq",
        "token_classification": "pipelines.tasks.token_classification.task:TokenClassification",
        "qa": "pipelines.tasks.extractive_qa.task:ExtractiveQA",
        "multiple_choice": "pipelines.tasks.multiple_choice.task:MultipleChoice",
        "causal": "pipelines.tasks.causal.task:Causal",
        "instruction_pairs": "pipelines.tasks.instruction_pairs.task:InstructionPairs",
        "preference": "pipelines.tasks.preference.task:Preference",
    },
)
"""Shapes of a labelled task."""

LESSONS = Registry(
    "lesson",
    {
        "classification": "pipelines.tasks.classification.training:Classifying",
        "regression": "pipelines.tasks.classification.training:Classifying",
        "seq2seq": "pipelines.tasks.seq2seq.training:Pairs",
        "token_classification": "pipelines.tasks.token_classification.training:TokenClassifying",
        "qa": "pipelines.tasks.extractive_qa.training:SpanFinding",
        "multiple_choice": "pipelines.tasks.multiple_choice.training:Choosing",
        "causal": "pipelines.tasks.causal.training:Completing",
        "preference": "pipelines.tasks.preference.training:Preferring",
    },
)
"""How a kind of task is learnt."""

EXAMINERS = Registry(
    "examiner",
    {
        "sequence_classification": "pipelines.tasks.classification.evaluation:Classes",
        "seq2seq_lm": "pipelines.tasks.seq2seq.evaluation:Texts",
        "token_classification": "pipelines.tasks.token_classification.evaluation:Tags",
        "question_answering": "pipelines.tasks.extractive_qa.evaluation:Spans",
        "multiple_choice": "pipelines.tasks.multiple_choice.evaluation:Options",
        "causal_lm": "pipelines.tasks.causal.evaluation:Continuations",
        "reward": "pipelines.tasks.preference.evaluation:Scores",
    },
)
"""How a model is asked the questions of a benchmark, by the head that answers."""

TASKS = Registry(
    "task",
    {
        "builtin/python-docs": "pipelines.data.builtin:TASK",
        "glue/cola": "pipelines.tasks.benchmarks:COLA",
        "glue/sst2": "pipelines.tasks.benchmarks:SST2",
        "glue/mrpc": "pipelines.tasks.benchmarks:MRPC",
        "glue/stsb": "pipelines.tasks.benchmarks:STSB",
        "glue/qqp": "pipelines.tasks.benchmarks:QQP",
        "glue/mnli": "pipelines.tasks.benchmarks:MNLI",
        "glue/qnli": "pipelines.tasks.benchmarks:QNLI",
        "glue/rte": "pipelines.tasks.benchmarks:RTE",
        "glue/wnli": "pipelines.tasks.benchmarks:WNLI",
        "glue/ax": "pipelines.tasks.benchmarks:AX",
        "trec/coarse": "pipelines.tasks.benchmarks:TREC_COARSE",
        "trec/fine": "pipelines.tasks.benchmarks:TREC_FINE",
        "imdb": "pipelines.tasks.benchmarks:IMDB",
        "ag_news": "pipelines.tasks.benchmarks:AG_NEWS",
        "squad": "pipelines.tasks.benchmarks:SQUAD",
        "squad_v2": "pipelines.tasks.benchmarks:SQUAD_V2",
        "race/middle": "pipelines.tasks.benchmarks:MIDDLE",
        "race/high": "pipelines.tasks.benchmarks:HIGH",
        "race/all": "pipelines.tasks.benchmarks:ALL",
        "multi30k/en-de": "pipelines.tasks.benchmarks:EN_DE",
        "multi30k/en-fr": "pipelines.tasks.benchmarks:EN_FR",
        "multi30k/en-cs": "pipelines.tasks.benchmarks:EN_CS",
        "alpaca": "pipelines.tasks.benchmarks:ALPACA",
        "self_instruct_seed": "pipelines.tasks.benchmarks:SELF_INSTRUCT_SEED",
        "gsm8k": "pipelines.tasks.benchmarks:GSM8K",
        "alpaca_eval_preferences": "pipelines.tasks.preference.task:ALPACA_EVAL",
        "hh-rlhf/harmless-base": "pipelines.tasks.preference.task:HH_HARMLESS",
    },
)
"""Labelled tasks that a recipe names instead of describing."""

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
        "evaluate": "pipelines.commands.evaluate:answer",
        "score": "pipelines.commands.score:answer",
        "predict": "pipelines.commands.predict:answer",
        "publish": "pipelines.commands.publish:answer",
        "data": "pipelines.commands.show_data:answer",
    },
)
"""Verbs of `python -m pipelines` that answer one JSON object with another."""

REGISTRIES: dict[str, Registry] = {
    "stages": STAGES,
    "objectives": OBJECTIVES,
    "tuners": TUNERS,
    "tokenizers": TOKENIZERS,
    "sources": SOURCES,
    "task_kinds": TASK_KINDS,
    "lessons": LESSONS,
    "examiners": EXAMINERS,
    "tasks": TASKS,
    "metrics": METRICS,
    "baselines": BASELINES,
    "destinations": DESTINATIONS,
    "rewards": REWARDS,
    "judges": JUDGES,
}
