"""What the jobs run while the service is tormented. NAME is the job's, INDEX its number."""

TINY = """\
name: NAME
model: {architecture: {preset: bert-tiny}}
tokenizer: {train: wordpiece, vocab_size: 600}
stages:
  - {stage: pretrain, objective: masked_lm, datasets: [{path: builtin/python-docs}], block_size: 32, arguments: {max_steps: 60}}
  - {stage: publish, to: model-NAME}
"""
"""For the stand-in: 60 steps, a model to publish."""

REAL = """\
name: NAME
seed: INDEX
model:
  architecture: {preset: bert-tiny, hidden_size: 32, intermediate_size: 64, max_position_embeddings: 64}
tokenizer: {train: wordpiece, vocab_size: 600}
launch: {num_processes: 2}
stages:
  - stage: pretrain
    objective: masked_lm
    datasets: [{path: builtin/python-docs}]
    block_size: 32
    max_train_samples: 200
    arguments: {max_steps: 300, global_batch_size: 8, learning_rate: 1e-3, logging_steps: 2, save_steps: 5}
  - {stage: publish, to: model-NAME}
"""
"""For the real pipelines, on two processes."""

ALONE = REAL.replace("num_processes: 2", "num_processes: 1").replace("max_steps: 300", "max_steps: 150")
"""The same on one process, which starts in half the time, and half as long."""
