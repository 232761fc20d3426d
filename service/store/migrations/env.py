"""What Alembic runs around a migration: it uses the connection, and the transaction, that `store` opened."""

from __future__ import annotations

from alembic import context

from service.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=connection.dialect.name == "sqlite")
context.run_migrations()
