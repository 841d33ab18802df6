"""The names by which requests may call the server, against DNS rebinding.

A page whose own name is made to lead to this machine asks as if it were of the server's origin, so that no
header tells another one. The name stays in its requests' Host header (RFC 9110, 7.2), which no page can set.
An address there, or a name that leads to this machine alone (localhost, RFC 6761, 6.3), is no page's name.
Starlette's TrustedHostMiddleware has patterns for names only, and errors of its own form.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

__all__ = ["Hosts", "host_name"]


class Hosts:
    """The names and addresses that are allowed; `names` are further ones, * is all. Immutable."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = frozenset(name if name == "*" else host_name(name) for name in names)

    def allow(self, header: str | None) -> bool:
        """Whether a request with this Host header may be answered. Browsers always send one."""
        if header is None or "*" in self._names:
            return True
        name = host_name(header)
        return bool(name) and (
            name in self._names or name == "localhost" or name.endswith(".localhost") or _is_address(name)
        )


def host_name(header: str) -> str:
    """The name or address of a Host header, in small letters; empty where it is none."""
    try:
        parts = urlsplit(f"//{header}")
        name, port = parts.hostname or "", parts.port
    except ValueError:
        return ""
    again = f"[{name}]" if ":" in name else name
    # Nothing but a name and a port: no user, path or query, and nothing behind a bracket.
    if header.lower() != (again if port is None else f"{again}:{port}"):
        return ""
    return name.removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
