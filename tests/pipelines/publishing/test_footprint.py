"""Energy that was counted, energy that is estimated, and what the hours cost: by arithmetic done by hand."""

from __future__ import annotations

import pytest

from pipelines.publishing.footprint import Price, footprint_of, sentences, watts_of

MACHINE = {"cores": 4, "memory_bytes": 64e9, "gpus": [{"name": "NVIDIA H100 80GB HBM3"}]}
WATTS = 4 * 12 + 64 * 0.3725 + 700  # the formula and the constants of Lannelongue et al. 2021


def stage(name: str = "mrpc", **fields: object) -> dict[str, object]:
    return {"id": name, "stage": "supervised", "seconds": 1800.0, "hardware": MACHINE, **fields}


def test_what_nothing_counted_is_estimated_and_said_so() -> None:
    assert watts_of(MACHINE) == pytest.approx(WATTS)
    assert watts_of(MACHINE | {"hosts": 2}) == pytest.approx(2 * WATTS)
    told = footprint_of([stage()])
    assert told["estimated_wh"] == pytest.approx(WATTS / 2)
    (energy, cost) = sentences(told)
    assert energy.startswith("Energy: about 386 Wh, estimated for `mrpc` as hours x (12 W a core")
    assert cost == "Cost: the stages took 30 min; no price of an hour was given."


def test_counted_and_estimated_energy_are_not_mixed() -> None:
    counted = stage("one", energy_joules=7200.0, energy_counters=["NVML 0", "RAPL 0"])
    told = footprint_of([counted, stage("two")])
    assert (told["measured_wh"], told["counters"]) == (2.0, ["NVML 0", "RAPL 0"])
    assert told["estimated_wh"] == pytest.approx(WATTS / 2)
    assert told["estimated_stages"] == ["two"]
    assert sentences(told)[0].startswith("Energy: 2 Wh, measured by the machine's own counters (NVML 0, RAPL 0)")
    assert sentences(told)[1].startswith("Energy: about 386 Wh more, estimated for `two`")


def test_what_a_resumed_stage_trained_before_counts_and_a_machine_that_is_unknown_has_no_energy() -> None:
    told = footprint_of([stage(seconds=1.0, metrics={"train_runtime": 7200.0}, hardware={})])
    assert told == {"hours": 2.0}
    assert sentences(told)[0] == "Energy: unknown."


def test_costs_are_those_of_the_hours_and_of_the_judges() -> None:
    judged = {"id": "feedback", "stage": "feedback", "seconds": 1800.0, "metrics": {"cost": 0.25}}
    told = footprint_of([stage(energy_joules=1.0), judged], Price(3.0, "EUR"))
    assert (told["cost"], told["judges_cost"]) == (3.0, 0.25)
    said = sentences(told)
    assert "Cost: 3.00 EUR, for 1.00 h at 3 EUR an hour." in said
    assert "Judges cost 0.25 in the currency of the prices in the recipe." in said
