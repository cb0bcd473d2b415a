"""The adapter of vLLM: looks at what there is, makes the command, reads the log.

Touches the file system, by looking but for one file and the folders of caches (`prepare`), and PATH. Rules:
- `findings` is the look, and may block; `launch` starts by the last one and touches nothing.
- Nothing of a run is kept here.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from appliance.box.checks import kept, seen_of
from appliance.box.facts import Facts
from appliance.box.gpu import Outcome as Driver
from appliance.engine.adapter import VLLM_STEPS, HostTier, Launch, MetricNames, Progress, Required, Step, read_step
from appliance.engine.host_bytes import PLACED
from appliance.engine.host_kv import EXACT
from appliance.engine.promise import Promise
from appliance.engine.vllm import findings as found
from appliance.engine.vllm import head, launcher, nodes, plugin
from appliance.engine.vllm.beside_residency import unmeasured
from appliance.engine.vllm.caches import cache_env
from appliance.engine.vllm.command import Command, command_of, tier_flags
from appliance.engine.vllm.flags import EnvVar
from appliance.engine.vllm.place import SOCKET, Place, environment_name, place_of
from appliance.engine.vllm.placement import Placed, placed, resident
from appliance.engine.vllm.profiles import PROFILES
from appliance.engine.vllm.request import Known, Request, known, served_name
from appliance.engine.vllm.settings import VllmSettings
from appliance.errors import MoeError, PlanError
from appliance.files import make_folder, write_private
from appliance.plan import planfile
from appliance.plan.export.outcome import Outcome
from appliance.plan.schema import Plan
from appliance.plan.settings import PlanSettings
from appliance.units import GIB
from appliance.unwaited import unwaited
from gateway.state import UNIX, Cause, EngineProfile, Finding
from gateway.unixserver import PATH_MAX_BYTES

LAUNCHER = Path(launcher.__file__)
PRIVATE_MODE = 0o700
SERVER = ("vllm.entrypoints.openai.api_server",)
HEADLESS = (launcher.SERVE,)
"""Only this one knows --headless. Source: vLLM 0.26.0, entrypoints/cli/serve.py."""
METRICS = MetricNames(
    written="vllm:generation_tokens_total",
    read="vllm:prompt_tokens_total",
    running="vllm:num_requests_running",
    waiting="vllm:num_requests_waiting",
)
"""Source: /metrics of vLLM 0.26.0."""
_NOWHERE = "(no model)"


def not_placed(plan_id: str | None) -> Required:
    """The line of the residency plugin, with the plan that this start is for; None = it could not be read any more, and
    any plan's will not do."""
    named = rf"{re.escape(plan_id)}(?:;|$)" if plan_id is not None else "(?!)"
    return Required(
        re.compile(f"{PLACED.pattern}.* plan {named}"),
        "that the experts were placed as the plan says",
        Cause(
            id="engine.not_placed",
            title="vLLM serves, and its residency plugin has not said that it placed this plan.",
            remedy="moe-appliance check; moe-appliance engine command   shows what the engine is told of the plan",
            retry=False,
        ),
    )


@dataclass(frozen=True, slots=True)
class Looked:
    """What would be run, and what speaks against it. `python` None = there is nothing to run it with. `document`: what
    the residency plugin is to read, None = there is no such plan."""

    request: Request
    command: Command
    place: Place
    findings: tuple[Finding, ...]
    document: Mapping[str, object] | None = None


class VllmEngine:
    """An engine as `[engine] kind = "vllm"` describes it. Put here by whoever read the checkpoint's headers:
    `uva`, the plan in the words of vLLM's own offload; `planned_host_bytes`, what the plan places in host RAM."""

    kind = "vllm"
    supervised = True

    def __init__(
        self,
        settings: VllmSettings,
        *,
        state_dir: Path,
        runtime_dir: Path,
        plan: PlanSettings | None = None,
        environ: Mapping[str, str] = os.environ,
        which: Callable[[str], str | None] = shutil.which,
    ) -> None:
        self.settings = settings
        self.uva: Outcome | None = None
        self.planned_host_bytes: int | None = None
        self._plan = plan or PlanSettings()
        self._state_dir = state_dir.absolute()
        self._socket = runtime_dir.absolute() / SOCKET
        self._environ = environ
        self._which = which
        self._facts: Facts | None = None
        self._looked: Looked | None = None
        self._of_profile = PROFILES[settings.profile]
        self.model = settings.model or (str(self._plan.checkpoint) if self._plan.checkpoint is not None else None)
        self.served_model: str | None = settings.served_model or (served_name(self.model) if self.model else None)
        self.context_tokens = settings.context_tokens
        self.host_tier = self._tier()
        self.profile = EngineProfile(
            name=settings.name or self.served_model or settings.profile,
            floor_tok_per_s=self._floor(),
            cold_tokens=settings.cold_tokens,
            streams=settings.streams,
            kv_tokens=settings.kv_tokens,
            helps=settings.nodes.master if settings.nodes.headless else "",
        )

    def _floor(self) -> float:
        said, usual = self.settings.floor_tok_per_s, self._of_profile.floor_tok_per_s
        return said if usual is None or "floor_tok_per_s" in self.settings.model_fields_set else usual

    @property
    def environment(self) -> str:
        """Id of the environment that it runs in, a name while nobody has looked; "" = a Python of the operator's."""
        if self.settings.python is not None:
            return ""
        looked = self._looked.place.environment if self._looked is not None else ""
        return looked or environment_name(self.settings, self._of_profile)

    def cards_wanted(self) -> int:
        """How many cards of this box the engine uses without a plan; 0 = none."""
        if not self._of_profile.cuda:
            return 0
        settings = self.settings
        ranks = (settings.tensor_parallel or self._of_profile.tensor_parallel) * settings.pipeline_parallel
        return max(1, ranks // settings.nodes.nnodes)

    def _tier(self) -> HostTier | None:
        settings = self.settings
        if not settings.host_kv_gib:
            return None
        size = int(settings.host_kv_gib * GIB)
        exact = settings.env.get(EXACT, "0") != "0"
        told = settings.model_dump_json(exclude={"name", "floor_tok_per_s", "cold_tokens", "hang_s", "canary_s"})
        return HostTier(
            bytes=size,
            most_bytes=size if exact else 2 * size,
            args=tuple(word for flag in tier_flags(settings) for word in flag.words),
            mark=hashlib.sha256(told.encode()).hexdigest()[:16],
        )

    def findings(self, facts: Facts) -> tuple[Finding, ...]:
        """What findings.py and placement.py say."""
        self._facts = facts
        self._looked = self.look()
        return self._looked.findings

    def look(self) -> Looked:
        """What would be run now, by the facts that `findings` was given last."""
        settings, profile = self.settings, self._of_profile
        plan = self._read_plan()
        place = place_of(settings, profile, self.model, self._state_dir)
        tells = placed(settings, profile, plan, str(self._plan.file or ""), self.uva, place.version, place.quantisation)
        template = place.template or self._written(place.inline)
        request = Request(
            settings=settings,
            version=place.version,
            model=self.model or _NOWHERE,
            socket=str(self._socket),
            streams=self._streams(plan),
            template=None if template is None else str(template),
            plan=plan,
            placed=tells.flags,
            placed_env=(*tells.env, *self._resident(tells)),
            box=self._known(),
            cache=str(place.cache),
        )
        seen = (
            *kept(
                found.of_python(
                    settings,
                    environment_name(settings, profile),
                    place.python,
                    place.outdated,
                    place.environment,
                    place.python_barred,
                ),
                found.of_model(self.model, place.model_barred),
                found.of_template(settings.chat_template, place.template_barred),
                found.of_tools(request),
            ),
            *tells.findings,
            *found.of_cards(request),
            *kept(
                unmeasured(request.box.capabilities) if tells.document is not None else None,
                found.of_numa(request),
                found.of_socket(self._socket, PATH_MAX_BYTES),
            ),
        )
        return Looked(request, command_of(request), place, seen, tells.document)

    def _resident(self, tells: Placed) -> tuple[EnvVar, ...]:
        if tells.document is None:
            return ()
        where = self._state_dir
        document, written = plugin.document_in(where, tells.document), plugin.written_in(where)
        return resident(self.settings, document, plugin.plugin_in(where), written)

    def _read_plan(self) -> Plan | None:
        """A plan that cannot be read is a finding of the examination."""
        try:
            return planfile.load(self._plan.file) if self._plan.file is not None else None
        except PlanError:
            return None

    def _streams(self, plan: Plan | None) -> int:
        """As planned.py has it: what is said outright, else what the plan validated."""
        said = "streams" in self.settings.model_fields_set
        return self.settings.streams if said or plan is None or plan.profile is None else plan.profile.streams

    def _known(self) -> Known:
        facts = self._facts
        numactl = self._which("numactl") is not None
        if facts is None or facts.gpus is None or facts.gpus.outcome is not Driver.OK:
            return Known(numactl=numactl, environ=self._environ)
        named = self.settings.env.get("CUDA_VISIBLE_DEVICES", self._environ.get("CUDA_VISIBLE_DEVICES"))
        visible = None if named is None else tuple(name.strip() for name in named.split(","))
        return known(facts, seen_of(facts.gpus.gpus, visible), numactl=numactl, environ=self._environ)

    def _written(self, inline: str) -> Path | None:
        """Where the model's own template is as a file: by what it says, so that another model has another one."""
        if not inline:
            return None
        return self._state_dir / f"chat_template-{hashlib.sha256(inline.encode()).hexdigest()[:12]}.jinja"

    async def prepare(self, progress: Progress) -> None:
        """Make the folders of caches, and put the residency plugin there where the plan wants it. Write the model's
        template into a file, where it has none: vLLM treats one that is named better. A box that helps another waits
        for that one. Raises MoeError."""
        looked = self._looked or self.look()
        await unwaited(lambda: _make_caches(looked.request))
        await self._put_plugin(looked)
        await self._write_template()
        boxes = self.settings.nodes
        if boxes.headless:
            progress(f"waiting for box 0 at {boxes.master}", None)
            await head.until_there(boxes.master_addr, boxes.port)

    async def _put_plugin(self, looked: Looked) -> None:
        document = looked.document
        if document is None:
            return
        try:
            await unwaited(lambda: plugin.put(self._state_dir, document))
        except OSError as error:
            where = self._state_dir / plugin.FOLDER
            said = f"the residency plugin cannot be put into {where}: {error.strerror}"
            raise MoeError(said, f"df -h {where}; ls -ld {where}") from error

    async def _write_template(self) -> None:
        inline = (self._looked or self.look()).place.inline
        path = self._written(inline)
        if path is None:
            return
        try:
            await unwaited(lambda: write_private(path, inline.encode()))
        except OSError as error:
            raise MoeError(
                f"{path} cannot be written: {error.strerror}", f"check owner and mode of {path.parent}"
            ) from error

    def launch(self, port: int, key_file: Path) -> Launch:
        """On the socket, whatever `port` is: `moe-appliance` makes its folder, 0700, and removes an old socket. A box
        that helps another has none, and is asked for nothing."""
        looked, settings = self._looked or self.look(), self.settings
        launch = Launch(
            argv=self.argv(looked, key_file),
            env={variable.name: variable.value for variable in looked.command.env},
            url=f"{UNIX}{self._socket}",
            key_file=key_file,
            health_path="/health",
            start_timeout_s=settings.start_timeout_s,
            grace_s=settings.grace_s,
            required=self._required(looked),
            metrics=METRICS if settings.hang_s else None,
            hang_s=settings.hang_s or 180.0,
            canary_s=settings.canary_s,
            promise=self._promise(looked),
            withheld=looked.command.withheld,
        )
        boxes = settings.nodes
        if not boxes.headless:
            return launch
        joined = Required(nodes.JOINED, "that the ranks found each other", nodes.not_joined(boxes))
        required = (joined, *launch.required)
        return replace(
            launch, url="", key_file=None, required=required, metrics=None, canary_s=0.0, promise=None, gone=self._gone
        )

    async def _gone(self) -> Cause:
        boxes = self.settings.nodes
        return nodes.left_alone(boxes, await head.until_gone(boxes.master_addr, boxes.port))

    def _promise(self, looked: Looked) -> Promise:
        settings, of_profile = self.settings, self._of_profile
        host_bytes = None
        if settings.placement == "uva" and self.uva is not None:
            host_bytes = self.uva.host_bytes
        elif settings.placement == "residency":
            host_bytes = self.planned_host_bytes
        return Promise(
            kind=self.kind,
            floor_tok_per_s=self.profile.floor_tok_per_s,
            streams=self.profile.streams if of_profile.cuda else 0,
            tools=bool(looked.request.tool_call_parser),
            host_bytes=host_bytes,
            longest_tokens=settings.context_tokens or of_profile.context_tokens,
            hang_s=settings.hang_s,
            allow_degraded=settings.allow_degraded,
        )

    def argv(self, looked: Looked, key_file: Path) -> tuple[str, ...]:
        """All words of the command but those of the tier in host RAM."""
        python = looked.place.python or Path("python")
        module = HEADLESS if self.settings.nodes.headless else SERVER
        return (str(python), "-P", str(LAUNCHER), str(key_file), *module, *looked.command.argv)

    def _required(self, looked: Looked) -> tuple[Required, ...]:
        if self.settings.plugins:
            patterns = {name: re.compile(pattern) for name, pattern in self.settings.plugins.items()}
        else:
            patterns = dict(self._of_profile.plugins)
        is_meant = self.settings.placement == "residency" and self._plan.file is not None
        plan_id = None if looked.document is None else str(looked.document["plan_id"])
        of_plan = (not_placed(plan_id),) if is_meant else ()
        return of_plan + tuple(
            Required(pattern, f"a line of the plugin {name}", _not_loaded(name, self.environment))
            for name, pattern in patterns.items()
        )

    def phase_of(self, line: str) -> Step | None:
        """Steps of vLLM's log."""
        return read_step(VLLM_STEPS, line)


def _make_caches(request: Request) -> None:
    """For this user alone, whatever lies in them. Raises ConfigError."""
    for one in cache_env(request):
        folder = Path(one.value)
        make_folder(folder.parent.parent, "state_dir")
        make_folder(folder.parent, "state_dir", PRIVATE_MODE)
        make_folder(folder, "state_dir", PRIVATE_MODE)


def _not_loaded(name: str, environment: str) -> Cause:
    """vLLM goes on without a plugin that it cannot import, and says nothing of one that is not there."""
    return Cause(
        id="engine.plugin",
        title=f"vLLM serves, and its plugin {name} has said nothing: it was not loaded.",
        remedy=f"moe-appliance engine verify {environment}   says whether the plugin is installed and imports"
        if environment
        else "see that the Python of [engine] python has the plugin: its entry points, group vllm.general_plugins",
        retry=False,
    )
