"""Where text comes from and how it becomes batches: sources, tasks, tokenizers, encoding, packing."""
