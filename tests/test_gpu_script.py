"""`make test-gpu` as far as it goes without a GPU: its table, what it asks for, and how it judges what it finds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from pipelines.core.load import loads
from tests import gpu

ZERO = [f"{profile}: {what}" for profile in ("zero2", "zero3") for what in ("losses, shares, LoRA", "killed, goes on")]


class Bench(gpu.Bench):
    """A bench of four checks; the time is over behind the second."""

    def checks(self) -> Iterator[gpu.Check]:
        def wrong() -> None:
            self.ends = 0.0
            raise KeyError("loss")

        yield gpu.Check("good", 1, lambda: None)
        yield gpu.Check("elsewhere", 2, lambda: None, "needs 2 GPUs")
        yield gpu.Check("broken", 1, wrong)
        yield gpu.Check("late", 1, lambda: None)


def test_every_check_has_a_row_and_one_without_time_did_not_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()
    assert gpu.report(Bench(tmp_path / "runs", 1, True)) == 1
    *rows, counts, place = capsys.readouterr().out.split("\n")[1:-1]
    assert [(row.split()[0], row.partition(".")[2][3:]) for row in rows if row] == [
        ("good", "passed"),
        ("elsewhere", "not run: needs 2 GPUs"),
        ("broken", "FAILED: KeyError('loss')"),
        ("late", "skipped: time"),
    ]
    assert counts == "1 passed, 1 FAILED, 1 skipped: time, 1 not run"
    assert place == f"The runs lie in {tmp_path / 'runs'}"
    late = Bench(tmp_path / "runs", 1, True, seconds=-1)
    assert gpu.report(late) == 1, "nothing failed, and nothing was shown either"
    assert not (tmp_path / "runs").exists()


def test_deepspeed_is_asked_for_both_stages_of_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, list[str]]] = []

    def run(name: str, recipe: str, words: list[str]) -> Path:
        asked.append((name, words))
        loads(recipe, overrides=words)
        (tmp_path / name / "runs" / "encoder").mkdir(parents=True, exist_ok=True)
        return tmp_path / name / "runs" / "encoder"

    monkeypatch.setattr(gpu, "find_spec", lambda name: object())
    bench = gpu.Bench(tmp_path, 2, on_cpu=False)
    monkeypatch.setattr(bench, "run", run)
    checks = {check.what: check for check in bench.checks()}
    assert [what for what in checks if what.startswith("zero")] == ZERO
    assert not any(checks[what].lacking for what in ZERO)
    for what in (ZERO[0], ZERO[2]):
        with pytest.raises(gpu.Failure, match="does not say what each process holds"):
            checks[what].do()
    assert [name for name, _ in asked] == ["zero-ddp", "zero2", "zero3"]
    assert [words[-1] for _, words in asked] == ["launch.profile=ddp", "launch.profile=zero2", "launch.profile=zero3"]


@pytest.mark.parametrize(
    ("profile", "local", "wrong"),
    [("zero3", 52, ""), ("zero3", 100, "rank 0 holds 100%"), ("zero2", 100, ""), ("zero2", 50, "rank 0 holds 50%")],
)
def test_shares_of_the_weights_are_those_of_the_profile(profile: str, local: int, wrong: str, tmp_path: Path) -> None:
    ranks = [{"rank": rank, "local": local, "global": 100} for rank in (0, 1)]
    event = {"id": 1, "event": "distributed", "stage": "pretrain", "ranks": ranks}
    (tmp_path / "events.jsonl").write_text(json.dumps(event) + "\n")
    with pytest.raises(gpu.Failure, match=wrong) if wrong else nullcontext():
        gpu.check_shares(tmp_path, profile, 2)


def test_each_process_keeps_its_part_of_the_optimizer_s_state(tmp_path: Path) -> None:
    """In the shape of DeepSpeed's files, made by hand."""
    folder = tmp_path / "stages/x.partial/checkpoints/checkpoint-50/global_step50"
    with pytest.raises(gpu.Failure, match="left no state"):
        gpu.check_optimizer(tmp_path, 1000, 2)
    folder.mkdir(parents=True)

    def keep(rank: int, numbers: int) -> None:
        master, moments = torch.zeros(numbers), {name: torch.zeros(numbers) for name in ("exp_avg", "exp_avg_sq")}
        state = {"fp32_flat_groups": [master], "optimizer_state_dict": {"state": {0: moments}}, "again": master}
        torch.save({"optimizer_state_dict": state}, folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")

    keep(0, 502)
    with pytest.raises(gpu.Failure, match="1 processes kept"):
        gpu.check_optimizer(tmp_path, 1000, 2)
    keep(1, 502)
    gpu.check_optimizer(tmp_path, 1000, 2)
    keep(1, 1000)
    with pytest.raises(gpu.Failure, match=r"rank_1_.* holds 100% of the optimizer's state"):
        gpu.check_optimizer(tmp_path, 1000, 2)
