"""The life of an attempt: prepare its folder, start it, take in what it writes, stop it, prove its end, publish."""
