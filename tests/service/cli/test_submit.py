import hashlib
import json

import httpx
import pyarrow as pa
import pyarrow.parquet
import pytest

from pipelines.core.errors import CommandError, RecipeError
from pipelines.core.load import read, read_text
from pipelines.data.tables import paragraphs
from service.cli import submit
from service.cli.recipe_files import joined, local_files, placed
from service.cli.submit import changed_places, upload
from service.client import Connection, ServerAddress
from service.safety.network_recipes import Known, check


class Files:
    """A server's files, as the API keeps them; `breaks` is the number of chunks after which one answer is lost."""

    def __init__(self, breaks=None):
        self.stored = {}
        self.announced = {}
        self.chunks = 0
        self.breaks = breaks

    def __call__(self, request):
        path = request.url.path.removeprefix("/api/v1/files").strip("/")
        if request.method == "POST" and not path:
            told = json.loads(request.content)
            known = next(
                (key for key, value in self.stored.items() if hashlib.sha256(value).hexdigest() == told["sha256"]), None
            )
            if known:
                return httpx.Response(200, json={"id": known, "state": "ready"})
            name = f"file-{len(self.stored) + len(self.announced) + 1}"
            self.announced[name] = b""
            return httpx.Response(201, json={"id": name, "state": "uploading"})
        if request.method == "PATCH":
            if int(request.headers["Upload-Offset"]) != len(self.announced[path]):
                return httpx.Response(409, json={"detail": "another offset"})
            self.announced[path] += request.content
            self.chunks += 1
            if self.chunks == self.breaks:
                raise httpx.ReadError("connection reset")
            return httpx.Response(204, headers={"Upload-Offset": str(len(self.announced[path]))})
        if path.endswith("/complete"):
            name = path.removesuffix("/complete")
            body = self.announced.pop(name)
            assert json.loads(request.content)["sha256"] == hashlib.sha256(body).hexdigest()
            self.stored[name] = body
            return httpx.Response(200, json={"id": name, "state": "ready"})
        return httpx.Response(200, json={"id": path, "offset": len(self.announced[path])})

    def connect(self):
        return Connection(ServerAddress("http://server", "t"), transport=httpx.MockTransport(self), pause=0.0)


def test_a_file_is_sent_once_whatever_it_is_called(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\n")
    (tmp_path / "b.csv").write_text("text,label\n")
    server = Files()
    with server.connect() as connection:
        assert upload(connection, tmp_path / "a.csv") == upload(connection, tmp_path / "b.csv")
    assert server.chunks == 1


def test_an_upload_whose_answer_was_lost_goes_on_where_the_server_is(tmp_path, monkeypatch):
    monkeypatch.setattr(submit, "PIECE", 10)
    body = bytes(range(35))
    (tmp_path / "a.bin").write_bytes(body)
    server = Files(breaks=2)
    with server.connect() as connection:
        name = upload(connection, tmp_path / "a.bin")
    assert server.stored[name] == body
    assert server.chunks == 4


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("")
    with Files().connect() as connection, pytest.raises(CommandError, match="is empty"):
        upload(connection, tmp_path / "a.csv")


RECIPE = """
name: own
model: {architecture: {preset: bert-tiny}}
stages:
  - {stage: pretrain, objective: masked_lm, datasets: [{path: texts, text: text}, {path: english_novels}]}
  - {stage: supervised, task: {kind: classification, columns: text, label: label, train: train.csv, validation: data/dev.csv}}
  - {stage: publish, to: own}
"""


@pytest.fixture
def recipe(tmp_path):
    for name in ("train.csv", "data/dev.csv", "texts/1.jsonl", "texts/2.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path / "recipe.yaml"


def handed_in(path, overrides=()):
    """(the recipe as a server reads it, the uploaded texts by `file:ID`)."""
    server = Files()
    with server.connect() as connection:
        changes = changed_places(connection, read(path, overrides))
    data = read_text(path.read_text(), overrides=[*overrides, *changes], local=False).data
    return data, {f"file:{key}": body.decode() for key, body in server.stored.items()}


def accepted(path, overrides=()):
    """The recipe that a server checks, with the files where it has them."""
    server = Files()
    with server.connect() as connection:
        changes = changed_places(connection, read(path, overrides))
    folder = _made(path.parent / "server")
    for key, body in server.stored.items():
        (folder / f"{key}.csv").write_bytes(body)
    known = Known({key: folder / f"{key}.csv" for key in server.stored})
    return check(path.read_text(), [*overrides, *changes], known).recipe


def written(folder, stages, more="", **files):
    for name, text in files.items():
        place = folder / name.replace("__", "/").replace("_dot_", ".")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    (folder / "recipe.yaml").write_text(
        f"name: own\nmodel: {{architecture: {{preset: bert-tiny}}}}\nstages:\n  - {stages}\n{more}"
    )
    return folder / "recipe.yaml"


SPLITS = {
    "d__README_dot_md": "# Mine\n",
    "d__train_dot_csv": "text,label\none,a\n",
    "d__validation_dot_csv": "text,label\ntwo,b\n",
    "d__test_dot_csv": "text,label\nthree,a\n",
}


def test_the_overrides_put_every_local_file_into_the_text_as_it_was_written(recipe):
    data, texts = handed_in(recipe)
    first, second = data["stages"][0]["datasets"]
    assert texts[first["path"]] == "texts/1.jsonl\ntexts/2.jsonl\n"
    assert first["text"] == "text"
    assert second == {"path": "english_novels"}
    assert texts[data["stages"][1]["task"]["train"]] == "train.csv\n"
    assert texts[data["stages"][1]["task"]["validation"]] == "data/dev.csv\n"


def test_names_that_are_no_files_stay(recipe):
    named = [each.text for each in local_files(read(recipe))]
    assert "english_novels" not in named
    assert "own" not in named


@pytest.mark.parametrize(("split", "text"), [(None, "one,a"), ("train", "one,a"), ("test", "three,a")])
def test_of_a_folder_the_split_goes_up_that_a_run_here_would_read(tmp_path, split, text):
    entry = "{path: d}" if split is None else f"{{path: d, split: {split}}}"
    data, texts = handed_in(written(tmp_path, f"{{stage: pretrain, datasets: [{entry}]}}", **SPLITS))
    (sent,) = data["stages"][0]["datasets"]
    assert texts == {sent["path"]: f"text,label\n{text}\n"}
    assert sent.get("split", "train") == "train"


def test_a_task_reads_the_split_of_its_role(tmp_path):
    stage = "{stage: supervised, task: {kind: classification, columns: text, label: label, train: d, validation: d}}"
    data, texts = handed_in(written(tmp_path, stage, **SPLITS))
    task = data["stages"][0]["task"]
    assert (texts[task["train"]], texts[task["validation"]]) == ("text,label\none,a\n", "text,label\ntwo,b\n")


def test_a_server_reads_the_rows_that_a_run_here_reads(tmp_path):
    stages = (
        "{stage: pretrain, datasets: [{path: d, split: test}]}\n"
        "  - {stage: evaluate, datasets: [{path: d, name: default}]}"
    )
    recipe = accepted(written(tmp_path, stages, **SPLITS))
    assert [stage.datasets[0].rows() for stage in recipe.stages] == [["three"], ["one"]]


def test_a_configuration_is_chosen_here_and_its_name_does_not_travel(tmp_path):
    files = {"d__one__train_dot_csv": "text\n1\n", "d__two__train_dot_csv": "text\n2\n"}
    stage = "{stage: pretrain, datasets: [{path: d, name: two}]}"
    data, texts = handed_in(written(tmp_path, stage, **files))
    (sent,) = data["stages"][0]["datasets"]
    assert texts == {sent["path"]: "text\n2\n"}
    assert sent["name"] is None


def test_several_files_are_one_with_the_same_rows_so_that_weights_and_limits_mean_the_same(tmp_path):
    files = {"d__a_dot_csv": 'text\n"one\ntwo"', "d__b_dot_csv": "\ufefftext\r\nthree\r\n", "d__notes_dot_md": "x"}
    datasets = "[{path: 'd/*', weight: 3}, {path: english_novels, weight: 1}]"
    stage = f"{{stage: pretrain, datasets: {datasets}, max_train_samples: 2}}"
    data, texts = handed_in(written(tmp_path, stage, **files))
    sent, other = data["stages"][0]["datasets"]
    assert texts == {sent["path"]: 'text\n"one\ntwo"\nthree\r\n'}
    assert (sent["weight"], other["weight"], data["stages"][0]["max_train_samples"]) == (3, 1, 2)


def test_the_training_rows_of_a_task_may_lie_in_several_files(tmp_path):
    files = {"d__a_dot_jsonl": '{"text": "1", "label": "x"}', "d__b_dot_json": '[{"text": "2", "label": "y"}]'}
    stage = "{stage: supervised, task: {kind: classification, columns: text, label: label, train: d}}"
    data, texts = handed_in(written(tmp_path, stage, **files))
    rows = texts[data["stages"][0]["task"]["train"]].splitlines()
    assert [json.loads(row)["text"] for row in rows] == ["1", "2"]


def test_documents_of_several_texts_stay_apart(tmp_path):
    files = {"d__a_dot_txt": "one\n\ntwo", "d__b_dot_txt": "three\n"}
    data, texts = handed_in(written(tmp_path, "{stage: pretrain, datasets: [{path: d}]}", **files))
    assert list(paragraphs(texts[data["stages"][0]["datasets"][0]["path"]].splitlines())) == ["one", "two", "three"]


def test_parquet_files_of_the_same_columns_are_joined(tmp_path):
    for name in ("a", "b"):
        pa.parquet.write_table(pa.table({"text": [name]}), tmp_path / f"{name}.parquet")
    whole = joined([tmp_path / "a.parquet", tmp_path / "b.parquet"], _made(tmp_path / "out"))
    assert pa.parquet.read_table(whole).to_pylist() == [{"text": "a"}, {"text": "b"}]
    pa.parquet.write_table(pa.table({"words": ["c"]}), tmp_path / "c.parquet")
    with pytest.raises(ValueError, match="different columns"):
        joined([tmp_path / "a.parquet", tmp_path / "c.parquet"], tmp_path / "out")


def _made(folder):
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("entry", "files", "words"),
    [
        (
            "{path: d, split: validation}",
            {"d__train_dot_csv": "text\n1\n"},
            r"'d' has no split 'validation'. Splits found: train",
        ),
        (
            "{path: d}",
            {"d__a_dot_csv": "text\n1\n", "d__b_dot_txt": "2"},
            r"'d' stands for files of several kinds \(.csv, .txt\)",
        ),
        (
            "{path: d}",
            {"d__a_dot_csv": "text\n1\n", "d__b_dot_csv": "words\n2\n"},
            "b.csv has words, those before it text; put them",
        ),
        ("{path: d}", {"d__a_dot_csv": "text\n1\n", "d__b_dot_csv": ""}, "b.csv is empty"),
        (
            "{path: d}",
            {"d__a_dot_csv": 'text\n"1\n', "d__b_dot_csv": 'text\n2"\n'},
            "a.csv is not valid CSV",
        ),
        ("{path: d}", {"d__README_dot_md": "x"}, "holds no data files"),
        ("{path: notes.md}", {"notes_dot_md": "x"}, "'notes.md' has an unknown format"),
    ],
)
def test_what_no_upload_can_stand_for_is_refused_with_its_place_before_anything_travels(tmp_path, entry, files, words):
    path = written(tmp_path, f"{{stage: pretrain, datasets: [{entry}]}}", **files)
    server = Files()
    with server.connect() as connection, pytest.raises(RecipeError, match=words) as refused:
        changed_places(connection, read(path))
    assert refused.value.mistakes[0].key == "stages.pretrain.datasets[0].path"
    assert not server.announced | server.stored


def test_a_data_set_of_the_mirror_comes_before_a_folder_as_it_does_here(tmp_path, monkeypatch):
    stage = "{stage: pretrain, datasets: [{path: d}, {path: builtin/python-docs}]}"
    path = written(
        tmp_path, stage, **SPLITS, mirror__d__train_dot_csv="text\n", **{"builtin__python-docs__a_dot_txt": "x"}
    )
    monkeypatch.setenv("FINERY_DATA", str(tmp_path / "mirror"))
    assert handed_in(path)[1] == {}


def test_values_of_a_matrix_are_sent_whatever_its_keys_look_like(tmp_path):
    matrix = "matrix: {'stages.pretrain.datasets[0].path': [a.txt, b.txt], seed: [1, 2]}\n"
    stage = "{stage: pretrain, datasets: [{path: a.txt}]}"
    data, texts = handed_in(written(tmp_path, stage, matrix, a_dot_txt="a", b_dot_txt="b"))
    assert [texts[each] for each in data["matrix"]["stages.pretrain.datasets[0].path"]] == ["a", "b"]
    assert data["matrix"]["seed"] == (1, 2)


@pytest.mark.parametrize(
    "matrix", ["'stages.pretrain.datasets[0].split': [train, test]", "stages.pretrain.datasets.0.path: [d, e.txt]"]
)
def test_a_matrix_that_says_what_is_read_of_a_folder_is_refused(tmp_path, matrix):
    path = written(tmp_path, "{stage: pretrain, datasets: [{path: d}]}", f"matrix: {{{matrix}}}\n", **SPLITS)
    with pytest.raises(RecipeError, match=r"name (the )?files"):
        local_files(read(path))


def test_a_tokenizers_algorithm_is_no_file(tmp_path):
    path = written(tmp_path, "{stage: evaluate}", "tokenizer: {train: wordpiece}\n", wordpiece="x")
    assert local_files(read(path)) == []


@pytest.mark.parametrize("model", ["model.checkpoint", "tokenizer.pretrained"])
def test_a_model_in_a_folder_is_refused_and_not_taken_for_a_name_on_the_hub(tmp_path, model):
    (tmp_path / "out" / "model").mkdir(parents=True)
    path = written(tmp_path, "{stage: evaluate}")
    with pytest.raises(RecipeError, match=r"'out/model' is a folder of this machine.*write job:NAME or model:NAME"):
        local_files(read(path, [f"{model}=out/model"]))


PRINCIPLES = "principles:\n  - {id: honest, comparison: Which is more honest?}\n"


def test_principles_and_the_words_of_accelerate_travel_in_the_place_of_their_files(tmp_path):
    stage = (
        "{stage: feedback, prompts: {path: p.txt}, judge: {name: local, checkpoint: my/judge}, constitution: mine.yaml}"
    )
    more = "launch: {config: acc.yaml, hosts: 2}\nmatrix: {stages.feedback.constitution: [default, mine.yaml]}\n"
    accelerate = "distributed_type: MULTI_GPU\nnum_processes: 4\nmixed_precision: bf16\n"
    path = written(tmp_path, stage, more, p_dot_txt="x", mine_dot_yaml=PRINCIPLES, acc_dot_yaml=accelerate)
    data, _ = handed_in(path)
    principles = ({"id": "honest", "comparison": "Which is more honest?"},)
    assert data["stages"][0]["constitution"] == principles
    assert data["matrix"]["stages.feedback.constitution"] == ("default", principles)
    assert data["launch"] == {"profile": "ddp", "num_processes": 4, "mixed_precision": "bf16", "hosts": 2}


def test_files_that_say_nothing_of_use_are_refused_with_their_place(tmp_path):
    path = written(
        tmp_path, "{stage: feedback, constitution: absent.yaml}", "launch: {config: acc.yaml}\n", acc_dot_yaml="a: 1\n"
    )
    with pytest.raises(RecipeError) as refused:
        placed(read(path), lambda sentence: None)
    assert {"stages.feedback.constitution", "launch.config"} <= {each.key for each in refused.value.mistakes}
