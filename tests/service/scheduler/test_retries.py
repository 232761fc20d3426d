from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.jobs.job import Attempt, Job, JobRequest
from service.jobs.states import AttemptState, Move, Reason, State
from service.scheduler.retries import LONGEST, POLICIES, back_off, ending_of, losses_in_a_row, stops_in_a_row

JOB = Job("job-1", JobRequest("name: x", "p", max_retries=2), State.RUNNING, 0.0, 0.0)


def ending(job=JOB, **given):
    return ending_of(job, now=100.0, random=lambda: 1.0, **{"exit_code": 1, **given})


@pytest.mark.parametrize(
    ("code", "move", "reason"),
    [
        (0, Move.SUCCEED, None),
        (75, Move.STOPPED, None),
        (2, Move.FAIL, Reason.BAD_RECIPE),
        (1, Move.STOPPED, Reason.INTERNAL),
        (-9, Move.STOPPED, Reason.INTERNAL),
        (None, Move.STOPPED, Reason.NODE_LOST),
    ],
)
def test_an_exit_code_without_a_reason_tells_what_follows(code, move, reason):
    found = ending(exit_code=code)
    assert (found.move, found.reason, found.exit_code) == (move, reason, code)


@pytest.mark.parametrize(
    "reason", [Reason.BAD_RECIPE, Reason.OUT_OF_MEMORY, Reason.DIVERGED, Reason.DATA_ERROR, Reason.NO_RESOURCES]
)
def test_what_would_fail_again_is_not_tried_again(reason):
    found = ending(reason=reason, message="a sentence")
    assert (found.move, found.reason, found.message) == (Move.FAIL, reason, "a sentence")


def test_an_internal_error_is_tried_again_as_often_as_the_job_allows_with_longer_pauses():
    first, second, third = (ending(replace(JOB, retries=count)) for count in range(3))
    assert [found.move for found in (first, second, third)] == [Move.STOPPED, Move.STOPPED, Move.FAIL]
    assert (first.not_before, second.not_before) == (110.0, 120.0)
    assert first.counts
    assert ending(replace(JOB, request=replace(JOB.request, max_retries=0))).move is Move.FAIL
    often = replace(JOB, request=replace(JOB.request, max_retries=20))
    assert [ending(replace(often, retries=count)).move for count in (19, 20)] == [Move.STOPPED, Move.FAIL]


def test_a_lost_host_costs_the_job_no_try_but_not_for_ever():
    found = ending(replace(JOB, retries=9), exit_code=None)
    assert (found.move, found.counts, found.not_before) == (Move.STOPPED, False, 102.0)
    assert ending(exit_code=None, losses=3).not_before == 116.0
    assert ending(exit_code=None, losses=20).move is Move.FAIL


def test_a_preempted_job_goes_back_at_once_without_a_count():
    job = replace(JOB, state=State.RECOVERING, reason=Reason.PREEMPTED, retries=9)
    found = ending(job, exit_code=75)
    assert (found.move, found.reason, found.preempted, found.counts, found.not_before) == (
        Move.STOPPED,
        Reason.PREEMPTED,
        True,
        False,
        0.0,
    )


def test_what_fails_while_it_is_being_paused_has_failed():
    pausing = replace(JOB, state=State.PAUSING)
    assert ending(pausing, exit_code=75).move is Move.STOPPED
    assert ending(pausing, exit_code=1, reason=Reason.DIVERGED).move is Move.FAIL


def test_losses_count_back_to_the_last_attempt_that_was_not_lost():
    def attempt(number, reason, state=AttemptState.ENDED):
        return Attempt(f"a{number}", "j", number, number, "local", (), state, 0.0, reason=reason)

    lost, other = Reason.NODE_LOST, Reason.INTERNAL
    assert losses_in_a_row([]) == 0
    assert (
        losses_in_a_row(
            [
                attempt(1, lost),
                attempt(2, other),
                attempt(3, lost),
                attempt(4, lost),
                attempt(5, None, AttemptState.STARTED),
            ]
        )
        == 2
    )


@given(st.floats(0.1, 60), st.integers(0, 10_000), st.floats(0, 1))
def test_a_back_off_doubles_up_to_a_limit_and_keeps_at_least_half(first, tried, jitter):
    whole = min(LONGEST, first * 2.0 ** min(tried, 30))
    assert whole / 2 <= back_off(first, tried, jitter) <= whole
    assert back_off(first, tried + 1, jitter) >= back_off(first, tried, jitter)


def test_every_reason_has_a_policy():
    assert set(POLICIES) == set(Reason)


def test_a_job_that_stops_by_itself_goes_back_at_once_and_then_after_longer_and_longer_pauses():
    assert ending(exit_code=75).not_before == 0.0
    waits = [ending(exit_code=75, stops=stops) for stops in (1, 2, 3, 40)]
    assert [found.not_before - 100.0 for found in waits] == [2.0, 4.0, 8.0, LONGEST]
    assert all((found.move, found.reason, found.counts) == (Move.STOPPED, None, False) for found in waits)
    assert ending(replace(JOB, state=State.PAUSING), exit_code=75, stops=3).not_before == 0.0
    preempted = replace(JOB, state=State.RECOVERING, reason=Reason.PREEMPTED)
    assert ending(preempted, exit_code=75, stops=3).not_before == 0.0


def test_stops_count_while_attempts_are_short_and_nobody_asked():
    def attempt(number, code, lasted=5.0, reason=None):
        return Attempt(
            f"a{number}",
            "j",
            number,
            number,
            "local",
            (),
            AttemptState.ENDED,
            100.0,
            ended=100.0 + lasted,
            exit_code=code,
            reason=reason,
        )

    assert stops_in_a_row([]) == 0
    assert stops_in_a_row([attempt(1, 75), attempt(2, 1, reason=Reason.INTERNAL), attempt(3, 75), attempt(4, 75)]) == 2
    assert stops_in_a_row([attempt(1, 75), attempt(2, 75, lasted=LONGEST)]) == 0
    assert stops_in_a_row([attempt(1, 75), attempt(2, 75, reason=Reason.PREEMPTED)]) == 0
