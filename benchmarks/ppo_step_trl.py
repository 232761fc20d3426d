"""The peer of `ppo_step.py`: PPO of TRL 1.12.0, the last release that had it, in an environment of its own.

Started by `ppo_step.py` with that environment's Python; writes the clocks of every iteration as JSON. Nothing of Finery is imported.

    python benchmarks/ppo_step_trl.py FOLDER SETTINGS
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"


def main() -> None:
    """Train for the asked number of iterations and write `trl.json`."""
    import torch
    import transformers
    import trl
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, TrainerCallback
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    folder, asked = Path(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(asked["threads"])
    tokenizer = AutoTokenizer.from_pretrained(folder / "policy", padding_side="left")
    texts = (folder / "prompts.txt").read_text().splitlines()
    rows = Dataset.from_dict({"input_ids": [tokenizer(text)["input_ids"][: asked["prompt"]] for text in texts]})
    clocks: list[tuple[float, float]] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            clocks.append((time.perf_counter(), time.process_time()))

    policy, reference = (AutoModelForCausalLM.from_pretrained(folder / "policy", dtype="float32") for _ in range(2))
    reward, value = (
        AutoModelForSequenceClassification.from_pretrained(folder / "reward", dtype="float32") for _ in range(2)
    )
    arguments = PPOConfig(
        output_dir=str(folder / "trl"),
        total_episodes=asked["steps"] * asked["batch"],
        per_device_train_batch_size=asked["batch"],
        gradient_accumulation_steps=1,
        num_ppo_epochs=asked["epochs"],
        num_mini_batches=1,
        response_length=asked["response"],
        temperature=1.0,
        learning_rate=asked["rate"],
        kl_coef=0.05,
        local_rollout_forward_batch_size=asked["batch"],
        num_sample_generations=0,
        bf16=False,
        use_cpu=not torch.cuda.is_available(),
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        stop_token="eos",
        gradient_checkpointing=False,
    )
    trainer = PPOTrainer(
        args=arguments,
        processing_class=tokenizer,
        model=policy,
        ref_model=reference,
        reward_model=reward,
        value_model=value,
        train_dataset=rows,
        eval_dataset=rows.select(range(asked["batch"])),
        callbacks=[Clock()],
    )
    trainer.train()
    peak = next(
        int(line.split()[1]) * 1024
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    )
    versions = f"trl {trl.__version__}, transformers {transformers.__version__}, torch {torch.__version__}"
    (folder / "trl.json").write_text(json.dumps({"clocks": clocks, "peak": peak, "versions": versions}))


if __name__ == "__main__":
    main()
