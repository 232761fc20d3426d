import json
import os
from importlib.metadata import version

import pytest

from service.cli import doctor
from service.cli.__main__ import main
from service.cli.child import ChildAnswer
from service.cli.doctor import Finding, fits, merged


def test_a_machine_that_runs_the_tests_is_healthy(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert f"torch {version('torch')}" in out
    assert "Everything that is needed is here" in out


def test_json_names_every_package_with_its_version(capsys):
    assert main(["doctor", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    found = {finding["what"]: finding["found"] for finding in answer["findings"]}
    assert answer["healthy"] is True
    assert found["transformers"] == version("transformers")
    assert found["CPU"].startswith(str(len(os.sched_getaffinity(0))))


def test_a_missing_package_is_essential(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "requirements", lambda: {"no-such-package-here": ">=1"})
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "pip install 'no-such-package-here>=1'" in out
    assert "Something essential is missing" in out


def test_another_version_than_asked_for_is_noted_on_a_line_of_its_own(monkeypatch):
    monkeypatch.setattr(doctor, "requirements", lambda: {"rich": "<1", "typer": ">=0.1"})
    found = doctor.packages()
    assert [(each.what, each.verdict) for each in found] == [("rich", "note"), ("typer", "good")]
    assert [each.what for each in merged(found)] == ["rich", "Packages"]


@pytest.mark.parametrize(
    ("installed", "allowed", "ok"),
    [
        ("2.13.0+cpu", "==2.13.0", True),
        ("2.13", "==2.13.0", True),
        ("2.14.0", "==2.13.*", False),
        ("2.13.4", "==2.13.*", True),
        ("5.23.0", ">=5.23,<6", True),
        ("6.0", ">=5.23,<6", False),
        ("5.9", ">=5.23,<6", False),
        ("5.22.9", ">=5.23", False),
        ("1.4.2", "~=1.4", True),
        ("2.0", "~=1.4", False),
        ("1.5", "~=1.4.2", False),
        ("1.0", "!=1.0", False),
        ("1.0", "", True),
    ],
)
def test_version_ranges(installed, allowed, ok):
    packaging = pytest.importorskip("packaging.specifiers")
    assert packaging.SpecifierSet(allowed).contains(installed) == ok  # the reference agrees with the expectation
    assert fits(installed, allowed) == ok


def test_the_token_is_never_shown(monkeypatch, capsys):
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    for arguments in (["doctor"], ["doctor", "--json"]):
        main(arguments)
        out = capsys.readouterr().out
        assert "HF_TOKEN" in out
        assert "secret" not in out


def test_data_folders_are_looked_into(tmp_path):
    (tmp_path / "glue").mkdir()
    found = doctor.data_folders({"FINERY_DATA": f"{tmp_path}{os.pathsep}{tmp_path}/missing"})
    assert [(each.found, each.verdict) for each in found] == [
        (f"{tmp_path}: glue", "good"),
        (f"{tmp_path}/missing", "note"),
    ]


def test_the_home_is_the_one_that_runs_use(monkeypatch):
    from pipelines.core.files import home

    for environment in ({"FINERY_HOME": "/x/y"}, {"FINERY_HOME": "~/f"}, {"XDG_CACHE_HOME": "/cache"}, {}):
        for name in ("FINERY_HOME", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert doctor.finery_home(environment) == home()


def test_a_folder_that_may_not_be_written_is_essential(monkeypatch):
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)
    assert doctor.disks()[0].verdict == "lacks"
    assert "FINERY_HOME" in doctor.disks()[0].remedy


def test_a_hub_that_does_not_answer_is_noted_and_not_essential(monkeypatch):
    found = doctor.hub({"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert (found.what, found.verdict) == ("Hub", "note")
    assert doctor.hub({"HF_ENDPOINT": "file:///etc/passwd"}).verdict == "note"
    assert doctor.hub({"HF_HUB_OFFLINE": "1"}) == Finding("Hub", "not asked: HF_HUB_OFFLINE is set")


def test_a_hub_that_answers_is_good():
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with HTTPServer(("127.0.0.1", 0), Hub) as server:
        Thread(target=server.handle_request, daemon=True).start()
        assert doctor.hub({"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}).verdict == "good"


@pytest.fixture
def compiler(monkeypatch):
    monkeypatch.setenv("CC", "cc")


@pytest.mark.usefixtures("compiler")
def test_gpus_are_found_through_their_driver(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771 MiB, 570.1'\necho 'NVIDIA H200, 143771 MiB, 570.1'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin:/bin")
    assert [each.found for each in doctor.gpus()] == ["NVIDIA H200, 143771 MiB, 570.1"] * 2
    program.write_text("#!/bin/sh\nexit 9\n")
    assert doctor.gpus()[0].verdict == "note"


def test_a_gpu_whose_kernels_cannot_be_built_is_noted(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771 MiB, 570.1'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(doctor, "_ask", lambda program, *words: "" if "compute_cap" in words[0] else "NVIDIA H200")
    assert [(each.what, each.verdict) for each in doctor.gpus()] == [("GPU", "good"), ("GPU kernels", "note")]
    monkeypatch.setenv("CC", "clang-19")
    assert [each.what for each in doctor.gpus()] == ["GPU"]


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("answer", "verdicts"), [("7.5\n9.0", ["note", "good"]), ("", ["good", "good"])])
def test_gpus_without_attention_over_sequences_are_noted(monkeypatch, tmp_path, answer, verdicts):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\ncase $1 in *compute_cap) echo '{answer}';; *) echo 'Tesla T4, 15360 MiB, 570.1'; echo 'H100';; esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin:/bin")
    found = doctor.gpus()
    assert [each.verdict for each in found] == verdicts
    assert all(("compute capability is below 8.0" in each.remedy) == (each.verdict == "note") for each in found)


def test_gpus_whose_energy_is_not_counted_are_noted_with_the_package(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert doctor.gpu_energy() == []
    (tmp_path / "nvidia-smi").touch(mode=0o755)
    assert doctor.gpu_energy()[0].remedy.endswith("to have it measured: pip install nvidia-ml-py")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert doctor.gpu_energy() == []


@pytest.mark.parametrize(
    ("flags", "faster", "found"),
    [
        ("fpu amx_bf16 sse", True, "native (amx_bf16): mixed_precision auto can"),
        ("fpu avx512_bf16", False, "native (avx512_bf16), but slower than fp32"),
        ("fpu sse", False, "not native"),
    ],
)
def test_cpu_precision_is_read_from_the_flags(monkeypatch, flags, faster, found):
    monkeypatch.setattr(doctor, "faster_in_bf16", lambda: faster)
    monkeypatch.setattr(doctor, "_cpu_info", lambda: f"processor : 0\nmodel name : Some CPU\nflags\t\t: {flags}\n")
    assert doctor.cpu_precision().found.startswith(found)
    assert doctor.cores().found.endswith(", Some CPU")


def test_a_container_limit_is_what_counts(monkeypatch):
    monkeypatch.setattr(doctor, "_machine_memory", lambda: 64e9)
    monkeypatch.setattr(doctor, "_container_limit", lambda: 2e9)
    assert (doctor.memory().found, doctor.memory().verdict) == ("2.0 GB (limit of the container)", "note")
    monkeypatch.setattr(doctor, "_container_limit", lambda: None)
    assert doctor.memory() == Finding("Memory", "64.0 GB")


def test_slurm_is_told_as_it_is_found(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.slurm() == Finding("Slurm", "not installed: only `finery serve --executor slurm` needs it")
    for name, text in (("sbatch", "exit 1"), ("sinfo", "exit 1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    assert doctor.slurm().found == "installed, but it finds no configuration"
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho slurm-wlm 22.05.8\n")
    assert doctor.slurm().found == "slurm-wlm 22.05.8, but its controller does not answer"
    (tmp_path / "sinfo").write_text("#!/bin/sh\necho 'main* (2 nodes)'\n")
    assert doctor.slurm() == Finding("Slurm", "slurm-wlm 22.05.8, partitions main* (2 nodes)")


def test_what_the_ranks_measured_stands_among_the_findings(monkeypatch, capsys):
    asked = []

    def ask(verb, request, doing, quiet):
        asked.append((verb, request))
        found = {"what": "Bandwidth", "found": "1 GB/s", "verdict": "good", "remedy": ""}
        return ChildAnswer(0, {"findings": [found], "measurement": {"hosts": 1}})

    monkeypatch.setattr(doctor, "ask", ask)
    assert main(["doctor", "--hosts", "--processes", "4", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["findings"][-1]["found"] == "1 GB/s"
    assert answer["measurement"] == {"hosts": 1}
    assert asked == [("network", {"processes": 4})]
    monkeypatch.setattr(doctor, "ask", lambda *_: ChildAnswer(1, error="host 1 did not come"))
    assert main(["doctor", "--hosts"]) == 1
    assert "host 1 did not come" in capsys.readouterr().out
    assert main(["doctor", "--processes", "4"]) == 2
    assert "--processes says how many ranks --hosts measures" in capsys.readouterr().err


def test_what_writes_served_texts_is_named_and_what_it_lacks(monkeypatch):
    import importlib.util

    here = importlib.util.find_spec
    lacking = {"llguidance", "vllm"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in lacking else here(name))
    told = doctor.serving().found
    assert told.startswith("continuous batching of transformers")
    assert told.endswith("no answers held to JSON or a schema: pip install 'finery[structured]'")
    lacking.clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: here("json") if name == "vllm" else here(name))
    assert doctor.serving().found.startswith("vLLM for whole decoders")
