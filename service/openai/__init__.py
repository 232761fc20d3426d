"""The OpenAI fine-tuning surface under /v1: files, fine_tuning/jobs and models, for the unmodified `openai` client."""
