"""The truth about jobs: tables, migrations and every short transaction on SQLite or PostgreSQL."""
