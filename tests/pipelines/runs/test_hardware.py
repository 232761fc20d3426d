"""What a run ran on is told as plain data, and `auto` is resolved by what the machine has."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import psutil
import pytest
import torch

from pipelines.runs import hardware
from pipelines.runs.hardware import CORE, GPU_SHARE, PLAIN_CORE, WITHOUT_AMX, EnergyCounter, this_machine


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


@pytest.mark.parametrize(("faster", "expected"), [(True, "bf16"), (False, "no")])
def test_auto_on_a_cpu_is_what_it_is_faster_in(faster: bool, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(hardware, "faster_in_bf16", lambda: faster)
    assert hardware.precision("auto") == expected


@pytest.mark.parametrize(
    ("flags", "precision", "warned"),
    [
        ("avx2 fma", "bf16", "which this processor does not multiply itself"),
        ("avx512_bf16", "bf16", "but without AMX: a step took 1.3 to 1.6 times as long"),
        ("avx512_bf16 amx_bf16", "bf16", None),
        ("avx2 fma", "no", None),
    ],
)
def test_bf16_that_a_cpu_is_slower_in_is_warned_of(
    flags: str, precision: str, warned: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = hardware.doubts(precision, proc=machine(tmp_path, flags, vendor="GenuineIntel"))
    assert len(found) == (warned is not None)
    assert all(str(warned) in sentence for sentence in found)
    assert hardware.doubts(precision, proc=tmp_path / "elsewhere") == []  # where no flags are told


@pytest.mark.parametrize(("native", "expected"), [(True, "bf16"), (False, "no")])
def test_auto_on_a_gpu_does_not_count_emulated_bf16(
    native: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: True if including_emulation else native
    )
    assert hardware.precision("auto") == expected


def test_energy_is_what_the_counters_counted_between_even_where_one_began_anew(tmp_path: Path) -> None:
    for package, joules in enumerate((10, 95)):
        place = tmp_path / f"intel-rapl:{package}"
        place.mkdir()
        (place / "energy_uj").write_text(f"{joules * 10**6}\n")
        (place / "max_energy_range_uj").write_text(f"{100 * 10**6}\n")
    (tmp_path / "intel-rapl:2").mkdir()  # one that may not be read
    before = hardware.energy_counters(tmp_path)
    assert {"RAPL 0": (10, 100), "RAPL 1": (95, 100)}.items() <= before.items()
    now = before | {"RAPL 0": EnergyCounter(12, 100), "RAPL 1": EnergyCounter(5, 100)}
    assert hardware.energy_since(before, now) == 2 + 10
    assert hardware.energy_since({}, now) is None


def test_processors_are_not_counted_alone_where_gpus_train_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "intel-rapl:0").mkdir()
    for name in ("energy_uj", "max_energy_range_uj"):
        (tmp_path / "intel-rapl:0" / name).write_text("10000000\n")
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    assert list(hardware.energy_counters(tmp_path)) == ["RAPL 0"]
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert hardware.energy_counters(tmp_path) == {}


def machine(folder, flags="", gpus=(), vendor="AuthenticAMD"):
    first = f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: fpu {flags}\n"
    (folder / "cpuinfo").write_text(f"{first}\nprocessor\t: 1\nflags\t\t: fpu\n")
    for number, name in enumerate(gpus):
        place = folder / "driver" / "nvidia" / "gpus" / f"0000:0{number}:00.0"
        place.mkdir(parents=True)
        (place / "information").write_text(f"Model: \t\t {name}\nIRQ:   \t\t 17\n")
    return folder


@pytest.mark.parametrize(
    ("vendor", "flags", "precision", "rates"),
    [
        ("AuthenticAMD", "avx512f avx512_bf16", "bf16", CORE),
        ("GenuineIntel", "avx512f avx512_bf16", "no", {"no": CORE["no"], "bf16": CORE["no"] / WITHOUT_AMX}),
        ("GenuineIntel", "avx512f", "no", {"no": CORE["no"], "bf16": CORE["no"]}),
        ("AuthenticAMD", "avx2", "no", {"no": PLAIN_CORE, "bf16": PLAIN_CORE}),
    ],
)
def test_a_processor_by_its_maker_and_flags(tmp_path, vendor, flags, precision, rates):
    found = this_machine(machine(tmp_path, flags, vendor=vendor), visible="")
    assert (found.kind, found.precision, found.rates) == ("cpu", precision, rates)
    assert found.flops_per_second("no", 1) == found.flops_per_second("no", 4) == found.units * rates["no"]


def test_gpus_that_the_driver_lists_and_the_environment_leaves(tmp_path, monkeypatch):
    folder = machine(tmp_path, gpus=["NVIDIA H200", "NVIDIA H200"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    both = this_machine(folder)
    assert (both.name, both.kind, both.units, both.precision) == ("2 x NVIDIA H200", "gpu", 2, "bf16")
    assert both.flops_per_second("bf16", 2) == pytest.approx(2 * GPU_SHARE * 989e12)
    assert both.flops_per_second("bf16", 1) == pytest.approx(GPU_SHARE * 989e12)
    assert this_machine(folder, visible="1").units == 1
    assert this_machine(folder, visible="").kind == "cpu"
    assert this_machine(folder, visible="-1").kind == "cpu"


def test_longer_names_are_not_taken_for_shorter_ones(tmp_path):
    """An L40S is no L4, an A100 no A10."""
    expected = {"NVIDIA L40S": 362e12, "NVIDIA L4": 121e12, "NVIDIA A100-SXM4-80GB": 312e12, "NVIDIA A10G": 125e12}
    for number, (name, peak) in enumerate(expected.items()):
        (tmp_path / str(number)).mkdir()
        folder = machine(tmp_path / str(number), gpus=[name])
        assert this_machine(folder, visible="0").rates["bf16"] == pytest.approx(GPU_SHARE * peak), name


def test_an_old_gpu_has_no_bfloat16(tmp_path):
    assert this_machine(machine(tmp_path, gpus=["Tesla V100-SXM2-16GB"]), visible="0").precision == "no"


def test_a_machine_without_proc_is_a_plain_processor(tmp_path):
    assert this_machine(tmp_path / "nothing", visible="").rates["no"] == PLAIN_CORE
