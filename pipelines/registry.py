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
        "next_sentence": "pipelines.objectives.next_sentence:NextSentence",
        "sentence_order": "pipelines.objectives.sentence_order:SentenceOrder",
        "causal_lm": "pipelines.objectives.causal_lm:CausalLM",
        "prefix_lm": "pipelines.objectives.prefix_lm:PrefixLM",
        "permutation_lm": "pipelines.objectives.permutation_lm:PermutationLM",
        "span_corruption": "pipelines.objectives.span_corruption:SpanCorruption",
        "denoising": "pipelines.objectives.denoising:Denoising",
        "replaced_token_detection": "pipelines.objectives.replaced_token_detection:ReplacedTokenDetection",
        "seq2seq": "pipelines.objectives.seq2seq:Seq2Seq",
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
        "wordpiece": "pipelines.data.wordpiece:WordPiece",
        "bpe": "pipelines.data.bpe:BPE",
        "byte_bpe": "pipelines.data.byte_bpe:ByteBPE",
        "unigram": "pipelines.data.unigram:Unigram",
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
        "classification": "pipelines.data.classification:Classification",
        "regression": "pipelines.data.regression:Regression",
        "seq2seq": "pipelines.data.seq2seq:Seq2Seq",
        "token_classification": "pipelines.data.token_classification:TokenClassification",
        "qa": "pipelines.data.extractive_qa:ExtractiveQA",
        "multiple_choice": "pipelines.data.multiple_choice:MultipleChoice",
        "causal": "pipelines.data.causal:Causal",
        "instruction_pairs": "pipelines.data.instruction_pairs:InstructionPairs",
        "preference": "pipelines.data.preference:Preference",
    },
)
"""Shapes of a labelled task."""

LESSONS = Registry(
    "lesson",
    {
        "classification": "pipelines.trainers.classifying:Classifying",
        "regression": "pipelines.trainers.classifying:Classifying",
        "seq2seq": "pipelines.trainers.pairs:Pairs",
        "token_classification": "pipelines.trainers.token_classifying:TokenClassifying",
        "qa": "pipelines.trainers.span_finding:SpanFinding",
        "multiple_choice": "pipelines.trainers.choosing:Choosing",
        "causal": "pipelines.trainers.completing:Completing",
        "preference": "pipelines.trainers.preferring:Preferring",
    },
)
"""How a kind of task is learnt."""

EXAMINERS = Registry(
    "examiner",
    {
        "sequence_classification": "pipelines.evaluation.asking_classes:Classes",
        "seq2seq_lm": "pipelines.evaluation.asking_texts:Texts",
        "token_classification": "pipelines.evaluation.asking_tags:Tags",
        "question_answering": "pipelines.evaluation.asking_spans:Spans",
        "multiple_choice": "pipelines.evaluation.asking_options:Options",
        "causal_lm": "pipelines.evaluation.asking_completions:Continuations",
        "reward": "pipelines.evaluation.asking_scores:Scores",
    },
)
"""How a model is asked the questions of a benchmark, by the head that answers."""

TASKS = Registry(
    "task",
    {
        "builtin/python-docs": "pipelines.data.builtin:TASK",
        "glue/cola": "pipelines.data.glue:COLA",
        "glue/sst2": "pipelines.data.glue:SST2",
        "glue/mrpc": "pipelines.data.glue:MRPC",
        "glue/stsb": "pipelines.data.glue:STSB",
        "glue/qqp": "pipelines.data.glue:QQP",
        "glue/mnli": "pipelines.data.glue:MNLI",
        "glue/qnli": "pipelines.data.glue:QNLI",
        "glue/rte": "pipelines.data.glue:RTE",
        "glue/wnli": "pipelines.data.glue:WNLI",
        "glue/ax": "pipelines.data.glue:AX",
        "trec/coarse": "pipelines.data.text_classification:TREC_COARSE",
        "trec/fine": "pipelines.data.text_classification:TREC_FINE",
        "imdb": "pipelines.data.text_classification:IMDB",
        "ag_news": "pipelines.data.text_classification:AG_NEWS",
        "squad": "pipelines.data.squad:SQUAD",
        "squad_v2": "pipelines.data.squad:SQUAD_V2",
        "race/middle": "pipelines.data.race:MIDDLE",
        "race/high": "pipelines.data.race:HIGH",
        "race/all": "pipelines.data.race:ALL",
        "multi30k/en-de": "pipelines.data.multi30k:EN_DE",
        "multi30k/en-fr": "pipelines.data.multi30k:EN_FR",
        "multi30k/en-cs": "pipelines.data.multi30k:EN_CS",
        "alpaca": "pipelines.data.instructions:ALPACA",
        "self_instruct_seed": "pipelines.data.instructions:SELF_INSTRUCT_SEED",
        "gsm8k": "pipelines.data.instructions:GSM8K",
        "alpaca_eval_preferences": "pipelines.data.preference:ALPACA_EVAL",
        "hh-rlhf/harmless-base": "pipelines.data.preference:HH_HARMLESS",
    },
)
"""Labelled tasks that a recipe names instead of describing."""

METRICS = Registry(
    "metric",
    {
        "accuracy": "pipelines.evaluation.accuracy:Accuracy",
        "bleu": "pipelines.evaluation.bleu:Bleu",
        "chrf": "pipelines.evaluation.chrf:Chrf",
        "f1": "pipelines.evaluation.f1:F1",
        "matthews_correlation": "pipelines.evaluation.matthews_correlation:MatthewsCorrelation",
        "pearson": "pipelines.evaluation.pearson:Pearson",
        "spearmanr": "pipelines.evaluation.spearmanr:Spearmanr",
        "seqeval": "pipelines.evaluation.seqeval:Seqeval",
        "squad": "pipelines.evaluation.squad:Squad",
        "squad_v2": "pipelines.evaluation.squad_v2:SquadV2",
        "rouge1": "pipelines.evaluation.rouge1:Rouge1",
        "rouge2": "pipelines.evaluation.rouge2:Rouge2",
        "rougeL": "pipelines.evaluation.rougel:Rougel",
        "exact_match": "pipelines.evaluation.exact_match:ExactMatch",
    },
)
"""What a prediction is worth, as `evaluate.Metric` modules that need no network."""

BASELINES = Registry(
    "baseline",
    {
        "copy_source": "pipelines.evaluation.copy_source:copy_source",
        "longer": "pipelines.evaluation.answer_length:longer",
        "majority": "pipelines.evaluation.majority:majority",
        "majority_by_word": "pipelines.evaluation.majority_by_word:majority_by_word",
        "naive_bayes": "pipelines.evaluation.naive_bayes:naive_bayes",
        "naive_bayes_pairs": "pipelines.evaluation.naive_bayes_pairs:naive_bayes_pairs",
        "shorter": "pipelines.evaluation.answer_length:shorter",
    },
)
"""Guessers without a network that a score is held against."""

DESTINATIONS = Registry(
    "destination",
    {
        "folder": "pipelines.publishing.folder:Folder",
        "url": "pipelines.publishing.url:Url",
        "hub": "pipelines.publishing.hub:Hub",
    },
)
"""Where a checkpoint is published to."""

REWARDS = Registry(
    "reward",
    {
        "keyword": "pipelines.rewards.keyword:Keyword",
        "length": "pipelines.rewards.length:Length",
        "pattern": "pipelines.rewards.pattern:Pattern",
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
        "local": "pipelines.feedback.local:Local",
        "endpoint": "pipelines.feedback.endpoint:Endpoint",
        "reward": "pipelines.feedback.reward_judge:RewardAsJudge",
        "rule": "pipelines.feedback.rule:Rule",
    },
)
"""Who says which of two completions is better."""

CONTEXT = Registry(
    "part of a stage's context",
    {
        "open_model": "pipelines.context:open_model",
        "open_tokenizer": "pipelines.context:open_tokenizer",
        "score": "pipelines.evaluation.scoring:score",
        "writing_head": "pipelines.writing_heads:read_by",
        "complete": "pipelines.trainers.rollouts:complete",
        "log_probabilities": "pipelines.trainers.completion_likelihoods:completion_log_probabilities",
    },
)
"""What a stage is handed instead of importing it: the code behind each part counts for the stages that use it."""

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
    "context": CONTEXT,
}
