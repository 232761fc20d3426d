"""Classes of single texts, beside GLUE: questions (TREC), film reviews (IMDb), news (AG).

The data sets that ULMFiT reports on (Howard and Ruder 2018, table 1, arxiv.org/abs/1801.06146), with the columns and class
names of the Hub. They have no validation split: scores are those on the test split, as published ones are, and models are
selected by a part of train.

TREC: Li and Roth 2002, "Learning Question Classifiers", aclanthology.org/C02-1150: 5,452 questions and 500 test questions, by
6 kinds of answers or by 50. IMDb: Maas et al. 2011, "Learning Word Vectors for Sentiment Analysis", aclanthology.org/P11-1015:
25,000 reviews each. AG's news: Zhang, Zhao and LeCun 2015, arxiv.org/abs/1509.01626: 120,000 and 7,600.
"""

from __future__ import annotations

from pipelines.data.tasks import Place, Task


def _task(name: str, path: str, configuration: str | None, label: str, labels: tuple[str, ...], sorted_by_label: bool = False) -> Task:
    return Task(
        name=name,
        kind="classification",
        columns=("text",),
        label=label,
        labels=labels,
        metrics=("accuracy", "f1"),
        places={split: Place(path, configuration, split) for split in ("train", "test")},
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

TREC_COARSE = _task("trec/coarse", "CogComp/trec", None, "coarse_label", ("ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM"))
TREC_FINE = _task("trec/fine", "CogComp/trec", None, "fine_label", FINE)
IMDB = _task("imdb", "stanfordnlp/imdb", "plain_text", "label", ("neg", "pos"), sorted_by_label=True)
AG_NEWS = _task("ag_news", "fancyzhx/ag_news", None, "label", ("World", "Sports", "Business", "Sci/Tech"))
