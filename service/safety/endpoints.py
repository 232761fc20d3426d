"""Addresses and keys of judges in recipes that come over the network: public hosts only, unless the server's administrator says otherwise.

What a name resolves to is looked up by the job itself when it asks (`pipelines.outgoing`): here only what stands in the recipe is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from pipelines.blocks import Found, Place, show
from pipelines.outgoing import is_literal, is_public, may_be_private, plain_host
from pipelines.secrets import matches
from service.safety.references import key_of, strings
from service.safety.secret_store import Secret

KEY = "base_url"
"""The key of a recipe that holds the address of an endpoint."""
KEY_NAME = "api_key_env"
"""The key that holds the name of the secret that is sent there."""
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


def unfit_keys(data: Any, named: Collection[str], secret_of: Callable[[str], Secret | None]) -> Iterable[Found]:
    """What is wrong with the keys that judges are sent: secrets that the job does not name, or that were kept for other hosts."""
    for place, text in strings(data):
        if key_of(place) == KEY_NAME and text not in named:
            yield place, f"is {show(text)}, which the job does not name under 'secrets'; submit it with \"secrets\": [\"{text}\"], or `finery submit --secret {text}`"
    for place, url, name in _judges(data):
        secret = secret_of(name) if name in named else None
        if secret is not None and secret.hosts is not None and not matches(secret.hosts, url):
            yield (*place, KEY), f"is {show(url)}, where the secret {name} may not be sent; it was kept for {', '.join(secret.hosts) or 'no host'}"


def _judges(value: Any, place: Place = ()) -> Iterable[tuple[Place, str, str]]:
    """Place, address and name of the key of every block that has both."""
    if isinstance(value, Mapping):
        url, name = value.get(KEY), value.get(KEY_NAME)
        if isinstance(url, str) and isinstance(name, str):
            yield place, url, name
        for key, entry in value.items():
            yield from _judges(entry, (*place, str(key)))
    elif isinstance(value, list | tuple):
        for position, entry in enumerate(value):
            yield from _judges(entry, (*place, position))
