"""Graders and evals by the unmodified `openai` client: real processes serve the models, tiny and of known words."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from service.openai.eval_runner import EvalRunner
from service.settings import read_settings
from service.store.store import Store
from tests.service.served import Served
from tests.service.serving.interpreter import share_interpreter
from tests.service.serving.published import publish, publish_byte_pairs

GOOD = "ft:good:acme::1"
SCHEMA = {
    "type": "object",
    "properties": {"question": {"type": "string"}, "answer": {"type": "string"}},
    "required": ["question", "answer"],
}
CUSTOM: Any = {"type": "custom", "item_schema": SCHEMA, "include_sample_schema": True}
CHECK: Any = {
    "type": "string_check", "name": "says it", "input": "{{sample.output_text}}", "reference": "{{item.answer}}",
    "operation": "like",
}  # fmt: skip
NEAR: Any = {
    "type": "text_similarity", "name": "near", "input": "{{sample.output_text}}", "reference": "{{item.answer}}",
    "evaluation_metric": "rouge_1", "pass_threshold": 0.9,
}  # fmt: skip
TONE: Any = {
    "type": "label_model", "name": "tone", "model": GOOD, "labels": ["good", "bad"], "passing_labels": ["good"],
    "input": [{"role": "user", "content": "{{sample.output_text}}"}],
}  # fmt: skip
ROWS = [{"item": {"question": f"the cat {word}", "answer": word}} for word in ("good", "bad", "good", "good")]
ASKED: Any = {"type": "template", "template": [{"role": "user", "content": "{{item.question}}"}]}
SHORT: Any = {"temperature": 0, "max_completion_tokens": 2, "seed": 1}


def asking(model: str, rows: Any = ROWS) -> Any:
    return {
        "type": "completions",
        "model": model,
        "input_messages": ASKED,
        "sampling_params": SHORT,
        "source": {"type": "file_content", "content": rows},
    }


@pytest.fixture(scope="module")
def served(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An application with a model that says `good`, and an encoder."""
    home = tmp_path_factory.mktemp("evals")
    shutil.copy(migrated_sqlite, home / "finery.db")
    settings = read_settings({}, home=home, serve_models=3)
    store = Store(settings.url)
    made = Served(settings, store)
    share_interpreter(made)
    publish(made, "saying good", GOOD, chats=True)
    publish(made, "bert", "encoder")
    yield made
    made.service.served.close()
    store.close()


@pytest.fixture
def runner(served: Served) -> Iterator[EvalRunner]:
    """The thread that works on runs."""
    made = EvalRunner(served.service)
    made.start()
    yield made
    made.stop()


def ended(client: Any, run: Any, seconds: float = 60.0) -> Any:
    limit = time.monotonic() + seconds
    while run.status in ("queued", "in_progress") and time.monotonic() < limit:
        time.sleep(0.05)
        run = client.evals.runs.retrieve(run.id, eval_id=run.eval_id)
    return run


# ---- graders ---------------------------------------------------------------------------------------------------------


def test_a_grader_is_run_with_its_parts_its_judge_and_its_vectors(client: Any) -> None:
    both = {
        "type": "multi",
        "name": "all",
        "graders": {
            "exact": CHECK,
            "near": {key: value for key, value in NEAR.items() if key != "pass_threshold"}
            | {"evaluation_metric": "cosine"},
            "tone": TONE,
        },
        "calculate_output": "0.5 * exact + 0.25 * near + 0.25 * tone",
    }
    assert client.fine_tuning.alpha.graders.validate(grader=both).grader.name == "all"
    made = client.fine_tuning.alpha.graders.run(grader=both, model_sample="good", item={"answer": "good"})
    assert made.sub_rewards == pytest.approx({"exact": 1, "near": 1, "tone": 1}, abs=1e-6)
    assert made.reward == pytest.approx(1.0)
    assert made.metadata.scores == made.sub_rewards
    assert not made.metadata.errors.invalid_variable_error
    assert set(made.api_model_grader_token_usage_per_model) == {GOOD, "encoder"}
    assert made.metadata.token_usage == 40 + 6, "every position of the judge, and two texts of three tokens"
    worse = client.fine_tuning.alpha.graders.run(grader=both, model_sample="bad", item={"answer": "good"})
    assert worse.sub_rewards["exact"] == 0
    assert worse.sub_rewards["near"] < 1


def test_what_goes_wrong_with_a_grader_is_flagged_and_the_reward_is_the_lowest(client: Any) -> None:
    run = client.fine_tuning.alpha.graders.run
    assert run(grader=CHECK, model_sample="x", item={}).metadata.errors.invalid_variable_error
    structured = CHECK | {"input": "{{sample.output_json.a}}"}
    assert run(grader=structured, model_sample="x", item={"answer": "b"}).metadata.errors.sample_parse_error
    made = run(grader=structured, model_sample='{"a": "b"}', item={"answer": "b"})
    assert (made.reward, made.metadata.errors.sample_parse_error) == (1, False)
    score = {**TONE, "type": "score_model", "range": [2, 9]}
    del score["labels"], score["passing_labels"]
    made = run(grader=score, model_sample="x")
    assert (made.reward, made.metadata.errors.api_model_grader_parse_error) == (2, True)
    long = run(grader=TONE, model_sample="the cat " * 40)
    assert long.metadata.errors.api_model_grader_server_error
    assert "maximum context length" in long.metadata.errors.api_model_grader_server_error_details


@pytest.mark.parametrize(
    ("grader", "param", "sentence"),
    [
        ({"type": "python", "source": "x"}, "grader.type", "runs code of its author's"),
        (CHECK | {"reference": "{{item.x | upper}}"}, "grader.reference", "a path alone"),
        (TONE | {"model": "gpt-4o"}, "grader", "There is no model 'gpt-4o'"),
        (TONE | {"model": "encoder"}, "grader", "turns texts into vectors"),
        (TONE | {"model": "scratch/gpt-tiny"}, "grader", "has learnt nothing yet"),
        ({"type": "multi", "graders": {"a": CHECK}, "calculate_output": "a ** 2"}, "grader.calculate_output", "'*'"),
    ],
)
def test_a_grader_that_cannot_be_is_refused_with_the_place(client: Any, grader: Any, param: str, sentence: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.fine_tuning.alpha.graders.validate(grader=grader)
    assert sentence in refused.value.message
    assert refused.value.param == param


# ---- evals -----------------------------------------------------------------------------------------------------------


def test_a_model_is_asked_graded_and_counted(client: Any, runner: EvalRunner) -> None:
    file = client.files.create(
        file=("rows.jsonl", b"".join(json.dumps(each).encode() + b"\n" for each in ROWS)), purpose="evals"
    )
    made = client.evals.create(
        name="says", data_source_config=CUSTOM, testing_criteria=[CHECK, NEAR, TONE], metadata={"team": "a"}
    )
    assert made.data_source_config.schema_["properties"]["item"] == SCHEMA
    assert [each.name for each in made.testing_criteria] == ["says it", "near", "tone"]
    source = {**asking(GOOD), "source": {"type": "file_id", "id": file.id}}
    run = client.evals.runs.create(made.id, name="good", data_source=source)
    assert (run.status, run.model, run.result_counts.total) == ("queued", GOOD, 4)
    client.files.delete(file.id)  # the run holds its rows
    run = ended(client, run)
    assert (run.status, run.error.message) == ("completed", "")
    counts = run.result_counts
    # it writes `good good`: that holds `good` three times of four, and is near it by 2 * 1 / (2 + 1)
    assert (counts.passed, counts.failed, counts.errored, counts.total) == (0, 4, 0, 4)
    results = {each.testing_criteria: (each.passed, each.failed) for each in run.per_testing_criteria_results}
    assert results == {"says it": (3, 1), "near": (0, 4), "tone": (4, 0)}
    (usage,) = run.per_model_usage
    assert (usage.run_model_name, usage.invocation_count) == (GOOD, 8)
    items = list(client.evals.runs.output_items.list(run.id, eval_id=made.id, limit=3))
    assert [each.datasource_item_id for each in items] == [0, 1, 2, 3]
    first = items[0]
    assert first.datasource_item == ROWS[0]["item"]
    assert (first.status, first.sample.output[0].content.strip()) == ("fail", "good good")
    assert first.sample.input[0].content == "the cat good"
    assert {each.name: (each.score, each.passed) for each in first.results} == {
        "says it": (1, True), "near": (pytest.approx(2 / 3), False), "tone": (1, True),
    }  # fmt: skip
    again = client.evals.runs.output_items.retrieve(first.id, eval_id=made.id, run_id=run.id)
    assert again.to_dict() == first.to_dict()
    assert client.evals.update(made.id, name="says more").name == "says more"
    assert next(iter(client.evals.list(order="desc", limit=1))).id == made.id
    assert [each.id for each in client.evals.runs.list(made.id, status="completed")] == [run.id]
    assert client.evals.runs.delete(run.id, eval_id=made.id).deleted
    assert client.evals.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.evals.retrieve(made.id)


@pytest.mark.parametrize("where", ["response_format", "text"])
def test_sampled_answers_are_held_to_a_schema(client: Any, served: Served, runner: EvalRunner, where: str) -> None:
    pytest.importorskip("llguidance", reason="needs the extra `structured`")
    publish_byte_pairs(served, f"json-{where}")
    schema = {"name": "verdict", "schema": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}}  # fmt: skip
    form: Any = {"type": "json_schema", "json_schema": schema}
    form = form if where == "response_format" else {"format": {"type": "json_schema", **schema}}
    sampling = {"temperature": 1, "max_completion_tokens": 200, "seed": 1, where: form}
    made = client.evals.create(data_source_config=CUSTOM, testing_criteria=[CHECK])
    source = {**asking(f"json-{where}", ROWS[:2]), "sampling_params": sampling}
    run = ended(client, client.evals.runs.create(made.id, data_source=source))
    assert run.status == "completed", run.error
    for each in client.evals.runs.output_items.list(run.id, eval_id=made.id):
        assert json.loads(each.sample.output[0].content)["ok"] in (True, False)


def test_answers_that_are_there_are_graded_and_one_broken_row_is_an_error_of_its_own(
    client: Any, runner: EvalRunner
) -> None:
    made = client.evals.create(
        data_source_config={**CUSTOM, "item_schema": {"type": "object"}},
        testing_criteria=[CHECK, NEAR | {"pass_threshold": 1}],
    )
    rows: Any = [
        {"item": {"answer": "a cat"}, "sample": {"output_text": "a cat"}},
        {"item": {"answer": "a cat"}, "sample": {"choices": [{"message": {"content": "no"}}]}},
        {"item": {"other": 1}, "sample": {"output_text": "a cat"}},
    ]
    run = client.evals.runs.create(
        made.id, data_source={"type": "jsonl", "source": {"type": "file_content", "content": rows}}
    )
    run = ended(client, run)
    assert (run.result_counts.passed, run.result_counts.failed, run.result_counts.errored) == (1, 1, 1)
    states = [each.status for each in client.evals.runs.output_items.list(run.id, eval_id=made.id)]
    assert states == ["pass", "fail", "error"]


def test_a_run_goes_on_where_a_server_ended_and_counts_nothing_twice(client: Any, served: Served) -> None:
    made = client.evals.create(data_source_config=CUSTOM, testing_criteria=[CHECK])
    rows = ROWS * 60
    run = client.evals.runs.create(made.id, data_source=asking(GOOD, rows))
    first = EvalRunner(served.service)
    first.start()
    limit = time.monotonic() + 60
    while sum(done(client, run)) == 0 and time.monotonic() < limit:
        time.sleep(0.01)
    first.stop()
    assert 0 < sum(done(client, run)) < 240
    assert client.evals.runs.retrieve(run.id, eval_id=made.id).status == "in_progress"
    second = EvalRunner(served.service)
    second.start()
    try:
        run = ended(client, run)
    finally:
        second.stop()
    assert run.status == "completed"
    assert done(client, run) == (180, 60, 0)
    assert run.per_model_usage[0].invocation_count >= 240


def done(client: Any, run: Any) -> tuple[int, int, int]:
    counts = client.evals.runs.retrieve(run.id, eval_id=run.eval_id).result_counts
    return counts.passed, counts.failed, counts.errored


def test_a_cancelled_run_keeps_what_it_has_and_a_model_that_is_gone_fails_it(client: Any, served: Served) -> None:
    made = client.evals.create(data_source_config=CUSTOM, testing_criteria=[CHECK])
    run = client.evals.runs.create(made.id, data_source=asking(GOOD))
    assert client.evals.runs.cancel(run.id, eval_id=made.id).status == "canceled"
    publish(served, "saying good", "ft:gone:acme::1", chats=True)
    gone = client.evals.runs.create(made.id, data_source=asking("ft:gone:acme::1"))
    client.models.delete("ft:gone:acme::1")
    runner = EvalRunner(served.service)
    runner.start()
    try:
        gone = ended(client, gone)
    finally:
        runner.stop()
    assert (gone.status, gone.error.code) == ("failed", "model_not_found")
    assert client.evals.runs.retrieve(run.id, eval_id=made.id).status == "canceled"
    with pytest.raises(openai.ConflictError, match="cannot be cancelled"):
        client.evals.runs.cancel(gone.id, eval_id=made.id)


def schema(of_item: Any) -> Any:
    return {"data_source_config": {"type": "custom", "item_schema": of_item}}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"data_source_config": {"type": "stored_completions"}}, "this server keeps no completions"),
        ({"data_source_config": {"type": "custom", "item_schema": {"type": "array"}}}, "the JSON schema of an object"),
        (schema({"type": "object", "required": 5}), "item_schema.required must be a list of names"),
        (schema({"type": "object", "required": [{}]}), "item_schema.required must be a list of names"),
        (schema({"properties": {"a": {"type": 5}}}), "item_schema.properties.a.type must be one of object, array"),
        (schema({"properties": {"a": {"type": ["text"]}}}), "item_schema.properties.a.type must be one of"),
        (schema({"properties": {"a": 5}}), "item_schema.properties.a must be a JSON schema"),
        (schema({"properties": [1]}), "item_schema.properties must be an object"),
        (schema({"properties": {"a": {"items": {"enum": 1}}}}), "item_schema.properties.a.items.enum must be a list"),
        (schema({"additionalProperties": {"type": "any"}}), "item_schema.additionalProperties.type must be one of"),
        ({"testing_criteria": [NEAR | {"pass_threshold": 10**400}]}, "pass_threshold must be a number"),
        ({"testing_criteria": [NEAR | {"pass_threshold": "1"}]}, "pass_threshold must be a number"),
        ({"testing_criteria": [{"type": "python", "source": "x"}]}, "runs code of its author's"),
        ({"testing_criteria": [CHECK | {"reference": "{{item.colour}}"}]}, "testing_criteria[0] reads item.colour"),
        ({"testing_criteria": [CHECK, CHECK]}, "Two testing criteria are called 'says it'"),
        ({"testing_criteria": [CHECK | {"pass_threshold": 1}]}, "unknown key 'pass_threshold'"),
        ({"testing_criteria": [TONE | {"model": "nothing"}]}, "There is no model 'nothing'"),
    ],
)
def test_an_eval_that_cannot_be_is_refused(client: Any, given: Any, sentence: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.evals.create(**{"data_source_config": CUSTOM, "testing_criteria": [CHECK], **given})
    assert sentence in refused.value.message


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ({"type": "jsonl", "source": {"type": "file_content", "content": ROWS}}, "Row 1: has no 'sample'"),
        ({"type": "jsonl", "source": {"type": "file_id", "id": "file-x"}}, "There is no file 'file-x'"),
        ({**asking(GOOD), "model": "nothing"}, "There is no model 'nothing'"),
        ({**asking(GOOD), "model": None}, "data_source.model is missing"),
        (asking(GOOD, [{"item": {"question": "x"}}]), "Row 1: item.answer is missing"),
        (asking(GOOD, [ROWS[0], {"item": {"question": 1, "answer": "x"}}]), "Row 2: item.question must be of the type"),
        (asking(GOOD, [{"question": "x"}]), "must be an object with 'item'"),
        ({**asking(GOOD), "source": {"type": "stored_completions"}}, "this server keeps no completions"),
        ({**asking(GOOD), "sampling_params": {"response_format": {"type": "json_schema"}}}, "'json_schema'"),
        ({**asking(GOOD), "sampling_params": {"text": {"format": {"type": "yaml"}}}}, "'json_object'"),
        ({**asking(GOOD), "sampling_params": {"text": {"format": "x"}}}, "text.format must be an object with a type"),
        ({**asking(GOOD), "sampling_params": {"text": {"format": [1]}}}, "text.format must be an object with a type"),
        ({**asking(GOOD), "sampling_params": {"response_format": {"type": [1]}}}, "data_source.type"),
        ({**asking(GOOD), "sampling_params": {"seed": 10**400}}, "data_source.sampling_params.seed"),
        ({**asking(GOOD), "sampling_params": {"max_completion_tokens": "many"}}, "max_completion_tokens"),
        ({**asking(GOOD), "sampling_params": {"tools": [{"type": "function"}]}}, "leave tools out"),
        (
            {
                **asking(GOOD),
                "input_messages": {"type": "template", "template": [{"role": "user", "content": "{{x}}"}]},
            },
            "a path alone",
        ),
        ({**asking(GOOD), "surprise": 1}, "surprise"),
    ],
)
def test_a_run_that_cannot_be_is_refused(client: Any, source: Any, sentence: str) -> None:
    made = client.evals.create(data_source_config=CUSTOM, testing_criteria=[CHECK])
    with pytest.raises(openai.BadRequestError) as refused:
        client.evals.runs.create(made.id, data_source=source)
    assert sentence in refused.value.message


DEEP = b'{"item": {"a": ' + b"[" * 300 + b"]" * 300 + b"}}"


@pytest.mark.parametrize("line", [b'{"item": {"question": "\\ud800", "answer": ""}}', DEEP])
def test_a_file_of_rows_that_could_not_be_told_again_is_refused(client: Any, line: bytes) -> None:
    with pytest.raises(openai.BadRequestError, match=r"line 2: (holds half of a character|is nested more than 64)"):
        client.files.create(file=("rows.jsonl", json.dumps(ROWS[0]).encode() + b"\n" + line), purpose="evals")


def test_a_full_project_takes_no_evals_and_its_runs_end(client: Any, served: Served, url: str) -> None:
    store = served.store
    rows: Any = [{"item": {"question": "q", "answer": "x" * 1000}, "sample": {"output_text": "x"}}] * 100
    source: Any = {"type": "jsonl", "source": {"type": "file_content", "content": rows}}
    with openai.OpenAI(base_url=f"{url}/v1", api_key=served.token("submitter", "tight"), max_retries=0) as tight:
        file = tight.files.create(
            file=("rows.jsonl", b"".join(json.dumps(each).encode() + b"\n" for each in rows)), purpose="evals"
        )
        made = tight.evals.create(data_source_config=CUSTOM, testing_criteria=[CHECK])
        runs = [tight.evals.runs.create(made.id, data_source=source) for _ in range(2)]
        kept = store.disk_usage("tight")
        assert kept.files == file.bytes
        assert kept.evals > 2 * 100 * 1000
        store.set_project("tight", max_bytes=kept.total + 50_000)
        of_file: Any = {"type": "jsonl", "source": {"type": "file_id", "id": file.id}}
        for given in (source, of_file):
            with pytest.raises(openai.InternalServerError, match="more do not fit: project 'tight' keeps") as refused:
                tight.evals.runs.create(made.id, data_source=given)
            assert (refused.value.status_code, refused.value.code) == (507, "disk_quota")
        store.set_project("tight", max_bytes=1)
        with pytest.raises(openai.InternalServerError, match="files, models or evals"):
            tight.evals.create(data_source_config=CUSTOM, testing_criteria=[CHECK])
        runner = EvalRunner(served.service)
        runner.start()
        try:
            runs[0] = ended(tight, runs[0])
            assert (runs[0].status, runs[0].error.code) == ("failed", "disk_quota")
            assert "may keep 1 B" in runs[0].error.message
            ended(tight, runs[1])
            store.set_project("tight", max_bytes=None)
            assert ended(tight, tight.evals.runs.create(made.id, data_source=of_file)).status == "completed"
        finally:
            runner.stop()
        answered = store.disk_usage("tight").evals
        assert answered > kept.evals * 1.5
        tight.evals.runs.delete(runs[0].id, eval_id=made.id)
        assert store.disk_usage("tight").evals < answered - 100_000
        tight.evals.delete(made.id)
        assert store.disk_usage("tight").evals == 0


def test_another_project_and_a_viewer_see_and_do_what_they_may(client: Any, served: Served, url: str) -> None:
    made = client.evals.create(data_source_config=CUSTOM, testing_criteria=[CHECK])
    run = client.evals.runs.create(made.id, data_source=asking(GOOD))
    with openai.OpenAI(base_url=f"{url}/v1", api_key=served.token("submitter", "others"), max_retries=0) as stranger:
        assert list(stranger.evals.list()) == []
        for call in (
            lambda: stranger.evals.retrieve(made.id),
            lambda: stranger.evals.runs.retrieve(run.id, eval_id=made.id),
            lambda: stranger.evals.runs.output_items.list(run.id, eval_id=made.id),
            lambda: stranger.evals.runs.cancel(run.id, eval_id=made.id),
            lambda: stranger.evals.delete(made.id),
        ):
            with pytest.raises(openai.NotFoundError):
                call()
    with openai.OpenAI(base_url=f"{url}/v1", api_key=served.token("viewer"), max_retries=0) as viewer:
        assert viewer.evals.retrieve(made.id).id == made.id
        with pytest.raises(openai.PermissionDeniedError):
            viewer.evals.runs.create(made.id, data_source=asking(GOOD))
    client.evals.delete(made.id)


# ---- comparison ------------------------------------------------------------------------------------------------------


def test_two_runs_are_compared_row_by_row(client: Any, served: Served, runner: EvalRunner) -> None:
    made = client.evals.create(data_source_config={"type": "custom", "item_schema": {}}, testing_criteria=[CHECK, NEAR])
    runs = []
    for right in (3, 11):
        rows: Any = [
            {"item": {"answer": "x"}, "sample": {"output_text": "x" if number < right else "y"}} for number in range(12)
        ]
        source: Any = {"type": "jsonl", "source": {"type": "file_content", "content": rows}}
        runs.append(ended(client, client.evals.runs.create(made.id, data_source=source)))
    path = f"/api/v1/evals/{made.id}/compare"
    found = served.viewer.get(path, params={"first": runs[0].id, "second": runs[1].id}).json()
    assert (found["rows"], found["left_out"]) == (12, 0)
    checked = {each["name"]: each for each in found["criteria"]}["says it"]
    assert (checked["first"], checked["second"]) == (3 / 12, pytest.approx(11 / 12))
    assert (checked["only_first"], checked["only_second"]) == (0, 8)
    assert checked["p_passed"] == pytest.approx(2 * 2 * 0.5**8), "McNemar, twice because two criteria are tested"
    assert checked["interval"][0] > 0
    assert checked["verdict"] == "second"
    same = served.viewer.get(path, params={"first": runs[0].id, "second": runs[0].id}).json()
    assert {(each["verdict"], each["p_passed"]) for each in same["criteria"]} == {("undecided", 1.0)}
    fewer: Any = {"type": "jsonl", "source": {"type": "file_content", "content": rows[:5]}}
    other = ended(client, client.evals.runs.create(made.id, data_source=fewer))
    refused = served.viewer.get(path, params={"first": runs[0].id, "second": other.id})
    assert (refused.status_code, refused.json()["code"]) == (409, "other_rows")
    assert served.stranger.get(path, params={"first": runs[0].id, "second": runs[1].id}).status_code == 404


# ---- permissions -----------------------------------------------------------------------------------------------------


def test_another_project_asks_a_model_as_long_as_an_admin_lets_it(client: Any, served: Served, url: str) -> None:
    admin = openai.OpenAI(base_url=f"{url}/v1", api_key=served.token("admin"), max_retries=0)
    guest = openai.OpenAI(base_url=f"{url}/v1", api_key=served.token("submitter", "guests"), max_retries=0)
    question: Any = {"model": GOOD, "messages": [{"role": "user", "content": "the cat"}], "max_tokens": 2}
    permissions = admin.fine_tuning.checkpoints.permissions

    def refused() -> bool:
        with pytest.raises(openai.NotFoundError):
            guest.chat.completions.create(**question)
        return GOOD not in [each.id for each in guest.models.list()]

    assert refused()
    with pytest.raises(openai.PermissionDeniedError):
        client.fine_tuning.checkpoints.permissions.create(GOOD, project_ids=["guests"])
    (made,) = permissions.create(GOOD, project_ids=["guests"]).data
    assert made.project_id == "guests"
    assert permissions.create(GOOD, project_ids=["guests"]).data[0].id == made.id
    assert [each.id for each in permissions.list(GOOD)] == [made.id]
    with pytest.warns(DeprecationWarning, match="list method"):
        assert permissions.retrieve(GOOD, project_id="nobody").data == []
    assert GOOD in [each.id for each in guest.models.list()]
    assert guest.models.retrieve(GOOD).owned_by == "acme"
    assert guest.chat.completions.create(**question).choices[0].message.content
    with pytest.raises(openai.NotFoundError):
        guest.models.delete(GOOD)
    grade = guest.fine_tuning.alpha.graders.run(grader=TONE, model_sample="x")
    assert grade.reward == 1
    served.store.set_project("guests", max_running=0)
    for process in served.service.served.living():
        served.service.served.forget(process.model.id)
    assert guest.chat.completions.create(**question).choices, "the process is the owner's"
    for process in served.service.served.living():
        served.service.served.forget(process.model.id)
    served.store.set_project("acme", max_running=0)
    try:
        with pytest.raises(openai.RateLimitError, match="Project 'acme' may have 0 processes at once"):
            guest.chat.completions.create(**question)
        with pytest.raises(openai.RateLimitError, match="Project 'acme' may have 0 processes at once"):
            guest.fine_tuning.alpha.graders.run(grader=TONE, model_sample="x")
    finally:
        served.store.set_project("acme", max_running=None)
    file = guest.files.create(
        file=("train.jsonl", json.dumps({"messages": [{"role": "user", "content": "a"}]}).encode() + b"\n"),
        purpose="fine-tune",
    )
    with pytest.raises(openai.BadRequestError, match="There is no model"):
        guest.fine_tuning.jobs.create(
            model=GOOD,
            training_file=file.id,
            method={"type": "reinforcement", "reinforcement": {"grader": CHECK | {"reference": "x"}}},
        )
    for projects, sentence in ((["nowhere"], "nowhere"), (["acme"], "own project"), (["A B"], "no name of a project")):
        with pytest.raises(openai.BadRequestError, match=sentence):
            permissions.create(GOOD, project_ids=projects)
    with pytest.raises(openai.BadRequestError, match="serves resuming alone"):
        permissions.create(f"{GOOD}:ckpt-step-3", project_ids=["guests"])
    assert served.submitter.delete(f"/api/v1/models/{GOOD}").status_code == 204
    assert refused()
    assert served.submitter.post(f"/api/v1/models/{GOOD}/restore").status_code == 200
    assert GOOD in [each.id for each in guest.models.list()]
    assert permissions.delete(made.id, fine_tuned_model_checkpoint=GOOD).deleted
    assert refused()
    admin.close()
    guest.close()
