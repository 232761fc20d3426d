"""`finery init` knows rows of every kind of task by their shape, and asks where they may be of two."""

import json

import pytest

from pipelines.core.load import load
from pipelines.core.registry import TASK_KINDS
from service.cli.__main__ import main

SPAN = {"text": ["two"], "answer_start": [4]}
ASKED = {"role": "user", "content": "Which one?"}


def told(folder, rows, capsys, *options, name="mine.jsonl"):
    """What `finery init --json` says of a file with these rows; its recipe is fine, or there is none."""
    (folder / name).write_text(rows if isinstance(rows, str) else "\n".join(map(json.dumps, rows)))
    code = main(["init", str(folder / name), "-o", str(folder / "recipe.yaml"), "--force", "--json", *options])
    said = json.loads(capsys.readouterr().out)
    assert said["exit_code"] == code
    if code == 0:
        load(folder / "recipe.yaml")
    return said


def answer(n):
    return {"role": "assistant", "content": f"Number {n}."}


@pytest.mark.parametrize(
    ("row", "kind", "keys"),
    [
        (lambda n: {"words": ["a", "b"], "ner": ["O", "B-X"]}, "token_classification", {"scheme": "iob2"}),
        (lambda n: {"tokens": ["a", "b"], "pos": [n % 3, 4]}, "token_classification", {"tags": "pos", "scheme": "plain"}),
        (lambda n: {"question": "q", "context": f"one two {n}", "answers": SPAN, "id": n}, "qa", {"id": "id"}),
        (lambda n: {"query": "q", "passage": "one two", "answers": [{"text": "two", "answer_start": 4}] * (n % 2)}, "qa",
         {"question": "query", "context": "passage", "version_2_with_negative": True}),
        (lambda n: {"article": f"a {n}", "question": "is _ it", "options": ["a", "b"], "answer": "AB"[n % 2]},
         "multiple_choice", {"options": ["options"], "context": "article", "blank": "_"}),
        (lambda n: {"goal": f"g {n}", "sol1": "a", "sol2": "b", "label": n % 2}, "multiple_choice",
         {"question": "goal", "options": ["sol1", "sol2"], "answer": "label"}),
        (lambda n: {"sentence": f"s {n}", "option1": "a", "option2": "b", "answer": f"{1 + n % 2}"}, "multiple_choice",
         {"first": 1}),
        (lambda n: {"question": f"q {n}", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "A"},
         "multiple_choice", {"options": ["choices.text"], "answer": "answerKey"}),
        (lambda n: {"en": f"word {n}", "de": f"Wort {n}"}, "seq2seq", {"source": "en", "target": "de"}),
        (lambda n: {"translation": {"en": f"word {n}", "de": f"Wort {n}"}}, "seq2seq", {"target": "translation.de"}),
        (lambda n: {"id": n, "article": "the same article " * 9, "summary": f"short {n}"}, "seq2seq",
         {"source": "article"}),
        (lambda n: {"instruction": f"Say {n}.", "input": "", "output": f"It is {n}."}, "causal", {"format": "alpaca"}),
        (lambda n: {"messages": [ASKED, answer(n)]}, "causal", {"format": "messages"}),
        (lambda n: {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}, "causal",
         {"format": "sharegpt"}),
        (lambda n: {"prompt": f"p {n}", "response": f"r {n}"}, "causal",
         {"columns": {"prompt": "prompt", "completion": "response"}}),
        (lambda n: {"prompt": "p", "chosen": f"c {n}", "rejected": "r"}, "preference",
         {"format": "prompt_chosen_rejected"}),
        (lambda n: {"chosen": f"\n\nHuman: q\n\nAssistant: {n}", "rejected": "\n\nHuman: q\n\nAssistant: no"},
         "preference", {"format": "transcripts"}),
        (lambda n: {"input": {"messages": [ASKED]}, "preferred_output": [answer(n)],
                    "non_preferred_output": [answer(-n - 1)]}, "preference", {"format": "openai"}),
        (lambda n: {"instruction": f"Say {n}.", "output": "yes" if n % 2 else "no"}, "classification", {}),
    ],
)  # fmt: skip
def test_a_file_is_known_by_its_columns_and_cells(tmp_path, capsys, row, kind, keys):
    said = told(tmp_path, [row(n) for n in range(30)], capsys)
    assert (said["status"], said["kind"]) == ("done", kind)
    assert keys.items() <= said["keys"].items()
    assert next(stage for stage in load(tmp_path / "recipe.yaml").stages if stage.id == said["task"]).task.kind == kind


@pytest.mark.parametrize(
    ("row", "options", "sentence", "way_out"),
    [
        (lambda n: {"question": f"q {n}", "answer": f"a {n}"}, [], "may be of several kinds: --kind seq2seq",
         ["--kind", "causal"]),
        (lambda n: {"tokens": ["a"], "pos": ["N"], "ner": ["O"]}, [], "several lists of tags (pos, ner); choose one with "
         "--label", ["--label", "ner"]),
        (lambda n: {"prompt": f"p {n}", "completion": f"c {n}", "label": n % 2 == 0}, [], "stage: kto",
         ["--kind", "classification", "--text", "prompt", "--text", "completion"]),
        (lambda n: {"question": f"q {n}", "options": ["a"] * (2 + n % 2), "answer": "A"}, [],
         "has from 2 to 3 options a row", None),
        (lambda n: {"chosen": f"c {n}", "rejected": "r"}, [], "name the column of the prompt", None),
        (lambda n: {"question": f"q {n}", "context": f"{'word ' * 30}{n % 3}", "answer": f"a {n}"}, [],
         "qa (a question, a context, and answers as {text", None),
        (lambda n: {"text": f"t {n}", "label": n % 2}, ["--kind", "seq2seq"], "does not look like the kind seq2seq (a source "
         "and a target", []),
        (lambda n: {"text": f"t {n}", "label": n % 2}, ["--kind", "seq2sqe"], "Did you mean 'seq2seq'?", []),
    ],
)  # fmt: skip
def test_what_is_not_clear_is_one_sentence_with_the_ways_out(tmp_path, capsys, row, options, sentence, way_out):
    rows = [row(n) for n in range(30)]
    said = told(tmp_path, rows, capsys, *options)
    assert said["status"] == "refused"
    assert sentence in said["error"]["message"]
    assert "\n" not in said["error"]["message"]
    assert way_out is None or told(tmp_path, rows, capsys, *way_out)["status"] == "done"


def test_squad_s_own_files_are_rows_of_questions_with_those_beside_them_to_score(tmp_path, capsys):
    questions = [{"id": f"{n}", "question": "q", "answers": [{"text": "two", "answer_start": 4}]} for n in range(30)]
    content = json.dumps(
        {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": "one two", "qas": questions}]}]}
    )
    (tmp_path / "dev-v1.1.json").write_text(content)
    said = told(tmp_path, content, capsys, name="train-v1.1.json")
    assert (said["kind"], said["rows"], said["validation"]) == ("qa", 30, str(tmp_path / "dev-v1.1.json"))
    task = load(tmp_path / "recipe.yaml").stages[0].task.task("mine")
    assert [len(task.rows(split)) for split in ("train", "validation")] == [30, 30]
    (tmp_path / "dev-v1.1.json").write_text(content.replace('"question"', '"asked"'))
    assert (
        "dev-v1.1.json is not used for validation"
        in told(tmp_path, content, capsys, name="train-v1.1.json")["warnings"][0]
    )


@pytest.mark.parametrize("name", ["train.txt", "train.jsonl"])
def test_nothing_but_texts_is_pretrained_on(tmp_path, capsys, name):
    text = "\n\n".join(f"Paragraph {n} of a book." for n in range(30))
    rows = text if name == "train.txt" else [{"text": paragraph} for paragraph in text.split("\n\n")]
    said = told(tmp_path, rows, capsys, name=name)
    assert (said["kind"], said["rows"], said["pretrains"], said["task"]) == (None, 30, True, "pretrain")
    assert [stage.stage for stage in load(tmp_path / "recipe.yaml").stages] == ["pretrain", "publish"]
    (tmp_path / name.replace("train", "dev")).write_bytes((tmp_path / name).read_bytes())
    told(tmp_path, rows, capsys, name=name)
    assert [stage.stage for stage in load(tmp_path / "recipe.yaml").stages] == ["pretrain", "evaluate", "publish"]


@pytest.mark.parametrize("kind", TASK_KINDS.where(lambda each: bool(each.rows_hold)))
def test_every_kind_knows_its_own_rows_and_no_other_kind_takes_them(tmp_path, capsys, kind):
    _, rows = TASK_KINDS.load(kind).example()
    assert told(tmp_path, rows, capsys)["kind"] == kind


@pytest.mark.long
@pytest.mark.parametrize("kind", TASK_KINDS.where(lambda each: bool(each.rows_hold)))
def test_the_recipe_of_every_kind_runs(tmp_path, capsys, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = told(tmp_path, TASK_KINDS.load(kind).example()[1], capsys)
    assert main(["run", "recipe.yaml", f"stages.{said['task']}.arguments.max_steps=2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "done"
