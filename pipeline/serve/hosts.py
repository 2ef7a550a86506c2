"""The host names that a server answers to.

A page elsewhere can have its own name lead to this machine (DNS rebinding), and would then read our answers as its own.
A browser says in `Host` which name it believes to speak with, so that a server for this machine alone answers to this
machine's names alone.
"""

import socket
from collections.abc import Collection, Sequence
from ipaddress import ip_address

from pipeline.errors import UsageError

UNREAD_BYTES = 1 << 17
"""Of answers that the system buffers for a slow visitor; by default it takes megabytes for each."""
LOCALHOST = "localhost"
ANY = "*"


def is_loopback(host: str) -> bool:
    """Whether `host`, a name or an address without port and brackets, is this machine for itself."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == LOCALHOST


def admits(named: Sequence[str], hosts: Collection[str]) -> bool:
    """Whether a request whose headers `Host` are `named` is for one of `hosts`, at any port. `localhost` among these
    stands for every name and address of the loopback interface, and `*` for any host, or none."""
    if ANY in hosts or len(named) != 1:
        return ANY in hosts
    host = _without_port(named[0]).rstrip(".").lower()
    return host in hosts or LOCALHOST in hosts and is_loopback(host)


def hosts_of(host: str, bound: str, allowed: Collection[str]) -> tuple[str, ...]:
    """What a server at the address `bound`, that of `host`, goes by: all names of this machine for itself, `host` and
    those `allowed`; any where it is reached from outside and none is `allowed`."""
    if not is_loopback(bound) and not allowed:
        return (ANY,)
    return (LOCALHOST, *(name.lower() for name in (host, *allowed)))


def in_address(host: str) -> str:
    """`host` as it stands in an address: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def _without_port(header: str) -> str:
    if header.startswith("["):
        host, closed, port = header[1:].partition("]")
        return host if closed and port[:1] in ("", ":") else ""
    return header.partition(":")[0]


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes a free one. Raises UsageError where that cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD_BYTES)
        return listener
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        place = f"{in_address(host)}:{port}"
        raise UsageError(f"cannot listen on {place} ({reason}); choose another --port or --host") from error
