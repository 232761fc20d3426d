import csv
import json

import pytest

from pipelines.core.errors import CommandError
from service.cli.columns import choose, read

REVIEWS = [("a fine film indeed", "pos"), ("a bad film, really", "neg")] * 10


def write(path, names, rows):
    """The rows in the format that the ending names."""
    if path.suffix in (".csv", ".tsv"):
        with open(path, "w", newline="", encoding="utf-8") as file:
            csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([names, *rows])
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps([dict(zip(names, row, strict=True)) for row in rows]))
    else:
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pa.table(dict(zip(names, zip(*rows, strict=True), strict=True))), path)
    return path


def chosen(path, names, rows, **asked):
    choice = choose(read(write(path, names, rows)), **asked)
    return [column.name for column in choice.texts], choice.label.name, choice.kind


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".json", ".parquet"])
def test_two_columns_of_any_format_are_a_task(tmp_path, ending):
    table = read(write(tmp_path / f"train{ending}", ["review", "verdict"], REVIEWS))
    choice = choose(table)
    assert ([column.name for column in choice.texts], choice.label.name, choice.kind) == (
        ["review"],
        "verdict",
        "classification",
    )
    assert choice.label.counts == {"pos": 10, "neg": 10}
    assert (table.rows, table.complete, choice.texts[0].words) == (20, True, 4.0)


@pytest.mark.parametrize(
    ("names", "rows", "expected"),
    [
        # the names decide
        (
            ["label", "text"],
            [("long label texts " + str(n % 2), "some text " + str(n)) for n in range(20)],
            (["text"], "label"),
        ),
        (["id", "Sentence", "Target"], [(n, f"text number {n}", n % 3) for n in range(30)], (["Sentence"], "Target")),
        (
            ["question1", "question2", "is_duplicate"],
            [(f"why {n}", f"how {n}", n % 2) for n in range(20)],
            (["question1", "question2"], "is_duplicate"),
        ),
        (
            ["hypothesis", "premise", "gold_label"],
            [(f"h {n}", f"p {n}", "abc"[n % 3]) for n in range(30)],
            (["premise", "hypothesis"], "gold_label"),
        ),
        # the values decide
        (
            ["spoken", "who"],
            [(f"these are the words {n}", "me" if n % 2 else "you") for n in range(20)],
            (["spoken"], "who"),
        ),
        (["a", "b", "c"], [(f"short {n}", f"a much longer text {n}", n % 2) for n in range(20)], (["b"], "c")),
        (["words", "many", "few"], [(f"text {n}", n % 5, n % 2) for n in range(40)], (["words"], "few")),
        (["user_id", "words", "mood"], [(n % 2, f"text {n}", n % 3) for n in range(30)], (["words"], "mood")),
        # a column called like a label that cannot be one is passed over
        (
            ["text", "answer", "sort"],
            [(f"text {n}", f"another answer {n}", n % 2) for n in range(20)],
            (["text"], "sort"),
        ),
    ],
)
def test_names_decide_first_then_values(tmp_path, names, rows, expected):
    assert chosen(tmp_path / "x.csv", names, rows)[:2] == expected


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (["0.5", "1.25", "3.0"], "regression"),
        ([str(n) for n in range(21)], "regression"),
        ([str(n) for n in range(20)], "classification"),
        (["1", "2", "3", "4", "5"], "classification"),
        (["yes", "no"], "classification"),
        (["1.0", "0.0"], "regression"),
    ],
)
def test_numbers_with_decimals_or_on_a_long_scale_are_a_regression(tmp_path, labels, kind):
    rows = [(f"text {n}", labels[n % len(labels)]) for n in range(100)]
    assert chosen(tmp_path / "x.csv", ["text", "score"], rows)[2] == kind


def test_truth_values_and_whole_numbers_of_json_are_classes(tmp_path):
    assert chosen(tmp_path / "x.jsonl", ["text", "spam"], [(f"text {n}", n % 2 == 0) for n in range(20)])[1:] == (
        "spam",
        "classification",
    )
    table = read(write(tmp_path / "y.jsonl", ["text", "spam"], [(f"text {n}", n % 2 == 0) for n in range(20)]))
    assert choose(table).label.counts == {"true": 10, "false": 10}


def test_the_only_column_of_numbers_is_the_label(tmp_path):
    rows = [(f"text {n}", f"{n * 1.5:.2f}") for n in range(30)]
    assert chosen(tmp_path / "x.csv", ["words", "weight"], rows) == (["words"], "weight", "regression")


def test_what_the_user_names_is_taken(tmp_path):
    names = ["text", "other", "label", "mood"]
    rows = [(f"text {n}", f"other {n}", n % 2, n % 3) for n in range(30)]
    path = tmp_path / "x.csv"
    assert chosen(path, names, rows, texts=["other"], label="mood") == (["other"], "mood", "classification")
    assert chosen(path, names, rows, texts=["other", "text"])[0] == ["other", "text"]
    assert chosen(path, names, rows, label="mood", kind="regression")[2] == "regression"


@pytest.mark.parametrize(
    ("names", "rows", "asked", "said"),
    [
        (["text"], [("a",)] * 5, {}, "the single column 'text'; a task needs two at least"),
        (["text;label"], [("a;b",)] * 5, {}, "separated by semicolons: save it with commas"),
        (
            ["a", "b"],
            [(f"text {n}", f"text {n + 1}") for n in range(20)],
            {},
            "no column that looks like a label (few different values, or numbers). Columns found: a, b; name it with --label",
        ),
        (
            ["text", "label"],
            REVIEWS,
            {"label": "lable"},
            "has no column 'lable'. Did you mean 'label'? Columns found: text, label",
        ),
        (["text", "label"], REVIEWS, {"texts": ["label"], "label": "label"}, "the answer would be in the question"),
        (["text", "label"], REVIEWS, {"texts": ["text", "text", "text"]}, "--text was given 3 times"),
        (["text", "label"], REVIEWS, {"kind": "ranking"}, "must be classification or regression"),
        (["text", "label"], REVIEWS, {"kind": "regression"}, "holds no numbers"),
        (
            ["text", "who"],
            [(f"text {n}", f"name {n}") for n in range(300)],
            {"label": "who"},
            "has 300 different values in 300 rows, too many classes",
        ),
        (
            ["text", "who"],
            [(f"text {n}", f"name {n % 101}") for n in range(300)],
            {"label": "who"},
            "has 101 different values in 300 rows, too many classes (at most 100",
        ),
        (["text", "label"], [(f"text {n}", "same") for n in range(9)], {"label": "label"}, "holds 'same' in every row"),
        (["n", "label"], [(n, n % 2) for n in range(20)], {}, "no column of texts beside the label 'label'"),
    ],
)
def test_what_cannot_be_learnt_is_refused_with_a_remedy(tmp_path, names, rows, asked, said):
    with pytest.raises(CommandError) as refusal:
        chosen(tmp_path / "x.csv", names, rows, **asked)
    assert said in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.csv", None, "there is no such file"),
        ("x.xlsx", "x", "unknown format; give a file that ends in one of .csv"),
        ("x.csv", "", "is empty"),
        ("x.csv", "text,label\n", "has column names but no rows"),
        ("x.csv", "text;label\na;1\nb, c;0\n", "separated by semicolons: save it with commas"),
        ("x.csv", "text,label\na,1\nb\n", "row 2 has 1 cells where the first line names 2 columns"),
        ("x.csv", "a great film,1\nanother,0\n", "looks like a row, not like column names"),
        ("x.csv", "text,text\na,b\n", "names the column 'text' more than once"),
        ("x.csv", "text,\na,b\n", "a column without a name"),
        ("x.jsonl", '{"text": "a"}\n{"text": \n', "line 2 is not valid JSON"),
        ("x.jsonl", '["a"]\n', "row 1 is no object"),
        ("x.json", '{"text": "a"}', "must hold a list of objects"),
        ("x.json", '{"text": "a"}\n{"text": "b"}', "name such a file .jsonl"),
        ("x.parquet", "text", "is not a readable Parquet file"),
    ],
)
def test_files_that_cannot_be_read_are_refused_with_a_sentence(tmp_path, name, content, said):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(CommandError) as refusal:
        read(path)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_latin_1_is_refused_with_a_sentence(tmp_path):
    (tmp_path / "x.csv").write_bytes("text,label\ncafé,1\n".encode("latin-1"))
    with pytest.raises(CommandError, match="not UTF-8 text"):
        read(tmp_path / "x.csv")


def test_only_the_head_of_a_long_file_is_read(tmp_path):
    for ending in (".csv", ".jsonl", ".parquet"):
        path = write(tmp_path / f"x{ending}", ["text", "label"], REVIEWS)
        assert (read(path, most=7).rows, read(path, most=7).complete) == (7, False)
        assert (read(path, most=20).rows, read(path, most=20).complete) == (20, True)


def test_gaps_are_found(tmp_path):
    table = read(write(tmp_path / "x.csv", ["text", "label"], [("a", "x"), (" ", "y"), ("c", "")]))
    assert [(column.filled, column.first_gap) for column in table.columns] == [(2, 2), (2, 3)]


def test_the_rules_agree_with_real_data_sets(mirror):
    parquet = {
        "cola": (["sentence"], "label", "classification"),
        "mrpc": (["sentence1", "sentence2"], "label", "classification"),
        "stsb": (["sentence1", "sentence2"], "label", "regression"),
        "qnli": (["question", "sentence"], "label", "classification"),
        "mnli": (["premise", "hypothesis"], "label", "classification"),
        "qqp": (["question1", "question2"], "label", "classification"),
    }
    for name, expected in parquet.items():
        file = next(iter(sorted((mirror / "glue" / name).glob("train*.parquet"))))
        choice = choose(read(file))
        assert ([column.name for column in choice.texts], choice.label.name, choice.kind) == expected, name
