"""The HTTP API: one application with /api/v1, the OpenAI surface under /v1, health and metrics."""
