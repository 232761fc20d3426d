"""Named benchmarks: GLUE, TREC, IMDb, AG News, SQuAD, RACE, Multi30k, and instruction data sets.

GLUE: nine tasks and the diagnostics set as one table.

Wang et al. 2019, "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding", table 1,
arxiv.org/abs/1804.07461. Columns, class names and splits are those of the data set `nyu-mll/glue`; labels of most
test splits are not public and stand as -1.

Classes of single texts, beside GLUE: questions (TREC), film reviews (IMDb), news (AG).

The data sets that ULMFiT reports on (Howard and Ruder 2018, table 1, arxiv.org/abs/1801.06146), with the columns and
class names of the Hub. They have no validation split: scores are those on the test split, as published ones are, and
models are selected by a part of train.

TREC: Li and Roth 2002, "Learning Question Classifiers", aclanthology.org/C02-1150: 5,452 questions and 500 test
questions, by 6 kinds of answers or by 50. IMDb: Maas et al. 2011, "Learning Word Vectors for Sentiment Analysis",
aclanthology.org/P11-1015: 25,000 reviews each. AG's news: Zhang, Zhao and LeCun 2015, arxiv.org/abs/1509.01626:
120,000 and 7,600.

SQuAD: questions on Wikipedia, whose answers are spans of a paragraph.

1.1: Rajpurkar et al. 2016, arxiv.org/abs/1606.05250, every question has an answer. 2.0: Rajpurkar et al. 2018,
arxiv.org/abs/1806.03822, half of the development set has none. The second asks the model that learnt the first where no
stage trained it: its training rows may be out of reach.

RACE: English examinations of Chinese middle and high schools, four options a question.

Lai et al. 2017, "RACE: Large-scale ReAding Comprehension Dataset From Examinations", arxiv.org/abs/1704.04683;
section 5 scores accuracy on the two schools and on all of their questions together. Half of the questions of its
development set have a gap `_`.

Multi30k: descriptions of photographs in English, and their translations.

Elliott et al. 2016, "Multi30K: Multilingual English-German Image Descriptions", arxiv.org/abs/1605.00459; French:
Elliott et al. 2017, arxiv.org/abs/1710.07177; Czech: Barrault et al. 2018, "Findings of the Third Shared Task on
Multimodal Machine Translation", section 2. 29,000 training, 1,014 validation and 1,000 test sentences
(`test_2016_flickr`), which published results are measured on.

Named tasks of following instructions, and of solving word problems.

Alpaca: Taori et al. 2023, "Stanford Alpaca: An Instruction-following LLaMA Model"; a part of train is held out, as
the set has no other split. Its few rows with an empty output are left out. Self-Instruct: the seed tasks of Wang et
al. 2023, arxiv.org/abs/2212.10560, written by people. GSM8K: Cobbe et al. 2021, "Training Verifiers to Solve Math
Word Problems", arxiv.org/abs/2110.14168, whose answers end with `#### ` and a number; that number is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pipelines.tasks.base import SplitLocation, Task
from pipelines.tasks.causal.task import PATTERN_METRICS, TEXT_METRICS, CausalTask
from pipelines.tasks.extractive_qa.task import QuestionTask
from pipelines.tasks.multiple_choice.task import ChoiceTask, choice_task

PATH = "nyu-mll/glue"
ENTAILMENT = ("entailment", "neutral", "contradiction")


def _task(
    name: str,
    columns: tuple[str, ...],
    labels: tuple[str, ...],
    *metrics: str,
    kind: Literal["classification", "regression"] = "classification",
    evaluation_splits: Mapping[str, str] | None = None,
    splits: tuple[str, ...] = ("train", "validation", "test"),
    trained_by: str | None = None,
) -> Task:
    return Task(
        name=f"glue/{name}",
        kind=kind,
        columns=columns,
        label="label",
        labels=labels or None,
        metrics=metrics,
        places={split: SplitLocation(PATH, name, split) for split in splits},
        evaluation_splits=evaluation_splits or {"": "validation"},
        hidden_label=-1,
        trained_by=trained_by,
        empty_texts=True,  # QQP has a few, and every system is scored with them
    )


COLA = _task("cola", ("sentence",), ("unacceptable", "acceptable"), "matthews_correlation")
SST2 = _task("sst2", ("sentence",), ("negative", "positive"), "accuracy")
MRPC = _task("mrpc", ("sentence1", "sentence2"), ("not_equivalent", "equivalent"), "accuracy", "f1")
STSB = _task("stsb", ("sentence1", "sentence2"), (), "pearson", "spearmanr", kind="regression")
QQP = _task("qqp", ("question1", "question2"), ("not_duplicate", "duplicate"), "accuracy", "f1")
MNLI = _task(
    "mnli",
    ("premise", "hypothesis"),
    ENTAILMENT,
    "accuracy",
    evaluation_splits={"": "validation_matched", "_mm": "validation_mismatched"},
    splits=("train", "validation_matched", "validation_mismatched", "test_matched", "test_mismatched"),
)
QNLI = _task("qnli", ("question", "sentence"), ("entailment", "not_entailment"), "accuracy")
RTE = _task("rte", ("sentence1", "sentence2"), ("entailment", "not_entailment"), "accuracy")
WNLI = _task("wnli", ("sentence1", "sentence2"), ("not_entailment", "entailment"), "accuracy")
AX = _task(
    "ax",
    ("premise", "hypothesis"),
    ENTAILMENT,
    "matthews_correlation",
    evaluation_splits={"": "test"},
    splits=("test",),
    trained_by="glue/mnli",
)
"""The diagnostics set: it is asked of the model that learnt MNLI, and its labels are not public."""

GLUE = {task.name: task for task in (COLA, SST2, MRPC, STSB, QQP, MNLI, QNLI, RTE, WNLI, AX)}
"""Every task, by name."""


def _task_text_classification(
    name: str, path: str, configuration: str | None, label: str, labels: tuple[str, ...], sorted_by_label: bool = False
) -> Task:
    return Task(
        name=name,
        kind="classification",
        columns=("text",),
        label=label,
        labels=labels,
        metrics=("accuracy", "f1"),
        places={split: SplitLocation(path, configuration, split) for split in ("train", "test")},
        evaluation_splits={"": "test"},
        sorted_by_label=sorted_by_label,
    )


FINE = (
    "ABBR:abb", "ABBR:exp", "DESC:def", "DESC:desc", "DESC:manner", "DESC:reason", "ENTY:animal", "ENTY:body", "ENTY:color",
    "ENTY:cremat", "ENTY:currency", "ENTY:dismed", "ENTY:event", "ENTY:food", "ENTY:instru", "ENTY:lang", "ENTY:letter",
    "ENTY:other", "ENTY:plant", "ENTY:product", "ENTY:religion", "ENTY:sport", "ENTY:substance", "ENTY:symbol",
    "ENTY:techmeth", "ENTY:termeq", "ENTY:veh", "ENTY:word", "HUM:desc", "HUM:gr", "HUM:ind", "HUM:title", "LOC:city",
    "LOC:country", "LOC:mount", "LOC:other", "LOC:state", "NUM:code", "NUM:count", "NUM:date", "NUM:dist", "NUM:money",
    "NUM:ord", "NUM:other", "NUM:perc", "NUM:period", "NUM:speed", "NUM:temp", "NUM:volsize", "NUM:weight",
)  # fmt: skip

TREC_COARSE = _task_text_classification(
    "trec/coarse", "CogComp/trec", None, "coarse_label", ("ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM")
)
TREC_FINE = _task_text_classification("trec/fine", "CogComp/trec", None, "fine_label", FINE)
IMDB = _task_text_classification(
    "imdb", "stanfordnlp/imdb", "plain_text", "label", ("neg", "pos"), sorted_by_label=True
)
AG_NEWS = _task_text_classification(
    "ag_news", "fancyzhx/ag_news", None, "label", ("World", "Sports", "Business", "Sci/Tech")
)


def _task_squad(name: str, config: str, version_2: bool, trained_by: str | None = None) -> QuestionTask:
    return QuestionTask(
        name=name,
        kind="qa",
        columns=("question", "context"),
        label="answers",
        metrics=(name,),
        places={split: SplitLocation(f"rajpurkar/{name}", config, split) for split in ("train", "validation")},
        trained_by=trained_by,
        id_column="id",
        version_2=version_2,
    )


SQUAD = _task_squad("squad", "plain_text", version_2=False)
SQUAD_V2 = _task_squad("squad_v2", "squad_v2", version_2=True, trained_by="squad")


PATH_RACE = "ehovy/race"


def _task_race(config: str) -> ChoiceTask:
    places = {split: SplitLocation(PATH_RACE, config, split) for split in ("train", "validation", "test")}
    return choice_task(f"race/{config}", "question", ("options",), "answer", "article", "_", 0, places)


MIDDLE = _task_race("middle")
HIGH = _task_race("high")
ALL = _task_race("all")


PATH_MULTI30K = "bentrevett/multi30k"


def _task_multi30k(target: str) -> Task:
    pair = f"en-{target}"
    return Task(
        name=f"multi30k/{pair}",
        kind="seq2seq",
        columns=("en",),
        label=target,
        metrics=("bleu", "chrf"),
        places={split: SplitLocation(PATH_MULTI30K, pair, split) for split in ("train", "validation", "test")},
        evaluation_splits={"": "test"},
    )


EN_DE = _task_multi30k("de")
EN_FR = _task_multi30k("fr")
EN_CS = _task_multi30k("cs")


GSM8K_ANSWER = r"#### (\-?[0-9\.\,]+)"
"""The pattern of the authors' own `grade_school_math/dataset.py`."""


def _instructions(name: str, path: str) -> CausalTask:
    return CausalTask(
        name=name,
        kind="causal",
        columns=(),
        label="",
        metrics=TEXT_METRICS,
        places={"train": SplitLocation(path, None, "train")},
        format="alpaca",
        skip_empty=True,
    )


ALPACA = _instructions("alpaca", "tatsu-lab/alpaca")
SELF_INSTRUCT_SEED = _instructions("self_instruct_seed", "self_instruct_seed")
GSM8K = CausalTask(
    name="gsm8k",
    kind="causal",
    columns=(),
    label="",
    metrics=PATTERN_METRICS,
    places={split: SplitLocation("openai/gsm8k", "main", split) for split in ("train", "test")},
    evaluation_splits={"": "test"},
    format="alpaca",
    names={"instruction": "question", "output": "answer"},
    answer_pattern=GSM8K_ANSWER,
)
