"""The prompts that tasks are asked with where a recipe writes none.

GLUE: the wording of the lm-evaluation-harness, so that scores compare (github.com/EleutherAI/lm-evaluation-harness, v0.4,
`lm_eval/tasks/glue`), STS-B ours. SQuAD and RACE: Brown et al. 2020, "Language Models are Few-Shot Learners", appendix G,
arxiv.org/abs/2005.14165. TREC and AG's news: Zhao et al. 2021, "Calibrate Before Use", appendix E, arxiv.org/abs/2102.09690.
"""

from __future__ import annotations

from typing import Any

from pipelines.evaluation.prompts import Prompt

_TREC = "Classify the questions based on whether their answer type is a Number, Location, Person, Description, Entity, or Abbreviation.\n\n"
_FINE = (
    "abbreviation", "expression abbreviated", "definition", "description", "manner", "reason", "animal", "organ of the body", "color",
    "creative work", "currency", "disease or medicine", "event", "food", "musical instrument", "language", "letter",
    "other entity", "plant", "product", "religion", "sport", "substance", "symbol",
    "technique", "equivalent term", "vehicle", "word", "description of a person", "group", "individual", "title", "city",
    "country", "mountain", "other location", "state", "code", "count", "date", "distance", "money",
    "order", "other number", "percentage", "period", "speed", "temperature", "size", "weight",
)  # fmt: skip

PROMPTS: dict[str, Prompt] = {
    name: Prompt.model_validate(words)
    for name, words in {
        "glue/cola": {"text": "{sentence}\nQuestion: Does this sentence make sense?\nAnswer:", "answers": ("no", "yes")},
        "glue/sst2": {"text": "{sentence}\nQuestion: Is this sentence positive or negative?\nAnswer:", "answers": ("negative", "positive")},
        "glue/mrpc": {
            "text": "Sentence 1: {sentence1}\nSentence 2: {sentence2}\nQuestion: Do both sentences mean the same thing?\nAnswer:",
            "answers": ("no", "yes"),
        },
        "glue/stsb": {
            "text": "Sentence 1: {sentence1}\nSentence 2: {sentence2}\nQuestion: How similar are both sentences, from 0 to 5?\nAnswer:",
            "answers": ("0", "1", "2", "3", "4", "5"),
        },
        "glue/qqp": {
            "text": "Question 1: {question1}\nQuestion 2: {question2}\nQuestion: Do both questions ask the same thing?\nAnswer:",
            "answers": ("no", "yes"),
        },
        "glue/mnli": {"text": "{premise}\nQuestion: {hypothesis} True, False or Neither?\nAnswer:", "answers": ("True", "Neither", "False")},
        "glue/qnli": {"text": "{question}\n{sentence}\nQuestion: Does this response answer the question?\nAnswer:", "answers": ("yes", "no")},
        "glue/rte": {"text": "{sentence1}\nQuestion: {sentence2} True or False?\nAnswer:", "answers": ("True", "False")},
        "glue/wnli": {"text": "{sentence1}\nQuestion: {sentence2} True or False?\nAnswer:", "answers": ("False", "True")},
        "squad": {"text": "Background: {context}\n\nQuestion: {question}\n\nAnswer:"},
        "squad_v2": {"text": "Background: {context}\n\nQuestion: {question}\n\nAnswer:"},
        **{name: {"text": "Article: {article}\n\nQuestion: {question}\n\nAnswer:"} for name in ("race/middle", "race/high", "race/all")},
        "trec/coarse": {
            "description": _TREC, "text": "Question: {text}\nAnswer Type:", "answer_context": "Answer Type:",
            "answers": ("Abbreviation", "Entity", "Description", "Person", "Location", "Number"),
        },
        "trec/fine": {"text": "Question: {text}\nAnswer Type:", "answers": _FINE, "answer_context": "Answer Type:"},
        "imdb": {"text": "Review: {text}\nSentiment:", "answers": ("Negative", "Positive"), "answer_context": "Sentiment:"},
        "ag_news": {
            "description": "Classify the news articles into the categories of World, Sports, Business, and Technology.\n\n",
            "text": "Article: {text}\nAnswer:", "answers": ("World", "Sports", "Business", "Technology"),
        },
        "multi30k/en-de": {"text": "English: {en}\nGerman:"},
        "multi30k/en-fr": {"text": "English: {en}\nFrench:"},
        "multi30k/en-cs": {"text": "English: {en}\nCzech:"},
        **{name: {"text": "Instruction: {prompt}\nResponse:", "stop": ("\nInstruction:",)} for name in ("alpaca", "self_instruct_seed")},
        "gsm8k": {"text": "Question: {prompt}\nAnswer:", "stop": ("\nQuestion:", "\n\n")},
        "builtin/python-docs": {"text": "{text}\nQuestion: Are the words of this sentence in order?\nAnswer:", "answers": ("no", "yes")},
    }.items()
}  # fmt: skip
"""By task."""


def prompt_for(task: Any) -> Prompt:
    """The task's prompt of the table; for other tasks one that names each column and asks for the label."""
    if task.name in PROMPTS:
        return PROMPTS[task.name]
    from pipelines.evaluation.prompts import OPTIONS, columns_of

    lines = [f"{name}: {{{name}}}" for name in columns_of(task) if name != OPTIONS]
    asks = task.label if task.kind in ("classification", "regression", "seq2seq") else "answer"
    return Prompt(text="\n".join([*lines, f"{asks}:"]))
