"""The routes of the pages, one file for each kind of page."""
