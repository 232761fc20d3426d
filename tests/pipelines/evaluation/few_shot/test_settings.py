import pytest

from pipelines.core.errors import RecipeError
from pipelines.core.load import loads

RECIPE = """
name: t
model: {architecture: {preset: PRESET}}
stages:
  - {stage: pretrain, objective: OBJECTIVE, datasets: [{path: english_novels}]}
  - {stage: supervised, id: head, task: glue/sst2}
  - {stage: evaluate, STAGE}
"""


def recipe(stage, objective="causal_lm", preset="gpt-tiny"):
    return loads(RECIPE.replace("STAGE", stage).replace("OBJECTIVE", objective).replace("PRESET", preset))


def test_a_single_name_stands_for_a_list_and_none_for_nothing():
    settings = (
        recipe("benchmarks: [glue/sst2], few_shot: {calibration: contextual, normalisation: none}")
        .stage("evaluate")
        .few_shot
    )
    assert settings.calibration == ("contextual",)
    assert settings.normalisation == ()
    assert settings.accuracies() == ("acc", "acc_contextual")
    assert settings.names("glue/sst2") == {"glue/sst2/0-shot": 0}


def test_the_scores_of_every_key_are_known_before_a_run():
    made = recipe(
        "benchmarks: [glue/mrpc, glue/mnli, squad, glue/stsb, race/middle], few_shot: {shots: [0, 8], calibration: answer_context}"
    )
    stage = made.stage("evaluate")
    found = stage.few_shot_scores(made)
    assert list(found)[:3] == ["glue/mrpc/0-shot", "glue/mrpc/8-shot", "glue/mnli/0-shot"]
    assert found["glue/mrpc/8-shot"] == ["acc", "acc_norm", "acc_answer_context", "f1"]
    assert found["glue/mnli/0-shot"] == [
        f"{name}{mm}" for mm in ("", "_mm") for name in ("acc", "acc_norm", "acc_answer_context")
    ]
    assert found["squad/0-shot"] == ["exact_match", "f1"]
    assert found["glue/stsb/0-shot"] == ["pearson", "spearmanr"]
    assert stage.few_shot_model(made) == "pretrain"
    assert stage.reads(made) == ("pretrain",)


@pytest.mark.parametrize(
    ("stage", "sentence"),
    [
        ("few_shot: {}", "benchmarks: is missing: few_shot asks"),
        ("benchmarks: [glue/sst], few_shot: {}", "unknown benchmark 'glue/sst'. Did you mean 'glue/sst2'"),
        ("benchmarks: [glue/sst2, glue/sst2], few_shot: {}", "'glue/sst2' is named twice"),
        ("benchmarks: [glue/sst2], few_shot: {shots: [1, 1]}", "'1' is named twice"),
        ("benchmarks: [glue/sst2], few_shot: {shots: [-1]}", "must be at least 0"),
        (
            "benchmarks: [glue/sst2], few_shot: {calibration: contextual-ish}",
            "must be one of contextual, answer_context",
        ),
        ("benchmarks: [squad], few_shot: {answer: likelihood}", "'squad' has no possible answers"),
        ("benchmarks: [glue/stsb], few_shot: {answer: generation}", "asked for by likelihood"),
        ("benchmarks: [glue/sst2], few_shot: {prompts: {glue/sst2: {text: '{sentense}'}}}", "Did you mean 'sentence'"),
        (
            "benchmarks: [glue/sst2], few_shot: {prompts: {glue/cola: {text: '{sentence}'}}}",
            "a benchmark that is not asked",
        ),
        ("benchmarks: [glue/sst2], datasets: [{path: english_novels}], few_shot: {}", "use another evaluate stage"),
        (
            "benchmarks: [glue/sst2], mixed_precision: bf16, few_shot: {}",
            "mixed_precision: is bf16, but zero- and few-shot",
        ),
        ("benchmarks: [glue/sst2], from: head, few_shot: {}", "leaves no language model; name a pretrain stage"),
        (
            "benchmarks: [mine], tasks: {mine: {kind: instruction_pairs, train: alpaca, format: alpaca}}, few_shot: {}",
            "'mine' is of the kind instruction_pairs, whose answers cannot be asked for in a prompt; train a head",
        ),
    ],
)
def test_what_cannot_be_asked_is_refused_when_the_recipe_is_checked(stage, sentence):
    with pytest.raises(RecipeError) as refused:
        recipe(stage)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("objective", "preset", "benchmark", "sentence"),
    [
        ("replaced_token_detection", "bert-tiny", "glue/sst2", "no earlier stage leaves one"),
        ("masked_lm", "bert-tiny", "squad", "an encoder writes none"),
    ],
)
def test_models_that_cannot_answer_are_refused(objective, preset, benchmark, sentence):
    with pytest.raises(RecipeError) as refused:
        recipe(f"benchmarks: [{benchmark}], few_shot: {{}}", objective, preset)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("objective", "preset", "sentence"),
    [
        ("replaced_token_detection", "bert-tiny", "names none; ask another model"),
        (
            "bidirectional_lm",
            "{family: rnn, stack: encoder, separate_directions: true}",
            "from both sides, which no prompt",
        ),
    ],
)
def test_a_model_that_gives_no_likelihood_is_refused_with_the_reason_where_it_is_named(objective, preset, sentence):
    with pytest.raises(RecipeError, match=sentence):
        loads(
            RECIPE.replace("STAGE", "benchmarks: [glue/sst2], from: pretrain, few_shot: {}")
            .replace("OBJECTIVE", objective)
            .replace("{preset: PRESET}", preset if preset.startswith("{") else f"{{preset: {preset}}}")
        )


def test_a_model_that_learnt_to_write_all_words_at_once_is_no_language_model():
    masks = "{preset: transformer-tiny, bidirectional_decoder: true, length_prediction: true}"
    with pytest.raises(RecipeError, match="leaves no language model"):
        loads(
            f"name: t\nmodel: {{architecture: {masks}}}\nstages:\n"
            "  - {stage: supervised, id: write, task: multi30k/en-de, objective: mask_predict}\n"
            "  - {stage: evaluate, from: write, benchmarks: [glue/sst2], few_shot: {}}\n"
        )


def test_without_any_model_there_is_nobody_to_ask():
    with pytest.raises(RecipeError, match="asks a language model, and no earlier stage leaves one"):
        loads(
            "name: t\nmodel: {architecture: {preset: gpt-tiny}}\nstages: [{stage: evaluate, benchmarks: [glue/sst2], few_shot: {}}]\n"
        )
    made = loads(
        "name: t\nmodel: {checkpoint: openai-community/gpt2}\nstages: [{stage: evaluate, benchmarks: [glue/sst2], few_shot: {}}]\n"
    )
    assert made.stage("evaluate").few_shot_model(made) == "model"
