"""Where a publication goes: a folder, a URL, the Hub."""
