"""The host names that a server answers to.

A page elsewhere can have its own name lead to this machine (DNS rebinding), and would then read our answers as its own.
A browser says in `Host` which name it believes to speak with, so that a server for this machine alone answers to this
machine's names alone.
"""

from collections.abc import Collection, Sequence
from ipaddress import ip_address

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
