"""What a run ran on is told as plain data, and `auto` is resolved by what the machine has."""

from __future__ import annotations

import json
import os

import psutil
import pytest
import torch

from pipelines.runs import hardware


def test_the_description_is_plain_data_about_this_machine() -> None:
    found = hardware.describe()
    assert json.loads(json.dumps(found)) == found
    assert found["memory_bytes"] == psutil.virtual_memory().total
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert len(found["gpus"]) == torch.cuda.device_count()
    assert found["processor"]


@pytest.mark.parametrize(("gpus", "expected"), [(0, 1), (1, 1), (4, 4)])
def test_auto_is_one_process_for_each_gpu_and_one_on_a_cpu(
    gpus: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert hardware.processes("auto") == expected
    assert hardware.processes(3) == 3


@pytest.mark.parametrize("asked", ["no", "bf16", "fp16"])
def test_a_precision_that_was_asked_for_is_taken(asked: str) -> None:
    assert hardware.precision(asked) == asked


@pytest.mark.parametrize(
    ("flags", "expected"),
    [({"avx2"}, "no"), ({"avx512_bf16"}, "bf16"), ({"amx_bf16", "avx2"}, "bf16"), ({"avx512f"}, "no"), (set(), "no")],
)
def test_auto_is_bf16_only_where_a_cpu_multiplies_it(
    flags: set[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(hardware, "processor_flags", lambda: flags)
    assert hardware.precision("auto") == expected


@pytest.mark.parametrize(("native", "expected"), [(True, "bf16"), (False, "no")])
def test_auto_on_a_gpu_does_not_count_emulated_bf16(
    native: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: True if including_emulation else native
    )
    assert hardware.precision("auto") == expected


def test_energy_never_goes_back() -> None:
    before, after = hardware.energy_joules(), hardware.energy_joules()
    assert (before is None) == (after is None)
    if before is not None and after is not None:
        assert after >= before >= 0
