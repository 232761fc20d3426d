"""A submitted recipe runs the code of a repository that an admin allowed at that commit, and no other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.errors import RecipeError
from service.safety.network_recipes import Known, check
from service.safety.remote_code import PINNED, asks, unfit_code

COMMIT, LATER = "0123456789abcdef0123456789abcdef01234567", "f" * 40
ALLOWED = frozenset({f"someone/odd@{COMMIT}"})
RECIPE = """\
name: demo
model: {MODEL}
stages:
  - {stage: evaluate, benchmarks: [glue/mrpc]}
"""


def recipe(checkpoint="someone/odd", revision=COMMIT, more=""):
    pinned = f", revision: {revision}" if revision else ""
    return RECIPE.replace("MODEL", f"checkpoint: {checkpoint}{pinned}, trust_remote_code: true") + more


def mistakes(text, code=ALLOWED, overrides=(), **known):
    with pytest.raises(RecipeError) as refused:
        check(text, overrides, Known(code=code, **known))
    return [(each.key, each.message) for each in refused.value.mistakes]


def test_the_allowed_repository_at_the_allowed_commit_is_accepted():
    assert check(recipe(), (), Known(code=ALLOWED)).recipe.model.trust_remote_code


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (recipe(revision=LATER), f'would run code of "someone/odd" at {LATER}, which this server does not allow'),
        (
            recipe(checkpoint="someone/else"),
            f"finery serve --allow-remote-code someone/else@{COMMIT}, or for one project with PUT",
        ),
        (recipe(checkpoint="Someone/odd"), "which this server does not allow"),
        (recipe(revision=""), "for a Hub repository (checkpoint: owner/name) at a full commit"),
        (recipe(revision="main"), "at a full commit (revision: 40 hexadecimal digits) only"),
        (recipe(revision=COMMIT[:12]), "at a full commit"),
        (recipe(checkpoint="odd"), "for a Hub repository (checkpoint: owner/name)"),
    ],
    ids=["other commit", "other repository", "other case", "no commit", "branch", "short commit", "no owner"],
)
def test_everything_else_is_refused_with_what_an_admin_can_do(text, sentence):
    found = mistakes(text)
    assert found[0][0] == "model.trust_remote_code" or found[-1][0] == "model.trust_remote_code"
    assert any(sentence in message for _, message in found)


def test_nothing_is_allowed_by_default():
    assert [key for key, _ in mistakes(recipe(), code=frozenset())] == ["model.trust_remote_code"]


def test_a_model_of_the_project_runs_no_code_either(tmp_path):
    found = mistakes(recipe(checkpoint="model:mine", revision=""), checkpoints={"model:mine": tmp_path})
    assert [key for key, _ in found] == ["model.trust_remote_code"]
    assert str(tmp_path) not in found[0][1]


def test_an_override_is_checked_like_the_recipe():
    plain = RECIPE.replace("MODEL", f"checkpoint: someone/odd, revision: {COMMIT}")
    check(plain, ("model.trust_remote_code=true",), Known(code=ALLOWED))
    for overrides in (
        ("model.trust_remote_code=true", f"model.revision={LATER}"),
        ("model.checkpoint=evil/odd", "model.trust_remote_code=true"),
    ):
        assert "model.trust_remote_code" in [key for key, _ in mistakes(plain, overrides=overrides)]


@pytest.mark.parametrize(
    ("matrix", "sentence"),
    [
        ("matrix: {model.checkpoint: [someone/odd, evil/odd]}", "is another model"),
        (f"matrix: {{model.revision: [{COMMIT}, {LATER}]}}", "is another model"),
        (
            f"matrix: {{base: {{a: {{model: {{checkpoint: evil/odd, revision: {LATER}}}}}, b: {{seed: 2}}}}}}",
            "is another model",
        ),
        ("matrix: {model.trust_remote_code: [true, false]}", "stands in the recipe's own model only"),
        (
            "matrix: {base: {a: {model: {checkpoint: evil/odd, trust_remote_code: true}}, b: {seed: 2}}}",
            "stands in the recipe's own model only",
        ),
    ],
)
def test_a_study_cannot_exchange_the_model_whose_code_was_allowed(matrix, sentence):
    assert any(sentence in message for _, message in mistakes(recipe(more=f"{matrix}\n")))


def test_a_study_of_other_things_may_run_allowed_code():
    assert check(recipe(more="matrix: {seed: [1, 2]}\n"), (), Known(code=ALLOWED)).study is not None


@pytest.mark.parametrize("value", ["false", "null"])
def test_a_recipe_that_says_no_asks_for_nothing(value):
    text = recipe().replace("true", value)
    if value == "false":
        check(text)
    assert not list(unfit_code({"model": {"trust_remote_code": {"false": False, "null": None}[value]}}, ()))


@given(
    st.recursive(
        st.none() | st.booleans() | st.sampled_from(["someone/odd", COMMIT, LATER]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["model", "trust_remote_code", "a.trust_remote_code", "checkpoint", "revision", "matrix"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_whatever_asks_for_code_is_either_the_allowed_model_or_refused(data):
    if not isinstance(data, dict) or not asks(data):
        return
    if not list(unfit_code(data, ALLOWED)):
        assert (data["model"]["checkpoint"], data["model"]["revision"]) == ("someone/odd", COMMIT)


def test_a_pair_is_written_with_all_digits():
    assert PINNED.fullmatch(f"a/b@{COMMIT}")
    for wrong in (
        "a/b",
        f"a@{COMMIT}",
        "a/b@main",
        f"a/b@{COMMIT[:-1]}",
        f"a/b@{COMMIT.upper()}",
        f"/a/b@{COMMIT}",
        f"a/b@{COMMIT} ",
    ):
        assert not PINNED.fullmatch(wrong)
