"""The configuration of HAProxy in front of several boxes: each seat has its box, whose prefix cache knows it. Pure.

Rules:
- What is hashed is a digest of the seat key, so no key is in a variable, a log line or a table.
- A box serves when /ready is 200, which is the gateway's own word: it is 503 while the engine is not READY, while the
  box is drained and while it stops. With no box that serves, requests go to one all the same: its refusal says why and
  until when, and HAProxy's could not.
- A request goes to another box only if no connection came about: what was sent may run, and is never sent twice.
- A server's `id` is made of its address: consistent hashing places servers by it, so the order of the boxes does not
  matter, and one more or one fewer moves its own share of the seats alone.
Source: HAProxy 2.6's configuration manual; docs/tls.md for what the options are worth.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from urllib.parse import urlsplit

from appliance.addresses import origin
from gateway.keys import SEAT_PREFIX
from gateway.settings import AdmissionSettings

SILENCE_S = ceil(AdmissionSettings().queue_deadline_s + AdmissionSettings().max_stream_s) + 20
"""Longest silence of an answer that is whole before it is sent, seconds: in line, at work, and a little."""
OWN_PAGES = ("/admin", "/seat", "/metrics")
"""Beginnings of what one box says of itself: nobody else can answer it."""
_UNFIT = re.compile(r"[\s\"'\\#$\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class BoxAddress:
    """Where a box is. `host` without brackets."""

    host: str
    port: int
    tls: bool

    @property
    def name(self) -> str:
        """HOST:PORT, as HAProxy's log and its socket show the box."""
        return f"{self.host}:{self.port}"

    @property
    def place(self) -> str:
        """HOST:PORT to connect to, IPv6 in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else self.name

    @property
    def id(self) -> int:
        """1 to 2^31 - 1, the same wherever the box stands in the list."""
        return zlib.crc32(self.name.encode()) % (2**31 - 1) + 1


def box_address(url: str) -> BoxAddress:
    """A box by its URL, port 80 or 443 when it names none. Raises ValueError.

    https needs a name: HAProxy 2.6 looks for no addresses in certificates.
    """
    parts = urlsplit(origin(url))
    if not parts.hostname or re.fullmatch(r"[A-Za-z0-9_.:-]+", parts.hostname) is None:
        raise ValueError("must be http:// or https:// and a host, for instance http://10.0.0.1:8000")
    tls = parts.scheme == "https"
    if tls and (":" in parts.hostname or re.fullmatch(r"[0-9.]+", parts.hostname)):
        raise ValueError("must name its host behind https://, as its certificate does")
    return BoxAddress(parts.hostname, parts.port or (443 if tls else 80), tls)


def fit_path(text: str) -> str:
    """A path that HAProxy reads as it stands. Raises ValueError."""
    if not text.startswith("/") or _UNFIT.search(text):
        raise ValueError("must begin with / and hold no blanks, quotes, \\, # and $")
    return text


def configuration(boxes: Sequence[BoxAddress], *, listen: str, certificate: str = "") -> str:
    """The whole of haproxy.cfg. `listen` is HOST:PORT; `certificate`: the .pem with chain and key, "" = no TLS. Raises
    ValueError when a box is named twice."""
    names = [box.name for box in boxes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or len({box.id for box in boxes}) < len(boxes):
        raise ValueError(f"{', '.join(twice) or names[0]} is named twice")
    tls = f" ssl crt {fit_path(certificate)} alpn http/1.1" if certificate else ""
    return _TEXT.format(
        bind=f"{listen}{tls}",
        scheme="https" if certificate else "http",
        own=" ".join(OWN_PAGES),
        prefix=SEAT_PREFIX,
        silence_s=SILENCE_S,
        unsure=_problem("bad_gateway", "The box ended before it answered. It may have begun the request."),
        nobody=_problem("no_box", "No box can be reached. Retry in 20 s."),
        late=_problem("gateway_timeout", "The box did not answer in time."),
        checked="\n".join(_server(box, " check") for box in boxes),
        unchecked="\n".join(_server(box, "") for box in boxes),
    )


def for_each_box(scheme: str) -> str:
    """What appliance.toml of every box must say behind it."""
    return (
        'listen = "ADDRESS:PORT"        # where the balancer reaches this box, and nobody else\n'
        f'public_url = "{scheme}://NAME"   # what developers type: the balancer\n'
        'trusted_proxies = ["ADDRESS"]  # the balancer, as this box sees it\n'
    )


def _server(box: BoxAddress, check: str) -> str:
    line = f"    server {box.name} {box.place} id {box.id}{check}"
    if not box.tls:
        return line
    line += f" ssl verify required ca-file @system-ca sni str({box.host}) verifyhost {box.host} alpn http/1.1"
    return f"{line} check-sni {box.host} check-alpn http/1.1" if check else line


def _problem(code: str, message: str) -> str:
    """One line of JSON that clients of each dialect read as an error; single quotes go around it."""
    error = f'"type":"overloaded_error","code":"{code}","message":"{message}"'
    return f'{{"type":"error","error":{{{error}}}}}'


_TEXT = """\
# Made by `moe-appliance scale haproxy`; docs/scale.md says what each line is for. Check: haproxy -c -f FILE

global
    log stdout format raw daemon
    user haproxy
    group haproxy
    chroot /var/lib/haproxy
    stats socket /run/haproxy/admin.sock mode 600 level admin
    ssl-default-bind-options ssl-min-ver TLSv1.2

defaults
    mode http
    log global
    option httplog
    option http-no-delay
    option abortonclose
    option http-server-close
    option redispatch 1
    option clitcpka
    clitcpka-idle 15s
    clitcpka-intvl 5s
    clitcpka-cnt 3
    option srvtcpka
    srvtcpka-idle 15s
    srvtcpka-intvl 5s
    srvtcpka-cnt 3
    retries 3
    retry-on conn-failure
    timeout connect 3s
    timeout check 3s
    timeout http-request 10s
    timeout http-keep-alive 75s
    timeout client {silence_s}s
    timeout server {silence_s}s
    http-error status 502 content-type application/json string '{unsure}'
    http-error status 503 content-type application/json string '{nobody}' hdr Retry-After 20
    http-error status 504 content-type application/json string '{late}'

frontend team
    bind {bind} tcp-ut 30s
    acl own_pages path,url_dec -m beg {own}
    acl has_x_api_key req.hdr(x-api-key) -m beg {prefix}
    acl has_bearer req.hdr(authorization),word(2,' ') -m beg {prefix}
    http-request return status 404 content-type text/plain string "Open it at the box's own address." if own_pages
    http-request set-header X-Forwarded-For %[src]
    http-request set-header X-Forwarded-Proto {scheme}
    http-request set-var(txn.seat) src,sha2(256)
    http-request set-var(txn.seat) req.hdr(x-api-key),sha2(256) if has_x_api_key
    http-request set-var(txn.seat) req.hdr(authorization),word(2,' '),sha2(256) if has_bearer
    use_backend boxes if {{ nbsrv(boxes) gt 0 }}
    default_backend not_ready

backend boxes
    balance hash var(txn.seat)
    hash-type consistent
    option httpchk
    http-check send meth GET uri /ready ver HTTP/1.1 hdr Host box
    http-check expect status 200
    default-server inter 2s fastinter 500ms downinter 1s fall 2 rise 2 weight 100 tcp-ut 30s
{checked}

backend not_ready
    balance hash var(txn.seat)
    hash-type consistent
    default-server weight 100 tcp-ut 30s
{unchecked}
"""
