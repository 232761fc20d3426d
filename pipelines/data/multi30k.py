"""Multi30k: descriptions of photographs in English, and their translations.

Elliott et al. 2016, "Multi30K: Multilingual English-German Image Descriptions", arxiv.org/abs/1605.00459; French: Elliott
et al. 2017, arxiv.org/abs/1710.07177; Czech: Barrault et al. 2018, "Findings of the Third Shared Task on Multimodal
Machine Translation", section 2. 29,000 training, 1,014 validation and 1,000 test sentences (`test_2016_flickr`), which
published results are measured on.
"""

from __future__ import annotations

from pipelines.data.tasks import Place, Task

PATH = "bentrevett/multi30k"


def _task(target: str) -> Task:
    pair = f"en-{target}"
    return Task(
        name=f"multi30k/{pair}",
        kind="seq2seq",
        columns=("en",),
        label=target,
        metrics=("bleu", "chrf"),
        places={split: Place(PATH, pair, split) for split in ("train", "validation", "test")},
        evaluation_splits={"": "test"},
    )


EN_DE = _task("de")
EN_FR = _task("fr")
EN_CS = _task("cs")
