"""What a step sends, against arithmetic by hand and against published runs."""

import subprocess
import sys

import pytest

from pipelines.core.costs import Communication
from pipelines.runs.planning.communication import added_seconds, communication
from tests.conftest import REPOSITORY

MIB = 2**20


def test_ddp_reduces_gradients_once_a_step_in_buckets():
    sent = communication("ddp", 4, 400 * MIB, 300 * MIB, 100 * MIB, 12, accumulated=8)
    assert sent == Communication(round(2 * 3 / 4 * 100 * MIB), 4, True)


def test_fsdp2_gathers_layers_twice_and_all_else_once_for_every_batch():
    sent = communication("fsdp2", 4, 400 * MIB, 300 * MIB, 100 * MIB, 12, accumulated=2)
    assert sent == Communication(round(2 * 3 / 4 * (2 * 300 + 100 + 100) * MIB), 2 * (3 * 12 + 2), False)


def test_fsdp2_gathers_all_for_a_pass_without_gradients_and_layers_for_each_sampled_token():
    learning = communication("fsdp2", 4, 400 * MIB, 300 * MIB, 100 * MIB, 12, accumulated=2)
    sent = communication("fsdp2", 4, 400 * MIB, 300 * MIB, 100 * MIB, 12, accumulated=2, reads=3, sampled=50)
    exposed = round(3 / 4 * 50 * 300 * MIB)
    assert sent.exposed == exposed
    assert sent.bytes == learning.bytes + round(3 / 4 * 3 * 400 * MIB) + exposed
    assert sent.operations == learning.operations + 3 * (12 + 1) + 50 * 12
    whole = communication("ddp", 4, 400 * MIB, 300 * MIB, 100 * MIB, 12, accumulated=2, reads=3, sampled=50)
    assert whole == communication("ddp", 4, 400 * MIB, 300 * MIB, 100 * MIB, 12, accumulated=2)


def test_ddp_reduces_gradients_for_every_update():
    once = communication("ddp", 4, 400 * MIB, 300 * MIB, 100 * MIB, 12, accumulated=8)
    assert communication("ddp", 4, 400 * MIB, 300 * MIB, 100 * MIB, 12, accumulated=8, updates=3) == Communication(
        3 * once.bytes, 3 * once.operations, True
    )


def test_zero_sends_what_its_authors_say():
    """Rajbhandari et al. 2020, section 7: twice the weights in stage 2, as ddp, and three times in stage 3."""
    weights = 400 * MIB
    two = communication("zero2", 4, weights, 300 * MIB, weights, 12, accumulated=1)
    assert two.bytes == round(2 * 3 / 4 * weights)
    assert two.bytes == communication("ddp", 4, weights, 300 * MIB, weights, 12, accumulated=1).bytes
    assert two.exposed == two.bytes // 2  # gathered behind the optimizer
    assert communication("zero2", 4, weights, 300 * MIB, weights, 12, accumulated=3).bytes == 2 * two.bytes
    three = communication("zero3", 4, weights, 300 * MIB, weights, 12, accumulated=1)
    assert (three.bytes, three.exposed) == (round(3 * 3 / 4 * weights), 0)


def test_one_process_sends_nothing():
    assert communication("single", 1, 400, 300, 100, 12, 1) is None


@pytest.mark.parametrize(
    ("profile", "computing", "added"),
    [("ddp", 1.0, 2 - 2 / 3), ("ddp", 6.0, 0.0), ("fsdp2", 1.0, 1.0), ("fsdp2", 3.0, 0.0)],
)
def test_computation_hides_what_is_sent_meanwhile(profile, computing, added):
    sent = Communication(2_000, 10, profile == "ddp")
    assert added_seconds(sent, profile, 8, computing, 1_000.0, 0.0) == pytest.approx(added)


def test_what_is_exposed_is_hidden_by_nothing():
    sent = Communication(2_000, 10, False, exposed=500)
    assert added_seconds(sent, "fsdp2", 8, 1.0, 1_000.0, 0.0) == pytest.approx(0.5 + 0.5)
    assert added_seconds(sent, "fsdp2", 8, 9.0, 1_000.0, 0.0) == pytest.approx(0.5)


def test_latency_is_hidden_by_nothing_and_grows_with_a_ring_but_not_with_a_tree():
    ring, tree = Communication(1, 10, False), Communication(1, 10, True)
    assert added_seconds(ring, "fsdp2", 512, 1.0, 1e9, 1e-3) == pytest.approx(10 * 511 * 1e-3)
    assert added_seconds(tree, "ddp", 512, 1.0, 1e9, 1e-3) == pytest.approx(10 * 18 * 1e-3)
    assert added_seconds(tree, "ddp", 2, 1.0, 1e9, 1e-3) == pytest.approx(10 * 1e-3)


def test_the_loss_by_more_gpus_is_that_of_published_runs():
    """docs/scaling.md says how far it is off."""
    done = subprocess.run(
        [sys.executable, "benchmarks/scaling.py"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    table = [line for line in done.splitlines() if line.startswith("| ")]
    page = (REPOSITORY / "docs" / "scaling.md").read_text()
    assert len(table) > 20
    assert all(line in page for line in table)
    largest = max(abs(float(line.split("|")[-2].strip(" %"))) for line in table if line.endswith("% |"))
    assert f"largest error is {largest:g} %" in " ".join(page.split())
    assert largest < 4
