"""The unmodified `openai` client against a served application. Training itself is told by events, as a run would."""

import json
import math

import openai
import pytest

from pipelines.core.yaml_positions import read_yaml_text
from service.scheduler.retries import ending_of
from tests.service.served import published

ROW = (
    json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}).encode() + b"\n"
)
PREFERENCE = (
    json.dumps(
        {
            "input": {"messages": [{"role": "user", "content": "a"}]},
            "preferred_output": [{"role": "assistant", "content": "b"}],
            "non_preferred_output": [{"role": "assistant", "content": "c"}],
        }
    ).encode()
    + b"\n"
)

PROMPT = json.dumps({"messages": [{"role": "user", "content": "a"}], "answer": 4}).encode() + b"\n"
CHECK = {
    "type": "string_check",
    "name": "blue",
    "input": "{{sample.output_text}}",
    "reference": "blue",
    "operation": "ilike",
}


def loads_data(recipe):
    return read_yaml_text(recipe)[0]


@pytest.fixture
def training_file(client):
    return client.files.create(file=("train.jsonl", ROW * 100), purpose="fine-tune")


@pytest.fixture
def job(client, training_file):
    return client.fine_tuning.jobs.create(
        model="scratch/gpt-tiny", training_file=training_file.id, suffix="My Bot!", seed=7, metadata={"team": "a"}
    )


def metric(step, loss, tokens):
    return {
        "event": "metric",
        "stage": "supervised",
        "step": step,
        "metrics": {"loss": loss, "learning_rate": 0.1, "num_input_tokens_seen": tokens},
    }


def run(served, job):
    """A run of four steps, up to its publication."""
    attempt = served.started(job.id.removeprefix("ft"))
    served.written(
        attempt,
        [
            {"event": "started", "name": "x"},
            {"event": "progress", "stage": "supervised", "step": 1, "total": 4},
            metric(1, 4.0, 10),
            metric(2, 3.0, 20),
            {"event": "checkpoint", "stage": "supervised", "step": 2, "path": "/x"},
            {"event": "warning", "message": "careful"},
            metric(3, 2.0, 30),
            metric(4, 1.0, 40),
            {"event": "checkpoint", "stage": "supervised", "step": 4, "path": "/x"},
            {"event": "stage_finished", "stage": "supervised", "seconds": 3.2},
        ],
    )
    return attempt


def test_a_file_goes_up_and_comes_back(client, training_file):
    assert (training_file.bytes, training_file.filename, training_file.purpose, training_file.status) == (
        len(ROW) * 100,
        "train.jsonl",
        "fine-tune",
        "processed",
    )
    assert client.files.retrieve(training_file.id) == training_file
    assert training_file.id in [each.id for each in client.files.list(purpose="fine-tune")]
    assert client.files.content(training_file.id).content == ROW * 100
    assert client.files.wait_for_processing(training_file.id).id == training_file.id
    assert client.files.delete(training_file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(training_file.id)


def test_a_wrong_file_is_refused_with_the_numbers_of_its_lines(client, served):
    before = len(served.store.files("acme"))
    with pytest.raises(openai.BadRequestError) as refused:
        client.files.create(file=("train.jsonl", ROW + b"nope\n" + ROW + b'{"messages": []}\n'), purpose="fine-tune")
    assert "line 2: is not valid JSON" in refused.value.message
    assert "line 4: has an empty list" in refused.value.message
    assert refused.value.param == "file"
    assert len(served.store.files("acme")) == before
    with pytest.raises(openai.BadRequestError):
        client.files.create(file=("x.jsonl", ROW), purpose="assistants")


def test_a_form_is_not_read_before_it_is_known_who_sends_it(url):
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="nobody", max_retries=0) as nobody,
        pytest.raises(openai.AuthenticationError),
    ):
        nobody.files.create(file=("x.jsonl", b"not a good file"), purpose="fine-tune")


def test_a_body_that_is_no_form_is_refused(client):
    with pytest.raises(openai.BadRequestError, match="multipart"):
        client.post("/files", cast_to=object, body={"file": "x"})


def test_a_new_job_waits_with_every_auto_resolved(client, served, job, training_file):
    assert job.id.startswith("ftjob-")
    assert (job.status, job.model, job.organization_id, job.seed, job.metadata) == (
        "queued",
        "scratch/gpt-tiny",
        "acme",
        7,
        {"team": "a"},
    )
    assert (
        job.hyperparameters.n_epochs,
        job.hyperparameters.batch_size,
        job.hyperparameters.learning_rate_multiplier,
    ) == (3, 4, 1.0)
    assert job.fine_tuned_model is None
    assert client.fine_tuning.jobs.retrieve(job.id) == job
    recipe = served.store.job(job.id.removeprefix("ft")).request.recipe
    assert f"file:{training_file.id}" in recipe
    assert "ft:gpt-tiny:acme:my-bot:" in recipe
    with pytest.raises(openai.ConflictError):
        client.files.delete(training_file.id)


def test_a_finished_job_has_its_model_its_tokens_its_events_and_its_result_file(client, served, job):
    attempt = run(served, job)
    assert client.fine_tuning.jobs.retrieve(job.id).status == "running"
    scores = {"supervised": {"perplexity": math.e**1.5, "mean_token_accuracy": 0.25}}
    served.store.record_stage(attempt.id, attempt.fencing, "evaluate", metrics=scores, with_scores=True)
    name = served.store.job(attempt.job).request.openai["fine_tuned_model"]
    published(served, attempt, name)
    served.succeeded(attempt)
    done = client.fine_tuning.jobs.retrieve(job.id)
    assert (done.status, done.fine_tuned_model, done.trained_tokens) == ("succeeded", name, 40)
    assert done.finished_at >= done.created_at
    lines = client.files.content(done.result_files[0]).text.splitlines()
    assert lines[0].startswith("step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy,full_valid_loss")
    assert lines[1:] == ["1,4.0,,,,,", "2,3.0,,,,,", "3,2.0,,,,,", "4,1.0,,1.5,0.25,,"], (
        "no validation file: none is whole"
    )
    assert client.fine_tuning.jobs.retrieve(job.id).result_files == done.result_files, "made once"
    events = list(client.fine_tuning.jobs.list_events(job.id, limit=3))
    messages = [each.message for each in events]
    assert messages[0] == "The job has successfully completed"
    assert messages[-1] == "The job waits for resources"
    assert (
        messages.index("Step 4/4: training loss=1.00")
        < messages.index("careful")
        < messages.index("Step 1/4: training loss=4.00")
    )
    assert len({each.id for each in events}) == len(events)
    losses = [each.data["train_loss"] for each in events if each.type == "metrics"]
    assert losses == [1.0, 2.0, 3.0, 4.0]
    assert [each.level for each in events if each.message == "careful"] == ["warn"]
    checkpoints = list(client.fine_tuning.jobs.checkpoints.list(job.id, limit=1))
    assert [(each.step_number, each.metrics.train_loss) for each in checkpoints] == [(4, 1.0), (2, 3.0)]
    assert checkpoints[0].fine_tuned_model_checkpoint == name
    assert name in [each.id for each in client.models.list()]
    assert client.models.retrieve(name).owned_by == "acme"
    again = client.fine_tuning.jobs.create(model=name, training_file=done.training_file)
    assert f'checkpoint: "model:{name}"' in served.store.job(again.id.removeprefix("ft")).request.recipe
    with pytest.raises(openai.ConflictError, match="is used by job"):
        client.models.delete(name)
    client.fine_tuning.jobs.cancel(again.id)
    assert client.models.delete(name).deleted
    assert name not in [each.id for each in client.models.list()]
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve(name)


def test_a_failed_job_says_why(client, served, job):
    from service.jobs.states import Reason

    attempt = run(served, job)
    ending = ending_of(
        served.store.job(attempt.job), exit_code=1, reason=Reason.DATA_ERROR, message="row 3 is empty", now=0.0
    )
    served.store.end_attempt(attempt.id, attempt.fencing, ending)
    failed = client.fine_tuning.jobs.retrieve(job.id)
    assert failed.status == "failed"
    assert (failed.error.code, failed.error.message, failed.error.param) == (
        "data_error",
        "row 3 is empty",
        "training_file",
    )
    assert client.fine_tuning.jobs.list_events(job.id, limit=1).data[0].message == "The job failed: row 3 is empty"


def test_pause_resume_and_cancel(client, job):
    assert client.fine_tuning.jobs.pause(job.id).status == "paused"
    assert client.fine_tuning.jobs.resume(job.id).status == "queued"
    assert client.fine_tuning.jobs.cancel(job.id).status == "cancelled"
    with pytest.raises(openai.ConflictError):
        client.fine_tuning.jobs.resume(job.id)


def test_jobs_are_listed_by_pages_and_by_metadata(client, training_file):
    made = [
        client.fine_tuning.jobs.create(
            model="scratch/gpt-tiny", training_file=training_file.id, metadata={"round": str(number)}
        ).id
        for number in range(3)
    ]
    assert [each.id for each in client.fine_tuning.jobs.list(limit=2)][:3] == made[::-1]
    assert [each.id for each in client.fine_tuning.jobs.list(extra_query={"metadata[round]": "1"})] == [made[1]]


@pytest.mark.parametrize(
    ("given", "param", "sentence"),
    [
        ({"model": "gpt-4o-mini"}, "model", "There is no model 'gpt-4o-mini'"),
        ({"model": "scratch/bert-tiny"}, "model", "scratch/gpt-tiny"),
        ({"training_file": "file-x"}, "training_file", "There is no file"),
        ({"validation_file": "file-x"}, "validation_file", "There is no file"),
        ({"method": {"type": "dpo"}}, "training_file", "holds chat rows; this method needs preference rows"),
        ({"method": {"type": "reinforcement"}}, "method.reinforcement.grader", "needs a grader"),
        (
            {"method": {"type": "supervised", "dpo": {"hyperparameters": {"beta": 0.2}}}},
            "method.dpo",
            "method.type is 'supervised'",
        ),
        ({"method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0}}}}, None, "beta"),
        (
            {"method": {"type": "reinforcement", "reinforcement": {"grader": {"type": "python", "source": "1"}}}},
            "method.reinforcement.grader.type",
            "runs code of its author's on the server",
        ),
        ({"hyperparameters": {"n_epochs": 0}}, None, "n_epochs"),
        ({"hyperparameters": {"batch_size": "many"}}, None, "batch_size"),
        (
            {"integrations": [{"type": "wandb", "wandb": {"project": "x"}}]},
            "integrations",
            "Integrations are not offered",
        ),
        ({"suffix": "x" * 65}, "suffix", "64"),
        ({"extra_body": {"surprise": 1}}, "surprise", "surprise"),
    ],
)
def test_what_is_wrong_with_a_request_is_named(client, training_file, given, param, sentence):
    with pytest.raises(openai.BadRequestError) as refused:
        client.fine_tuning.jobs.create(**{"model": "scratch/gpt-tiny", "training_file": training_file.id, **given})
    assert sentence in refused.value.message
    assert refused.value.type == "invalid_request_error"
    if param is not None:
        assert refused.value.param == param


CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("route", "given", "param", "message"),
    [
        ("chat/completions", {"max_tokens": 0}, "max_tokens", "max_tokens: input should be greater than or equal to 1"),
        ("chat/completions", {"stop": [""]}, "stop.0", "stop.0: string should have at least 1 character"),
        ("chat/completions", {"stop": [*"abcde"]}, "stop", "stop: list should have at most 4 items, not 5"),
        ("chat/completions", {"stop": 5}, "stop", "stop: input should be a valid string or a valid list"),
        (
            "chat/completions",
            {"temperature": 3, "n": 0},
            "temperature",
            "temperature: input should be less than or equal to 2; n: input should be greater than or equal to 1",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user"}]},
            "messages.0.content",
            "messages.0.content: field required",
        ),
        ("completions", {"prompt": ["a", 1]}, "prompt.1", "prompt.1: input should be a valid string"),
        ("completions", {"prompt": []}, "prompt", "prompt: list should have at least 1 item, not 0"),
        ("chat/completions", b'{"model": ', None, "the body is not JSON: Expecting value at character 10"),
        ("chat/completions", b"", None, "the body is missing"),
        ("chat/completions", b"[]", None, "the body should be a valid dictionary or object to extract fields from"),
    ],
)
def test_a_mistake_in_a_body_is_told_once_in_the_names_of_the_body(served, route, given, param, message):
    body = (
        given
        if isinstance(given, bytes)
        else json.dumps({**(CHAT if route.startswith("chat") else {"model": "m"}), **given})
    )
    answer = served.submitter.post(f"/v1/{route}", content=body, headers={"Content-Type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["message"]) == (400, param, message)


def test_a_file_of_another_shape_than_the_method_needs_is_refused(client):
    file = client.files.create(file=("pairs.jsonl", PREFERENCE * 20), purpose="fine-tune")
    with pytest.raises(openai.BadRequestError, match="holds preference rows; this method needs chat rows"):
        client.fine_tuning.jobs.create(model="scratch/gpt-tiny", training_file=file.id)


@pytest.mark.parametrize(
    ("architecture", "method", "sentence"),
    [
        (
            "BertForSequenceClassification",
            "supervised",
            "classifies texts, and supervised takes models that continue texts",
        ),
        ("BertForSequenceClassification", "dpo", "classifies texts, and dpo takes models that write texts"),
        ("T5ForConditionalGeneration", "supervised", "writes one text from another, and supervised takes"),
        ("T5ForConditionalGeneration", "dpo", None),
    ],
)
def test_a_published_model_of_another_kind_is_refused_when_the_job_is_made(
    client, served, training_file, architecture, method, sentence
):
    name = f"kind-{len(served.store.models('acme'))}"
    folder = published(served, served.started(served.job()), name)
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    file = training_file.id if method == "supervised" else pairs_of(client)
    asked = {"model": name, "training_file": file, "method": {"type": method}}
    if sentence is None:
        assert client.fine_tuning.jobs.create(**asked).status == "queued"
        return
    with pytest.raises(openai.BadRequestError) as refused:
        client.fine_tuning.jobs.create(**asked)
    assert sentence in refused.value.message
    assert (refused.value.param, refused.value.code) == ("model", "unsupported_model")


@pytest.fixture
def trained(served):
    """The name of a model of the project."""
    name = f"ft:gpt-tiny:acme::{len(served.store.models('acme'))}"
    published(served, served.started(served.job()), name)
    return name


def pairs_of(client, row=PREFERENCE):
    return client.files.create(file=("pairs.jsonl", row * 100), purpose="fine-tune").id


def test_dpo_becomes_a_recipe_with_its_beta_and_is_told_as_it_was_asked(client, served, trained):
    method = {
        "type": "dpo",
        "dpo": {"hyperparameters": {"beta": 0.3, "n_epochs": 1, "batch_size": "auto", "learning_rate_multiplier": 2}},
    }
    made = client.fine_tuning.jobs.create(model=trained, training_file=pairs_of(client), method=method)
    assert (
        made.method.type,
        made.method.dpo.hyperparameters.beta,
        made.method.dpo.hyperparameters.n_epochs,
        made.method.dpo.hyperparameters.batch_size,
    ) == ("dpo", 0.3, 1, 4)
    recipe = loads_data(served.store.job(made.id.removeprefix("ft")).request.recipe)
    stage = recipe["stages"][0]
    assert (stage["stage"], stage["datasets"][0]["format"], recipe["model"]) == (
        "dpo",
        "openai",
        {"checkpoint": f"model:{trained}"},
    )
    assert (stage["arguments"]["beta"], stage["arguments"]["learning_rate"]) == (0.3, pytest.approx(4e-5))
    tested = client.fine_tuning.jobs.create(
        model=trained, training_file=pairs_of(client), validation_file=pairs_of(client), method={"type": "dpo"}
    )
    assert tested.method.dpo.hyperparameters.beta == 0.1
    assert "kind: preference" in served.store.job(tested.id.removeprefix("ft")).request.recipe


def test_the_result_file_of_dpo_tells_how_often_the_better_answer_is_likelier(client, served, trained):
    made = client.fine_tuning.jobs.create(
        model=trained, training_file=pairs_of(client), validation_file=pairs_of(client), method={"type": "dpo"}
    )
    attempt = served.started(made.id.removeprefix("ft"))
    told = {"loss": 0.5, "rewards/accuracies": 0.75, "learning_rate": 0.1}
    served.written(attempt, [{"event": "started"}, {"event": "metric", "stage": "dpo", "step": 1, "metrics": told}])
    scores = {"eval_rewards/nll": 0.25, "eval_rewards/accuracies": 0.875}
    served.store.record_stage(attempt.id, attempt.fencing, "dpo", metrics=scores)
    served.succeeded(attempt)
    done = client.fine_tuning.jobs.retrieve(made.id)
    header, row = (line.split(",") for line in client.files.content(done.result_files[0]).text.splitlines())
    assert dict(zip(header, row, strict=True)) == {
        "step": "1", "train_loss": "0.5", "train_accuracy": "0.75", "valid_loss": "0.25",
        "valid_mean_token_accuracy": "", "full_valid_loss": "0.25", "full_valid_mean_token_accuracy": "",
        "valid_accuracy": "0.875",
    }  # fmt: skip


@pytest.mark.parametrize("method", [{"type": "dpo"}, {"type": "reinforcement", "reinforcement": {"grader": CHECK}}])
def test_a_model_that_has_learnt_nothing_cannot_be_improved(client, method):
    row = PREFERENCE if method["type"] == "dpo" else PROMPT
    with pytest.raises(openai.BadRequestError, match="fine-tune it by supervised first") as refused:
        client.fine_tuning.jobs.create(model="scratch/gpt-tiny", training_file=pairs_of(client, row), method=method)
    assert refused.value.param == "model"


def test_reinforcement_becomes_a_recipe_with_the_graders_reward(client, served, trained):
    made = client.fine_tuning.jobs.create(
        model=trained,
        training_file=pairs_of(client, PROMPT),
        method={"type": "reinforcement", "reinforcement": {"grader": CHECK}},
    )
    assert made.method.type == "reinforcement"
    assert made.method.reinforcement.grader.operation == "ilike"
    stage = loads_data(served.store.job(made.id.removeprefix("ft")).request.recipe)["stages"][0]
    assert (stage["stage"], stage["reward"]) == ("ppo", {"name": "grader", "grader": CHECK})
    of_row = CHECK | {"reference": "{{item.answer}}"}
    made = client.fine_tuning.jobs.create(
        model=trained,
        training_file=pairs_of(client, PROMPT),
        method={"type": "reinforcement", "reinforcement": {"grader": of_row}},
    )
    assert "{{item.answer}}" in served.store.job(made.id.removeprefix("ft")).request.recipe
    with pytest.raises(openai.BadRequestError, match=r"lacks: item\.colour in 100 rows \(line 1, 2, 3, 4, 5, …\)"):
        client.fine_tuning.jobs.create(
            model=trained,
            training_file=pairs_of(client, PROMPT),
            method={
                "type": "reinforcement",
                "reinforcement": {"grader": CHECK | {"reference": "{{item.colour}}"}},
            },
        )
    file = pairs_of(client, PROMPT)
    with pytest.raises(openai.BadRequestError, match="takes no validation file"):
        client.fine_tuning.jobs.create(
            model=trained,
            training_file=file,
            validation_file=file,
            method={"type": "reinforcement", "reinforcement": {"grader": CHECK}},
        )


def test_other_projects_and_wrong_keys_see_nothing(served, url, client, job):
    with openai.OpenAI(base_url=f"{url}/v1", api_key=served.token("submitter", "others"), max_retries=0) as stranger:
        assert [each.id for each in stranger.models.list() if each.id.startswith("ft:")] == []
        assert list(stranger.fine_tuning.jobs.list()) == []
        for call in (
            stranger.fine_tuning.jobs.retrieve,
            stranger.fine_tuning.jobs.cancel,
            stranger.fine_tuning.jobs.list_events,
            stranger.fine_tuning.jobs.checkpoints.list,
        ):
            with pytest.raises(openai.NotFoundError):
                call(job.id)
        with pytest.raises(openai.NotFoundError):
            stranger.files.retrieve(job.training_file)
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="sk-wrong", max_retries=0) as nobody,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        nobody.models.list()
    assert refused.value.code == "invalid_api_key"
    with openai.OpenAI(base_url=f"{url}/v1", api_key=served.token("viewer"), max_retries=0) as viewer:
        with pytest.raises(openai.PermissionDeniedError):
            viewer.fine_tuning.jobs.cancel(job.id)
        assert viewer.fine_tuning.jobs.retrieve(job.id).id == job.id


def test_jobs_of_the_other_surface_and_their_files_are_not_this_ones(served, client):
    recipe_job = served.job()
    with pytest.raises(openai.NotFoundError):
        client.fine_tuning.jobs.retrieve(f"ft{recipe_job}")
    with pytest.raises(openai.NotFoundError):
        client.fine_tuning.jobs.retrieve(recipe_job)
    file = served.submitter.post("/api/v1/files/upload", params={"filename": "a.csv"}, content=b"a").json()["id"]
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file)


def test_the_same_idempotency_key_is_one_job(client, training_file):
    made = {
        client.fine_tuning.jobs.create(
            model="scratch/gpt-tiny", training_file=training_file.id, extra_headers={"Idempotency-Key": "one"}
        ).id
        for _ in range(2)
    }
    assert len(made) == 1
