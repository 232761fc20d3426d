"""The schema's history, step by step, for Alembic. It lies in the package, so that an installed server can migrate."""
