"""The web pages: Jinja templates, HTMX and server-sent events over the store, readable without JavaScript."""
