"""What a publication took: energy, measured where the machine counts it and estimated elsewhere, and money.

A stage's record says how long making it took, on which hardware, and what the counters of processors (RAPL) and GPUs
(NVML) counted meanwhile. Where nothing counted, energy is estimated as hours x watts, by the formula and the constants
of Lannelongue, Grealey and Inouye 2021, "Green Algorithms: Quantifying the Carbon Footprint of Computation",
doi.org/10.1002/advs.202100707: cores x 12 W + memory x 0.3725 W/GB + the board power of each GPU, all fully used, and
nothing for cooling (a PUE of 1). Grams of CO2 depend on where the power comes from, which nobody knows here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.core.files import JSONObject

CORE_WATTS, MEMORY_WATTS = 12.0, 0.3725
"""Of a core, and of a gigabyte (10^9 bytes) of memory."""
GPU_WATTS = {
    "B200": 1000, "H200": 700, "H100": 700, "A100": 400, "L40S": 350, "L40": 300, "L4": 72, "A10": 150, "A40": 300,
    "A6000": 300, "V100": 300, "T4": 70, "RTX 4090": 450, "RTX 3090": 350,
}  # fmt: skip
"""Board power by NVIDIA's data sheets, of the SXM or the largest form, by what a GPU's name contains."""
UNKNOWN_GPU_WATTS = 300
"""Assumed for a GPU that is not in the table."""
FORMULA = (
    f"hours x ({CORE_WATTS:g} W a core + {MEMORY_WATTS:g} W a GB of memory + the board power of each GPU), all fully "
    "used, cooling not counted (Lannelongue et al. 2021, doi.org/10.1002/advs.202100707)"
)


@dataclass(frozen=True)
class Price:
    """What an hour of the machine costs."""

    per_hour: float
    currency: str


def footprint_of(stages: Sequence[JSONObject], price: Price | None = None) -> JSONObject:
    """Of the stages of a manifest: hours, watt-hours measured and estimated, and costs, as plain data.

    `stages` have `seconds`, `hardware`, `energy_joules`, `energy_counters` and `metrics` as far as they are known;
    one without `seconds` counts as taking none. Costs are those of the hours, and those of judges that were paid.
    """
    hours = measured = estimated = 0.0
    counters: set[str] = set()
    guessed: list[str] = []
    for stage in stages:
        seconds = _seconds(stage)
        hours += seconds / 3600
        if isinstance(stage.get("energy_joules"), int | float):
            measured += stage["energy_joules"] / 3600
            counters |= set(stage.get("energy_counters") or ())
        elif seconds and (watts := watts_of(stage.get("hardware") or {})):
            estimated += seconds / 3600 * watts
            guessed.append(str(stage["id"]))
    told: dict[str, Any] = {"hours": hours}
    if counters or measured:
        told |= {"measured_wh": measured, "counters": sorted(counters)}
    if guessed:
        told |= {"estimated_wh": estimated, "estimated_stages": guessed, "formula": FORMULA}
    if price is not None:
        told |= {"cost": hours * price.per_hour, "price_per_hour": price.per_hour, "currency": price.currency}
    judges = sum(
        float((stage.get("metrics") or {}).get("cost") or 0) for stage in stages if stage["stage"] == "feedback"
    )
    return told | ({"judges_cost": judges} if judges else {})


def _seconds(stage: JSONObject) -> float:
    """How long a stage took; of one that was resumed, what it trained before counts too."""
    runtime = (stage.get("metrics") or {}).get("train_runtime")
    known = [each for each in (stage.get("seconds"), runtime) if isinstance(each, int | float)]
    return max(known, default=0.0)


def watts_of(hardware: Mapping[str, Any]) -> float:
    """The power that the formula gives a machine, as a manifest describes it; 0 where it says nothing of itself."""
    gpus = sum(
        next((watts for name, watts in GPU_WATTS.items() if name in str(gpu.get("name"))), UNKNOWN_GPU_WATTS)
        for gpu in hardware.get("gpus") or ()
    )
    memory = float(hardware.get("memory_bytes") or 0) / 1e9
    host = CORE_WATTS * float(hardware.get("cores") or 0) + MEMORY_WATTS * memory + gpus
    return host * int(hardware.get("hosts") or 1)


def sentences(footprint: JSONObject) -> list[str]:
    """The same for a card."""
    said = []
    if "measured_wh" in footprint:
        said.append(
            f"Energy: {_wh(footprint['measured_wh'])}, measured by the machine's own counters "
            f"({', '.join(footprint['counters'])}), which count whatever runs on it meanwhile."
        )
    if "estimated_wh" in footprint:
        beside = " more" if "measured_wh" in footprint else ""
        said.append(
            f"Energy: about {_wh(footprint['estimated_wh'])}{beside}, estimated for "
            f"{', '.join(f'`{each}`' for each in footprint['estimated_stages'])} as {footprint['formula']}."
        )
    if not said:
        said.append("Energy: unknown.")
    if "cost" in footprint:
        said.append(
            f"Cost: {_amount(footprint['cost'], footprint['currency'])}, for {_time(footprint['hours'])} at "
            f"{footprint['price_per_hour']:g} {footprint['currency']} an hour."
        )
    if "judges_cost" in footprint:
        said.append(f"Judges cost {footprint['judges_cost']:.4g} in the currency of the prices in the recipe.")
    if "cost" not in footprint and footprint["hours"]:
        said.append(f"Cost: the stages took {_time(footprint['hours'])}; no price of an hour was given.")
    return said


def _wh(watt_hours: float) -> str:
    return f"{watt_hours / 1000:,.3g} kWh" if watt_hours >= 1000 else f"{watt_hours:.3g} Wh"


def _time(hours: float) -> str:
    return f"{hours:,.2f} h" if hours >= 1 else f"{hours * 60:.2g} min" if hours >= 1 / 60 else f"{hours * 3600:.2g} s"


def _amount(amount: float, currency: str) -> str:
    return f"{amount:,.2f} {currency}" if amount >= 0.01 else f"{amount:.1g} {currency}"
