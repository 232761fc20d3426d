import pytest

from service.attempts.watching import SAID, outcome_of, said
from service.executors.protocol import Exited
from service.jobs.states import Reason

FAILED = {"event": "failed", "reason": "diverged", "message": "stage 'a': the loss is nan"}


def test_done_is_done_whatever_was_printed():
    assert outcome_of(Exited(0), FAILED, "Traceback").reason is None


@pytest.mark.parametrize(
    ("ended", "code", "reason"),
    [
        (Exited(75), 75, None),
        (Exited(75, asked=True), 75, None),
        (Exited(-9, asked=True), 75, None),  # it had no time left to save; its last checkpoint serves
        (Exited(-15, asked=True), 75, None),  # stopped before it listened to signals
        (Exited(2), 2, Reason.BAD_RECIPE),
        (Exited(-9), -9, Reason.NODE_LOST),
        (Exited(-15), -15, Reason.NODE_LOST),
        (Exited(-11), -11, Reason.INTERNAL),
        (Exited(-9, "out_of_memory"), -9, Reason.OUT_OF_MEMORY),
        (Exited(1), 1, Reason.DIVERGED),
    ],
)
def test_exit_codes_and_signals_have_reasons(ended, code, reason):
    outcome = outcome_of(ended, FAILED, "")
    assert (outcome.exit_code, outcome.reason) == (code, reason)
    assert outcome.message


def test_a_failure_speaks_with_the_sentence_of_its_last_event():
    assert outcome_of(Exited(1), FAILED, "noise").message == "stage 'a': the loss is nan"


def test_without_an_event_the_last_line_speaks():
    assert outcome_of(Exited(1), None, "noise\nKeyError: 'x'\n").message == "KeyError: 'x'"
    assert outcome_of(Exited(1), {"event": "stopped"}, "").message == "it ended with exit code 1 and without a word"


def test_every_reason_that_pipelines_may_give_is_known():
    from pipelines.core import errors

    given = {
        kind.reason for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.FineryError)
    }
    assert given - {"stopped"} <= set(SAID)


def test_the_command_s_own_sentence_is_found_below_the_noise():
    assert (
        said("Loading: 50%\rLoading: 100%\nfinery: the disk is full; free some\nand more")
        == "the disk is full; free some\nand more"
    )


def test_a_recipe_s_mistakes_are_all_told():
    text = "recipe.yaml:3  stages[0].stage: unknown\nrecipe.yaml:9  seed: is -1\n"
    assert outcome_of(Exited(2), None, text).message == text.strip()
