from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.jobs.states import ACTIVE, STOPPING, TABLE, TERMINAL, IllegalTransition, Move, State, after, allowed


def test_every_state_is_one_of_waiting_holding_paused_or_over():
    assert ACTIVE | TERMINAL | {State.QUEUED, State.PAUSED} == set(State)
    assert not ACTIVE & TERMINAL
    assert STOPPING < ACTIVE


def test_a_job_that_has_ended_moves_only_by_a_retry_and_success_is_final():
    assert {state: allowed(state) for state in TERMINAL} == {
        State.SUCCEEDED: (),
        State.FAILED: (Move.RETRY,),
        State.CANCELLED: (Move.RETRY,),
    }


@pytest.mark.parametrize("state", sorted(ACTIVE))
def test_however_an_attempt_ends_its_job_has_an_answer(state):
    for ending in (Move.SUCCEED, Move.FAIL, Move.STOPPED):
        assert after(state, ending) not in ACTIVE


@pytest.mark.parametrize("state", sorted(set(State) - TERMINAL))
def test_every_job_that_has_not_ended_can_be_cancelled_unless_it_is_being_cancelled(state):
    assert ((state, Move.CANCEL) in TABLE) is (state is not State.CANCELLING)


def test_resources_are_taken_by_starting_only_and_given_back_by_the_end_of_an_attempt_only():
    for (state, move), following in TABLE.items():
        if state not in ACTIVE and following in ACTIVE:
            assert move is Move.START
        if state in ACTIVE and following not in ACTIVE:
            assert move in {Move.SUCCEED, Move.FAIL, Move.STOPPED}


def test_a_cancelled_job_is_cancelled_however_its_attempt_ends():
    assert {after(State.CANCELLING, move) for move in (Move.SUCCEED, Move.FAIL, Move.STOPPED)} == {State.CANCELLED}


def test_a_refused_move_says_when_it_is_possible():
    with pytest.raises(
        IllegalTransition,
        match="the job is succeeded; 'pause' is possible when it is queued, starting, running or recovering",
    ):
        after(State.SUCCEEDED, Move.PAUSE)
    with pytest.raises(IllegalTransition, match=r"'run' is possible when it is starting$"):
        after(State.PAUSED, Move.RUN)


@given(st.lists(st.sampled_from(Move), max_size=40))
def test_any_sequence_of_moves_stays_in_the_table(moves):
    states = [State.QUEUED]
    for move in moves:
        if (states[-1], move) in TABLE:
            states.append(after(states[-1], move))
        else:
            with pytest.raises(IllegalTransition):
                after(states[-1], move)
    assert all(following in TABLE.values() for _, following in pairwise(states))
