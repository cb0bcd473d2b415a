"""One model over several boxes, by vLLM itself: the table `[engine.nodes]`, what is checked of it, what it makes. Pure.

Rules:
- Nothing between the boxes asks who speaks. The master port hands out ranks, vLLM's message queues take pickles from
  whoever connects, so he runs what he likes. Their ports are free ones: only a network of their own protects them.
- Box 0 has the HTTP server. The others are headless: their appliance serves no client, `/ready` stays 503 there, and
  they are well while their process lives, its log has said `JOINED`, and box 0 is there (head.py). They are started
  once it is. Only `vllm serve` knows --headless; the module vllm.entrypoints.openai.api_server takes the flag and
  ignores it.
Source: vLLM 0.26.0, config/parallel.py, v1/executor/multiproc_executor.py, entrypoints/cli/serve.py.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from gateway.state import Cause, Finding, Severity

NodeFlag: TypeAlias = tuple[str, str | None, str, str]
"""(flag, value, why, source); the value of a switch is None."""
NodeVar: TypeAlias = tuple[str, str, str, str]
"""(variable, value, why, source)."""

MP_PORT = 29501
"""Where box 0 hands out ranks. Source: vLLM 0.26.0, config/parallel.py, master_port."""
RAY_PORT = 6379
"""Where a Ray cluster's head listens. Source: `ray start --help`, --port."""
JOINED = re.compile(r"rank (?P<rank>\d+) in world size (?P<world>\d+) is assigned as ")
"""A box's log when its first rank has found all others. Source: vLLM 0.26.0, distributed/parallel_state.py."""
_PARALLEL = "vLLM, config/parallel.py"


def _address(text: str) -> str:
    """One address of one box. Raises ValueError."""
    if not text:
        return text
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError("must be an IP address, for instance 10.0.0.1") from None
    if address.is_unspecified or address.is_multicast:
        raise ValueError("must be the address of one box, for instance 10.0.0.1")
    return str(address)


Address: TypeAlias = Annotated[str, AfterValidator(_address)]


class Nodes(BaseModel):
    """`[engine.nodes]`: one model over several boxes. The table is the same on each but for node_rank and host."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, strict=True)

    executor: Literal["mp", "ray"] = "mp"
    """What starts the ranks: "mp", an appliance on each box; "ray", a Ray cluster that runs already. Default "mp"."""
    nnodes: Annotated[int, Field(ge=1, le=64)] = 1
    """Boxes that share the model. 1 = this box alone, and nothing else here matters. Default 1."""
    node_rank: Annotated[int, Field(ge=0, le=63)] = 0
    """Which of them this is: 0 = the box that serves; the others help it. With "ray" only that one has an engine.
    Default 0."""
    master_addr: Address = ""
    """IP address of box 0, or of the Ray cluster's head, on the network between the boxes. Default none: it is needed
    when nnodes is above 1."""
    master_port: Annotated[int, Field(ge=1024, le=65535)] | None = None
    """Port there. Default none: 29501, for "ray" 6379."""
    host: Address = ""
    """This box's own IP address on that network: what vLLM listens on. Without it vLLM takes the address of the default
    route. Default none: master_addr on box 0."""
    interface: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@:-]{0,15}$")] = ""
    """The interface that has it, as `ip address` names it: NCCL and gloo use no other. Default none: it is needed when
    nnodes is above 1."""

    @model_validator(mode="after")
    def _goes_together(self) -> Nodes:
        if self.nnodes == 1:
            if self.node_rank:
                raise ValueError(f"node_rank is {self.node_rank}, and nnodes is 1: ranks begin with 0")
            return self
        if self.node_rank >= self.nnodes:
            raise ValueError(f"node_rank is {self.node_rank}, and with nnodes = {self.nnodes} the last is {self.last}")
        if self.executor == "ray" and self.node_rank:
            raise ValueError('node_rank is for executor = "mp"; in a Ray cluster one box has the engine, as node 0')
        for key in ("master_addr", "interface"):
            if not getattr(self, key):
                raise ValueError(f"{key} is needed when nnodes is above 1")
        if not self.address:
            raise ValueError("host is needed: this box's own address on the network between the boxes")
        master_here, host_here = _is_loopback(self.master_addr), bool(self.host) and _is_loopback(self.host)
        if master_here and not host_here:
            raise ValueError(
                f"master_addr is {self.master_addr}, which no other box reaches; when all nodes are this machine, say "
                "so with a loopback address in host too"
            )
        if host_here and not master_here:
            raise ValueError(f"host is {self.host}, where no other box reaches this one")
        return self

    def check_ranks(self, tensor_parallel: int, pipeline_parallel: int) -> None:
        """Raises ValueError when the ranks cannot be shared out evenly."""
        ranks = tensor_parallel * pipeline_parallel
        if ranks % self.nnodes:
            raise ValueError(
                f"tensor_parallel {tensor_parallel} x pipeline_parallel {pipeline_parallel} = {ranks} ranks cannot be "
                f"shared out over {self.nnodes} nodes evenly"
            )

    @property
    def last(self) -> int:
        """The highest rank."""
        return self.nnodes - 1

    @property
    def headless(self) -> bool:
        """Whether this box only helps another: no HTTP server, no clients."""
        return self.executor == "mp" and self.node_rank > 0

    @property
    def port(self) -> int:
        """`master_port`, or what it is by itself."""
        return self.master_port or (MP_PORT if self.executor == "mp" else RAY_PORT)

    @property
    def master(self) -> str:
        """ADDRESS:PORT of `master_addr`, IPv6 in brackets."""
        host = f"[{self.master_addr}]" if ":" in self.master_addr else self.master_addr
        return f"{host}:{self.port}"

    @property
    def address(self) -> str:
        """This box's own address between the boxes; "" when it must be said and is not."""
        return self.host or (self.master_addr if self.node_rank == 0 and self.executor == "mp" else "")


def flags(nodes: Nodes) -> tuple[NodeFlag, ...]:
    """What tells vLLM of the other boxes; nothing for one box."""
    if nodes.nnodes == 1:
        return ()
    if nodes.executor == "ray":
        return (
            (
                "--distributed-executor-backend",
                "ray",
                f"the Ray cluster at {nodes.master} starts the ranks; vLLM takes --nnodes with mp alone",
                f"{_PARALLEL}, _verify_args",
            ),
        )
    made: list[NodeFlag] = [
        ("--distributed-executor-backend", "mp", "each box starts its own ranks", f"{_PARALLEL}, nnodes"),
        ("--nnodes", str(nodes.nnodes), "boxes that share the model", f"{_PARALLEL}, nnodes"),
        ("--node-rank", str(nodes.node_rank), "which of them this is", f"{_PARALLEL}, node_rank"),
        ("--master-addr", nodes.master_addr, "where box 0 hands out ranks", f"{_PARALLEL}, master_addr"),
        ("--master-port", str(nodes.port), "the port there", f"{_PARALLEL}, master_port"),
    ]
    if nodes.headless:
        made.append(
            ("--headless", None, "box 0 has the HTTP server; this one has ranks only", "vLLM, entrypoints/cli/serve.py")
        )
    return tuple(made)


def variables(nodes: Nodes) -> tuple[NodeVar, ...]:
    """The same in the environment: where vLLM, NCCL and gloo listen, and which Ray cluster is meant."""
    if nodes.nnodes == 1:
        return ()
    made: list[NodeVar] = [
        (
            "VLLM_HOST_IP",
            nodes.address,
            "message queues listen here; by itself vLLM takes the address of the default route",
            "vLLM, utils/network_utils.py, get_ip",
        ),
        (
            "NCCL_SOCKET_IFNAME",
            f"={nodes.interface}",
            "NCCL meets the other boxes on this interface alone; = is an exact name",
            "NCCL's user guide, environment variables",
        ),
        (
            "GLOO_SOCKET_IFNAME",
            nodes.interface,
            "so does gloo, which else takes what the host's name resolves to",
            "PyTorch, torch.distributed, Choosing the network interface",
        ),
    ]
    if nodes.executor == "ray":
        why = "without it Ray may start a cluster of this box alone, and the ranks wait for cards for ever"
        made.append(("RAY_ADDRESS", nodes.master, why, "Ray, ray.init, address"))
    return tuple(made)


def findings(
    nodes: Nodes, *, tensor_parallel: int, pipeline_parallel: int, cards: int | None = None
) -> tuple[Finding, ...]:
    """What speaks against it on this box. `cards`: how many the engine may use here, None = nobody counted them."""
    if nodes.nnodes == 1:
        return ()
    ranks_here = tensor_parallel * pipeline_parallel // nodes.nnodes
    found = [_reach(nodes), _cards(ranks_here, cards), _tensor(tensor_parallel, pipeline_parallel, ranks_here)]
    return tuple(finding for finding in found if finding is not None)


def left_alone(nodes: Nodes, how: str) -> Cause:
    """Why a headless box starts anew: its ranks belong to a box 0 that has gone. `how`: see head.py."""
    return Cause(
        id="engine.nodes_left",
        title=f"Box 0 at {nodes.master} has gone ({how}); the ranks here start anew and wait for it.",
        remedy=f"ssh {nodes.master_addr} moe-appliance status   says why",
    )


def not_joined(nodes: Nodes) -> Cause:
    """Why a headless box is not well: its ranks have not found the others."""
    return Cause(
        id="engine.nodes_apart",
        title=f"Box 0 at {nodes.master} is there, and the ranks here did not find those of all {nodes.nnodes} boxes.",
        remedy="compare [engine] and [engine.nodes] of the boxes: they differ in node_rank and host alone",
    )


def _reach(nodes: Nodes) -> Finding | None:
    """Who can speak to the ports that ask nobody who he is."""
    if _is_loopback(nodes.address):
        return None
    public = any(ipaddress.ip_address(address).is_global for address in (nodes.address, nodes.master_addr))
    family = "ip6" if ":" in nodes.address else "ip"
    others = nodes.master_addr if nodes.address != nodes.master_addr else "ADDRESS_OF_EACH_OTHER_BOX"
    rule = "nft insert rule inet filter input iifname"
    firewall = (
        f"{rule} != lo {family} daddr {nodes.address} {family} saddr != {{ {others} }} drop; "
        f"{rule} != {{ lo, {nodes.interface} }} tcp dport {nodes.port} drop"
    )
    return Finding(
        id="engine.nodes_open",
        severity=Severity.FAIL if public else Severity.WARN,
        title="The ports between the boxes ask nobody for a key",
        observed=f"port {nodes.port} on every address of {nodes.master_addr}, and free ports of {nodes.address}: "
        + ("a public address" if public else "whoever reaches them runs programs here"),
        required="a network that only these boxes are on",
        remedy="give the boxes a network of their own: master_addr, host and interface of [engine.nodes]"
        if public
        else firewall,
    )


def _cards(ranks_here: int, cards: int | None) -> Finding | None:
    if cards is None or cards == ranks_here:
        return None
    return Finding(
        id="engine.nodes_cards",
        severity=Severity.FAIL if cards < ranks_here else Severity.WARN,
        title="The cards of this box do not match its share of the ranks",
        observed=f"{cards} cards here",
        required=f"{ranks_here}: tensor_parallel x pipeline_parallel / nnodes",
        remedy="set tensor_parallel, pipeline_parallel and nnodes in appliance.toml, the same on every box",
    )


def _tensor(tensor_parallel: int, pipeline_parallel: int, ranks_here: int) -> Finding | None:
    """Tensor parallel ranks exchange after every layer, pipeline stages hand on once."""
    if tensor_parallel <= ranks_here and ranks_here % tensor_parallel == 0:
        return None
    total = tensor_parallel * pipeline_parallel
    return Finding(
        id="engine.nodes_tensor",
        severity=Severity.WARN,
        title="Tensor parallel ranks are spread over boxes",
        observed=f"tensor_parallel = {tensor_parallel}, {ranks_here} ranks a box: the network is used twice a layer",
        required=f"tensor parallel inside a box: {ranks_here} or a divisor of it",
        remedy=f"set tensor_parallel = {ranks_here} and pipeline_parallel = {total // ranks_here}",
    )


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
