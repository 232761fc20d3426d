"""A recipe from the network names what belongs to its project, asks public judges only, and becomes one that names paths."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.core.errors import RecipeError
from pipelines.core.yaml_positions import read_yaml_text, write_yaml
from service.safety.network_recipes import MOST_CHARACTERS, Known, check, materialise, needs, unfit_endpoint
from service.safety.references import replaced, strings
from tests.words import words_of

RECIPE = """\
name: demo
model:
  architecture: {preset: gpt-tiny}
tokenizer: {train: byte_bpe, vocab_size: 600}
stages:
  - stage: supervised
    task: {kind: causal, format: messages, train: TRAIN}
    chat_template: chatml
  - {stage: publish, to: NAME}
"""


def recipe(train="builtin/python-docs", name="my-model", **more):
    text = RECIPE.replace("TRAIN", train).replace("NAME", name)
    for before, after in more.items():
        text = text.replace(before, after)
    return text


def mistakes(text, known=None, overrides=(), processes=None):
    with pytest.raises(RecipeError) as refused:
        check(text, overrides, known or Known(), processes)
    return [(each.line, each.key, each.message) for each in refused.value.mistakes]


def told(text, **more):
    return " ".join(message for _, _, message in mistakes(text, **more))


def test_a_recipe_with_named_data_and_a_models_name_is_accepted():
    assert [stage.id for stage in check(recipe()).recipe.stages] == ["supervised", "publish"]


@pytest.mark.parametrize(
    "path",
    words_of(
        "/etc/passwd ~/x.jsonl ../x.jsonl ./x data/../../x file:///etc/passwd data.jsonl '*.csv' "
        "s3://bucket/x 'https://example.org/x.jsonl'"
    ),
)
def test_no_path_or_url_can_be_named_as_data(path):
    found = mistakes(recipe(path))
    assert [(line, key) for line, key, _ in found] == [(7, "stages.supervised.task.train")]
    assert "upload the file and write file:ID" in found[0][2]


SAMPLED = """\
name: demo
model: {checkpoint: some/model}
stages:
  - {stage: evaluate, prompts: {path: PATH, text: text}, reward: REWARD}
"""


def sampled(path="builtin/python-docs", reward="{name: length}"):
    return SAMPLED.replace("PATH", path).replace("REWARD", reward)


def test_prompts_and_rewards_name_what_belongs_to_the_project(tmp_path):
    file, folder = tmp_path / "rows.jsonl", tmp_path / "model"
    file.write_text('{"text": "a"}')
    folder.mkdir()
    known = Known({"file-1": file}, {"model:judge": folder, "job:later": None})
    stage = check(sampled("file:file-1", "{checkpoint: 'model:judge'}"), known=known).recipe.stages[0]
    assert (stage.prompts.path, stage.reward.checkpoint) == (str(file), str(folder))
    check(
        sampled(reward="{name: weighted, rewards: [{reward: {name: classifier, checkpoint: 'job:later', label: /x}}]}"),
        known=known,
    )
    check(
        sampled(
            reward="{name: weighted, rewards: [{reward: {name: pattern, pattern: '^/'}}, {reward: {name: pattern, pattern: ../x}}]}"
        )
    )


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (sampled("/etc/passwd"), "prompts.path"),
        (sampled(reward="{checkpoint: /srv/models/x}"), "reward.checkpoint"),
        (
            sampled(reward="{name: weighted, rewards: [{reward: {name: classifier, checkpoint: ../x, label: a}}]}"),
            "reward.rewards[0].reward.checkpoint",
        ),
    ],
)
def test_neither_prompts_nor_rewards_reach_the_servers_disk(text, key):
    assert [each for _, each, _ in mistakes(text)] == [f"stages.evaluate.{key}"]


def test_an_existing_file_is_refused_in_the_same_words_as_a_missing_one():
    """Otherwise the answers would tell which files the server has."""
    there, missing = told(recipe("/etc/hostname")), told(recipe("/etc/hostnamex"))
    assert there.replace("/etc/hostname", "X") == missing.replace("/etc/hostnamex", "X")


@pytest.mark.parametrize("place", ["/", "..", "/srv/models/x", "~root", "file:file-1"])
def test_no_checkpoint_is_a_folder_of_the_server(place):
    text = (
        recipe()
        .replace("architecture: {preset: gpt-tiny}", f"checkpoint: {place}")
        .replace("tokenizer: {train: byte_bpe, vocab_size: 600}\n", "")
    )
    assert mistakes(text)[0][1] == "model.checkpoint"


def test_a_chat_template_cannot_be_read_from_the_servers_disk(tmp_path):
    template = tmp_path / "secret.jinja"
    template.write_text("{{ x }}")
    assert mistakes(recipe().replace("chatml", str(template)))[0][1] == "stages.supervised.chat_template"


@pytest.mark.parametrize(
    "name", ["/srv/x", "registry/x", "hub:owner/name", "'s3://bucket/x'", "..", "''", "-x", f"{'x' * 129}"]
)
def test_publish_to_is_the_plain_name_of_a_model(name):
    assert "stages.publish.to" in [key for _, key, _ in mistakes(recipe(name=name))]


@pytest.mark.parametrize("study", [False, True])
def test_nothing_in_the_servers_working_folder_stands_in_the_way_of_a_models_name(study, tmp_path, monkeypatch):
    (tmp_path / "a-file").write_text("mine")
    (tmp_path / "a-folder").mkdir()
    (tmp_path / "a-folder" / "note.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    if study:
        check(recipe() + "matrix: {stages.publish.to: [a-file, a-folder]}\n")
    else:
        assert check(recipe(name="a-file")).source.data["stages"][1]["to"] == "a-file"
        check(recipe(name="a-folder"))


def test_every_mistake_comes_at_once_those_of_safety_and_all_others_in_the_order_of_the_file():
    text = recipe("/etc/passwd", "a/b").replace("chatml", "chatmll").replace("vocab_size: 600", "vocab_size: x")
    assert [line for line, _, _ in mistakes(text)] == [4, 7, 8, 9]


def test_the_servers_folders_stand_in_no_message(tmp_path):
    path = tmp_path / "file-1.jsonl"
    path.write_text("{}")
    message = told(
        recipe("file:file-1").replace("chatml", "nowhere.x").replace("messages", "wrong"), known=Known({"file-1": path})
    )
    assert str(tmp_path) not in message
    assert "nonexistent" not in message


def test_an_uploaded_file_of_the_project_can_be_named(tmp_path):
    path = tmp_path / "file-1.jsonl"
    path.write_text("{}")
    assert check(recipe("file:file-1"), known=Known({"file-1": path})).recipe.stages[0].task.train == str(path)


def test_another_projects_file_is_unknown():
    assert "is no complete file of this project" in told(recipe("file:file-1"))


def test_a_jobs_model_that_does_not_exist_yet_is_waited_for():
    text = (
        recipe()
        .replace("architecture: {preset: gpt-tiny}", "checkpoint: 'job:first'")
        .replace("tokenizer: {train: byte_bpe, vocab_size: 600}\n", "")
    )
    assert check(text, known=Known(checkpoints={"job:first": None})).recipe.model.checkpoint == "pending/first"
    assert "is no job" in told(text)


def test_cells_of_a_matrix_are_checked_too(tmp_path):
    study = (
        recipe().replace("  - {stage: publish, to: my-model}\n", "")
        + "matrix: {stages.supervised.task.train: [builtin/python-docs, /etc/passwd]}\n"
    )
    assert mistakes(study)[0][1] == "matrix.stages.supervised.task.train[1]"
    fine = study.replace("/etc/passwd", "file:file-1")
    path = tmp_path / "file-1.jsonl"
    path.write_text("{}")
    assert len(check(fine, known=Known({"file-1": path})).study.cells) == 2


def test_overrides_are_checked_as_the_recipe_is():
    assert (
        mistakes(recipe(), overrides=["stages.supervised.task.train=/etc/passwd"])[0][1]
        == "stages.supervised.task.train"
    )


def test_a_study_cannot_have_thousands_of_cells():
    study = recipe().replace("  - {stage: publish, to: my-model}\n", "")
    assert "at most 256" in told(study + f"matrix: {{stages.supervised.seed: {list(range(300))}}}\n")


def test_no_job_starts_more_processes_than_it_asked_cores_for():
    text = recipe() + "launch: {num_processes: 8}\n"
    assert "at most 2" in told(text, processes=2)
    check(text, processes=8)


def test_a_tracker_of_the_servers_account_is_refused():
    text = recipe().replace("chat_template: chatml", "arguments: {report_to: [wandb, neptune]}")
    [(_, key, message)] = mistakes(text)  # and nothing of a word that nobody wrote
    assert (key, "would use the server's own account" in message) == ("stages.supervised.arguments.report_to[1]", True)


def test_a_tracker_whose_package_jobs_lack_is_one_sentence():
    known = Known(missing_trackers=frozenset({"mlflow"}))
    text = recipe().replace("chat_template: chatml", "arguments: {report_to: [wandb, mlflow]}")
    check(text)
    [(_, key, message)] = mistakes(text, known)
    assert key == "stages.supervised.arguments.report_to[1]"
    assert message == (
        'is "mlflow", a tracker whose package is not installed where jobs run; ask the server\'s operator for it, or '
        "leave it out"
    )
    alone = recipe().replace("chat_template: chatml", "arguments: {report_to: mlflow}")
    assert len(mistakes(alone, known)) == 1


def test_a_secret_in_a_recipe_is_refused_and_not_repeated():
    token = "hf_" + "a" * 34
    found = mistakes(recipe().replace("name: demo", f"name: {token}"))
    assert any("looks like a secret" in message for _, _, message in found)


@pytest.mark.parametrize("name", ["HOME", "HTTPS_PROXY", "HF_HUB_CACHE"])
def test_a_judge_is_not_sent_the_servers_own_variables(name):
    judge = f"{{name: endpoint, base_url: 'https://api.example.com/v1', model: m, api_key_env: {name}}}"
    text = recipe().replace(
        "  - {stage: publish",
        f"  - {{stage: ppo, prompts: {{path: builtin/python-docs}}, reward: {{name: judge, judge: {judge}}}}}\n  - {{stage: publish",
    )
    assert any(key.endswith("api_key_env") and "cannot name a secret" in message for _, key, message in mistakes(text))
    assert not [
        key
        for _, key, _ in mistakes(text.replace(name, "SECRET_MY_KEY").replace("name: demo", "name: ''"))
        if "api_key_env" in key
    ]


@pytest.mark.parametrize("key", ["trust_remote_code: true", "auto_map: {AutoModel: 'evil/repo--modeling.Evil'}"])
def test_remote_code_has_no_key(key):
    assert mistakes(recipe().replace("{preset: gpt-tiny}", f"{{preset: gpt-tiny, {key}}}"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "a: b: c",
        "? {a: b}\n: c",
        "&a [*a]",
        "!!python/object/apply:os.system [ls]",
        "x" * (MOST_CHARACTERS + 1),
        "- " * 4000,
        "{" * 3000,
        "name: \ud800",
        "a: &a [x]\nb: [*a, *a]",
        "matrix: {a: {b: null}}",
        "stages: {a: b}",
        "\x00",
    ],
    ids=range(14),
)
def test_what_is_no_recipe_is_refused_in_words(text):
    assert mistakes(text)


def test_a_file_that_unfolds_without_end_is_refused():
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
    )
    assert "unfolds" in told(bomb)


@pytest.mark.parametrize(
    "text",
    ["[" * 3000, "x: &x {a: 1}\n" + "".join(f"y{n}: {{<<: *x}}\n" for n in range(2000))],
    ids=["brackets", "merges"],
)
def test_what_would_keep_the_parser_busy_is_not_parsed(text):
    begun = time.perf_counter()
    assert mistakes(text)
    assert time.perf_counter() - begun < 0.5


# ---- a fuzzer: whatever a value is replaced by, the answer is a recipe or a RecipeError

PLAIN = read_yaml_text(recipe() + "launch: {num_processes: 1}\nmatrix: {stages.supervised.seed: [1, 2]}\n")[0]
PLACES = [place for place, _ in strings(PLAIN)] + [
    ("stages",),
    ("matrix",),
    ("model",),
    ("stages", 0),
    ("launch", "num_processes"),
    ("seed",),
]
HOSTILE = st.sampled_from(
    [
        *words_of("/etc/passwd ../../x file:x job:x model:.. ~"),
        "\x00",
        "é" * 300,
        "%s%n",
        "{{7*7}}",
        "$(id)",
        "*" * 50,
        "stages.x.to",
        "",
        " ",
        "inf",
        "file:" + "a" * 300,
        "hub:a/b",
        "a\nb",
    ]
)
VALUES = st.recursive(
    HOSTILE | st.text(max_size=20) | st.integers(-(2**70), 2**70) | st.floats() | st.booleans() | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            HOSTILE | st.sampled_from(["stage", "name", "kind", "to", "path", "train"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


def answer(text, overrides=(), processes=None):
    """The name of the accepted recipe, or every sentence of the refusal."""
    try:
        return check(text, overrides, processes=processes).recipe.name
    except RecipeError as refused:
        return str(refused)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(PLACES), VALUES)
def test_a_recipe_with_anything_anywhere_is_accepted_or_refused_in_words(place, value):
    changed = replaced(PLAIN, {place: value})
    text = answer(write_yaml(changed), processes=2)
    assert text
    assert str(Path.cwd()) not in text


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet=st.sampled_from("abc:-{}[]&*!|>'\"#%@`,?\n\t 019~/.\\"), max_size=120))
def test_any_text_is_refused_in_words(text):
    with pytest.raises(RecipeError):
        check(text)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(
        ["stages", "stages.supervised", "stages[9].x", "matrix", "name", "a", "model.checkpoint", "stages.publish.to"]
    ),
    st.text(max_size=30),
)
def test_any_override_is_applied_or_refused_in_words(path, value):
    assert answer(recipe(), [f"{path}={value}"])


JUDGED = """\
name: demo
model: {{checkpoint: some/model}}
stages:
  - stage: feedback
    prompts: {{path: builtin/python-docs}}
    judge: {{name: endpoint, base_url: "{url}", model: m}}
"""
PRIVATE = ["http://127.0.0.1:8000/v1", "https://169.254.169.254/latest", "http://judge.internal/v1"]
"""Their spellings are tried beside what reads them, in tests/service/hostile/test_outgoing.py."""


@pytest.mark.parametrize("url", PRIVATE)
def test_private_networks_are_refused(url: str) -> None:
    with pytest.raises(RecipeError, match="private network") as refused:
        check(JUDGED.format(url=url))
    assert [(each.line, each.key) for each in refused.value.mistakes] == [(6, "stages.feedback.judge.base_url")]


@pytest.mark.parametrize(
    "url",
    words_of(
        "http://127.0.0.1:8000/v1 http://localhost/v1 http://10.0.0.7/v1 http://[::1]:8000/v1 http://judge.internal/v1"
    ),
)
def test_an_administrator_may_allow_them(url: str) -> None:
    assert check(JUDGED.format(url=url), known=Known(private_endpoints=True)).recipe.stages[0].judge.base_url == url


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest",
        "http://[fe80::1]/v1",
        "http://0x7f000001/v1",
        "http://[::ffff:169.254.169.254]/v1",
    ],
)
def test_metadata_and_odd_spellings_are_refused_even_then(url: str) -> None:
    assert unfit_endpoint(url, private=True) is not None


def test_public_ones_are_accepted() -> None:
    for url in ("https://api.example.com/v1", "http://8.8.8.8:8000/v1"):
        assert check(JUDGED.format(url=url)).recipe.stages[0].judge.base_url == url


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "api.example.com", "http://", "http://[bad/v1", "ftp://api.example.com/v1"]
)
def test_other_things_are_no_addresses(url: str) -> None:
    assert unfit_endpoint(url) is not None
    assert unfit_endpoint(url, private=True) is not None


def test_an_overriden_address_is_checked_too() -> None:
    with pytest.raises(RecipeError, match="private network"):
        check(
            JUDGED.format(url="https://api.example.com/v1"),
            ("stages.feedback.judge.base_url=http://127.0.0.1/v1",),
        )


def test_the_job_itself_looks_at_what_a_name_resolves_to() -> None:
    from service.attempts.environment import environment_of
    from service.settings import Settings

    job: Any = SimpleNamespace(id="job-1", project="acme", request=SimpleNamespace(secrets=()))
    attempt: Any = SimpleNamespace(resources=SimpleNamespace(cpus=1))
    assert environment_of(Settings(), job, attempt, {})["FINERY_PUBLIC_ENDPOINTS_ONLY"] == "1"
    assert environment_of(Settings(private_endpoints=True), job, attempt, {})["FINERY_PUBLIC_ENDPOINTS_ONLY"] == "0"


def test_references_become_paths_and_the_models_name_a_folder():
    made = materialise(recipe("file:file-1", "'ft:gpt:x'"), files={"file-1": Path("/data/a.jsonl")}, checkpoints={})
    stages = read_yaml_text(made.recipe)[0]["stages"]
    assert stages[0]["task"]["train"] == "/data/a.jsonl"
    assert stages[1]["to"] == "published/ft:gpt:x"
    assert made.publications == {"published/ft:gpt:x": "ft:gpt:x"}


def test_overrides_are_part_of_the_text():
    made = materialise(
        recipe(), ["stages.supervised.max_length=64", "stages.publish.to=other"], files={}, checkpoints={}
    )
    stages = read_yaml_text(made.recipe)[0]["stages"]
    assert (stages[0]["max_length"], stages[1]["to"]) == (64, "published/other")


def test_a_matrix_publishes_each_cell_under_its_own_name():
    study = recipe() + "matrix: {stages.publish.to: [one, two]}\n"
    made = materialise(study, files={}, checkpoints={})
    assert read_yaml_text(made.recipe)[0]["matrix"]["stages.publish.to"] == ("published/one", "published/two")
    assert set(made.publications.values()) == {"my-model", "one", "two"}


def test_what_is_gone_by_now_is_told_with_its_line():
    with pytest.raises(RecipeError, match=r"recipe\.yaml:7 .*'file:file-1' is gone"):
        materialise(recipe("file:file-1"), files={}, checkpoints={})


def test_needs_lists_everything_once():
    text = (
        recipe("file:file-1").replace("architecture: {preset: gpt-tiny}", "checkpoint: 'model:ft:a:b'")
        + "matrix: {model.checkpoint: ['job:x', 'job:x']}\n"
    )
    found = needs(text, ["stages.supervised.task.validation=file:file-2"])
    assert (found.files, found.jobs, found.models, found.publishes) == (
        ("file-1", "file-2"),
        ("x",),
        ("ft:a:b",),
        ("my-model",),
    )


@pytest.mark.parametrize("name", ["../x", "/srv/x", "a/b"])
def test_a_name_that_leaves_its_folder_is_refused_here_too(name):
    with pytest.raises(RecipeError):
        materialise(recipe(name=name), files={}, checkpoints={})
