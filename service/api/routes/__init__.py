"""The routes of /api/v1, one file for each kind of thing."""
