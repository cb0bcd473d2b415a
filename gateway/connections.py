"""Who may hold a connection to the public socket, and which one is given up for a newcomer. Pure.

A connection that nobody asks anything on costs a file and memory, and a stranger opens thousands. Rules:
1. All addresses together hold `most`, one address `per_address`. An IPv6 address counts with its /64: whoever has one
   has them all.
2. The machine itself and the trusted proxies are bound by `most` alone: behind a proxy stands the whole team.
3. At a limit an idle connection is given up for the newcomer: of its own address when that one is full, of the address
   that holds the most when all are, of those in rule 2 last. First one that never asked anything, the longest open
   first, then one between two requests, the longest idle first.
4. A connection with a request under way is never given up. Where there is no other, the newcomer is refused.
5. A limit that was reached is told of once in NEWS_EVERY_S.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

NEWS_EVERY_S = 60.0
FILES_OF_OURS = 128
"""Files that are no connection: sockets, the ledger, the log, modules that are being read."""
FILES_EACH = 2
"""A request that runs holds a connection to the engine beside the client's."""
LEAST = 16


def most_with(files: int, asked: int) -> int:
    """Connections that fit into `files`, the process's limit of open files, and `asked` at most; LEAST at least."""
    return max(LEAST, min(asked, (files - FILES_OF_OURS) // FILES_EACH))


@dataclass(eq=False, slots=True)
class Connection:
    """One connection. `host`: the peer's address; `cut` ends it, behind what is still to be sent. `asking`: a request
    is under way."""

    host: str
    cut: Callable[[], None]
    asking: bool = False
    _home: _Address | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """What becomes of a newcomer. `given_up`: the one to cut for it; it is no longer in the table."""

    admitted: bool
    given_up: Connection | None = None


@dataclass(frozen=True, slots=True)
class News:
    """Since it was told last: connections refused and given up; `open` are those there are now."""

    refused: int
    given_up: int
    open: int


@dataclass(eq=False, slots=True)
class _Address:
    """What one address holds. Both orders: the first to go first."""

    key: str
    spared: bool
    count: int = 0
    new: dict[Connection, None] = field(default_factory=dict)
    rested: dict[Connection, None] = field(default_factory=dict)

    @property
    def idle(self) -> Connection | None:
        return next(iter(self.new), None) or next(iter(self.rested), None)


class Connections:
    """One table per process. `per_address` 0 = no limit of one address."""

    def __init__(self, most: int = 2048, per_address: int = 512, proxies: Iterable[str] = ()) -> None:
        self.most = most
        self.per_address = per_address
        self.open = 0
        self.refused = 0
        self.given_up = 0
        self._proxies = frozenset(proxies)
        self._addresses: dict[str, _Address] = {}
        self._told = (0, 0)
        self._told_s: float | None = None

    def enter(self, connection: Connection) -> Entry:
        """A connection was accepted."""
        key, spared = _place(connection.host, self._proxies)
        home = self._addresses.get(key) or _Address(key, spared)
        victim: Connection | None = None
        if not spared and 0 < self.per_address <= home.count:
            victim = home.idle
        elif self.open >= self.most:
            victim = self._idle_of_the_largest()
        else:
            self._keep(connection, home)
            return Entry(True)
        if victim is None:
            self.refused += 1
            return Entry(False)
        self.leave(victim)
        self.given_up += 1
        self._keep(connection, home)
        return Entry(True, victim)

    def asks(self, connection: Connection) -> None:
        """The head of a request has come."""
        connection.asking = True
        if (home := connection._home) is not None:
            home.new.pop(connection, None)
            home.rested.pop(connection, None)

    def rests(self, connection: Connection) -> None:
        """The answer is out."""
        connection.asking = False
        if (home := connection._home) is not None:
            home.rested[connection] = None

    def leave(self, connection: Connection) -> None:
        """It is closed; once or more often."""
        home, connection._home = connection._home, None
        if home is None:
            return
        home.new.pop(connection, None)
        home.rested.pop(connection, None)
        home.count -= 1
        self.open -= 1
        if not home.count:
            del self._addresses[home.key]

    def news(self, now_s: float) -> News | None:
        """What to tell, None = nothing, or not yet. `now_s`: seconds of one monotonic clock."""
        refused, given_up = self.refused - self._told[0], self.given_up - self._told[1]
        too_soon = self._told_s is not None and now_s - self._told_s < NEWS_EVERY_S
        if too_soon or not (refused or given_up):
            return None
        self._told, self._told_s = (self.refused, self.given_up), now_s
        return News(refused, given_up, self.open)

    def _keep(self, connection: Connection, home: _Address) -> None:
        self._addresses[home.key] = connection._home = home
        home.new[connection] = None
        home.count += 1
        self.open += 1

    def _idle_of_the_largest(self) -> Connection | None:
        """One look at each address, and only while the table is full."""
        holders = [address for address in self._addresses.values() if address.idle is not None]
        largest = max(holders, key=lambda address: (not address.spared, address.count), default=None)
        return largest.idle if largest is not None else None


@functools.lru_cache(maxsize=1024)
def _place(host: str, proxies: frozenset[str]) -> tuple[str, bool]:
    """What an address counts as, and whether rule 2 holds for it."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host, host in proxies
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            net = ipaddress.IPv6Network((int(address) >> 64 << 64, 64))
            spared = address.is_loopback or host in proxies
            return (str(address) if spared else str(net)), spared
        address = address.ipv4_mapped
    return str(address), address.is_loopback or host in proxies or str(address) in proxies
