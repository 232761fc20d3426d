"""Addresses of judges in recipes that come over the network: public ones only, unless the server's administrator says otherwise.

What a name resolves to is looked up by the job itself when it asks (`pipelines.outgoing`): here only what stands in the recipe is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from pipelines.blocks import Found, show
from pipelines.outgoing import is_literal, is_public, may_be_private, plain_host
from service.safety.references import key_of, strings

KEY = "base_url"
"""The key of a recipe that holds the address of an endpoint."""
INSIDE = (".localhost", ".local", ".internal", ".lan", ".home", ".intranet", ".corp")
"""How names end that no public server has."""


def unfit_endpoints(data: Any, private: bool = False) -> Iterable[Found]:
    """What is wrong with the addresses of endpoints in plain data, with their places."""
    for place, text in strings(data):
        if key_of(place) == KEY and (problem := unfit_endpoint(text, private)) is not None:
            yield place, problem


def unfit_endpoint(url: str, private: bool = False) -> str | None:
    """Why a job may not ask there; None if it may. `private` allows networks that the server stands in."""
    try:
        parts = urlsplit(url)
        host = plain_host(parts.hostname or "")
        _ = parts.port
    except ValueError:
        host = ""
    if not host or parts.scheme not in ("http", "https"):
        return f"is {show(url)}, must be an address such as https://api.example.com/v1"
    if private:
        refused = is_literal(host) and not may_be_private(host)
    elif is_literal(host):
        refused = not is_public(host)
    else:
        refused = "." not in host or host.endswith(INSIDE)
    if refused:
        return f"is {show(url)}, which lies in a private network or is no usual way to write an address; name a public one, or ask the server's administrator"
    return None
