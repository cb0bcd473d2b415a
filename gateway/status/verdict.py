"""One sentence about the box, with its cause and the command to type. Pure.

The first rule that applies decides; the code carries the same numbers.
 1. The daemon is ending.
 2. The gateway does not answer.
 3. The gateway drains.
 4. The engine was refused by a check.
 5. The engine failed for good: the same cause so many times in a row.
 6. The engine ended and will be started again by itself.
 7. The engine is off because somebody stopped it, or nothing is known of it yet.
 8. The engine is being stopped.
 9. The engine is on its way up.
10. The operator drained the box.
11. The engine is ready but admission is closed.
12. The operator paused the box.
13. The queue is full, and streams are busy or kept free: the next request is refused.
14. All streams busy, somebody waits.
15. All streams busy, nobody waits.
Streams are free and yet somebody waits. None of it is a fault; the first cause that applies is told with its end:
16. They are held free for the next cold prompt.
17. What waits is cold, and the lane is not free: another one is read, or was not long ago.
18. The last one is kept free, so that no running reply falls behind its pace.
19. Seats at their own bounds, or what else the first one waits for.
20. Streams are free, nobody waits.
Then, for 13 to 20 only:
21. A finding that fails or warns is named and makes the tone warn; the rule's number stays.
Before 10, and then 21 as well:
22. The engine is ready and only computes for another box: nobody is served here, and that is as it should be.
Before 22:
23. The engine is ready and about to be restarted with another plan or environment: running streams end first.
A mode that the operator set is said before 4 to 9 and 23 as well: whoever waits for the engine would wonder why nobody
is served then.
"""

from __future__ import annotations

from gateway.admission_types import WaitKind
from gateway.overlay import Mode
from gateway.snapshot import GatewaySnapshot
from gateway.state import BoxState, EngineState, Phase, Severity
from gateway.status.cold import cold_prompt
from gateway.status.figures import Tone, percent, seconds
from gateway.status.operator import mode_said
from gateway.status.views import FindingRow, QueueView, Verdict

SAME_CAUSE_LIMIT = 3
"""How often an engine ends for one cause before it is FAILED. Source: appliance/engine/lifecycle.py; a test
compares them."""
RESTART = "moe-appliance restart"
REBOOT = "sudo systemctl reboot"
RESUME = "moe-appliance resume"
LOOK = "journalctl -u moe-appliance -n 50"

_ON_ITS_WAY = {
    Phase.PREPARING: "being prepared",
    Phase.STARTING: "starting up",
    Phase.WARMING: "being tried out",
}
_ARTICLES = frozenset({"A", "An", "Another", "No", "The", "This", "Too"})


def verdict(
    box: BoxState, gateway: GatewaySnapshot | None, queue: QueueView, findings: tuple[FindingRow, ...], now_s: float
) -> Verdict:
    """How the box is at `now_s`."""
    if box.stopping:  # 1
        return Verdict(rule=1, tone=Tone.WARN, text=f"Stopping: the daemon ends; {_still(gateway)}.")
    if gateway is None:  # 2
        return _absent(box)
    if gateway.draining:  # 3
        text = f"Draining: new requests are refused; {_still(gateway)}."
        return Verdict(rule=3, tone=Tone.WARN, text=text)
    if box.engine.phase is not Phase.READY or box.engine.leaving:
        mode = mode_said(gateway, now_s)
        ready = box.engine.phase is Phase.READY
        down = _leaving(box.engine, gateway) if ready else _not_ready(box, findings, now_s)
        return down.model_copy(update={"text": f"{mode}. {down.text}"}) if mode else down
    if box.engine.profile.helps:  # 22
        text = f"Serving as a part: helps box 0 at {box.engine.profile.helps}, which answers the requests."
        return _with_findings(Verdict(rule=22, tone=Tone.OK, text=text), findings)
    if gateway.mode == Mode.DRAINED:  # 10
        text = f"{mode_said(gateway, now_s)}: new requests are refused; {_still(gateway)}. To serve again:"
        return Verdict(rule=10, tone=Tone.WARN, text=text, command=RESUME)
    if gateway.closed is not None:  # 11
        why = gateway.closed.replace("_", " ")
        return Verdict(rule=11, tone=Tone.WARN, text=f"Not serving: the engine is ready, admission is closed ({why}).")
    if gateway.mode == Mode.PAUSED:  # 12
        text = f"{mode_said(gateway, now_s)}: nobody is let through, {_waits(queue)}; {_still(gateway)}. To go on:"
        return Verdict(rule=12, tone=Tone.WARN, text=text, command=RESUME)
    return _with_findings(_serving(gateway, queue), findings)


def _waits(queue: QueueView) -> str:
    return f"{queue.depth} {'waits' if queue.depth == 1 else 'wait'}" if queue.depth else "nobody waits"


def _absent(box: BoxState) -> Verdict:
    told = f" ({box.gateway.last_exit})" if box.gateway.last_exit else ""
    text = f"Not serving: the gateway does not answer{told}; the daemon starts it again by itself. To see why:"
    return Verdict(rule=2, tone=Tone.BAD, text=text, command=LOOK)


def _not_ready(box: BoxState, findings: tuple[FindingRow, ...], now_s: float) -> Verdict:
    engine = box.engine
    match engine.phase:
        case Phase.REFUSED:  # 4
            text = f"Not serving: {_refusal(engine, findings)}. Mend it, then:"
            return Verdict(rule=4, tone=Tone.BAD, text=text, command=RESTART)
        case Phase.FAILED:  # 5
            again = engine.cause is None or engine.cause.retry
            times = f"the engine failed {SAME_CAUSE_LIMIT} times with the same cause"
            how = times if again else "the engine ended, and would end the same way again"
            text = f"Not serving: {how}: {_cause(engine)}. Mend it, then:"
            return Verdict(rule=5, tone=Tone.BAD, text=text, command=RESTART)
        case Phase.NEEDS_REBOOT:  # 5
            text = f"Not serving: {_cause(engine)}. The cards must be given back first; if nothing else helps:"
            return Verdict(rule=5, tone=Tone.BAD, text=text, command=REBOOT)
        case Phase.BACKOFF:  # 6
            wait = f"in {seconds(engine.retry_at_s - now_s)}" if engine.retry_at_s is not None else "soon"
            text = f"Not serving: the engine ended: {_cause(engine)}; it starts again {wait}. To start it now:"
            return Verdict(rule=6, tone=Tone.BAD, text=text, command=RESTART)
        case Phase.OFF if box.revision == 0:  # 7
            return Verdict(rule=7, tone=Tone.WARN, text="Starting: nothing was heard of the engine yet.")
        case Phase.OFF:  # 7
            return Verdict(rule=7, tone=Tone.WARN, text="Not serving: the engine is off. To start it:", command=RESTART)
        case Phase.STOPPING:  # 8
            why = f": {_cause(engine)}" if engine.cause is not None else ""
            return Verdict(rule=8, tone=Tone.WARN, text=f"Not serving: the engine is being stopped{why}.")
        case _:  # 9
            step = engine.step or _ON_ITS_WAY.get(engine.phase, "starting up")
            done = f" ({percent(engine.progress)})" if engine.progress is not None else ""
            left = f", {seconds(engine.left_s, estimated=True)} left" if engine.left_s is not None else ""
            return Verdict(rule=9, tone=Tone.WARN, text=f"Starting: the engine is {step}{done}{left}.")


def _leaving(engine: EngineState, gateway: GatewaySnapshot) -> Verdict:
    """23."""
    wanted = engine.trial.shown if engine.trial is not None else "another plan or environment"
    text = f"About to serve with {wanted}: nothing new is sent to the engine"
    if not gateway.running:
        return Verdict(rule=23, tone=Tone.WARN, text=f"{text}, no stream runs, and it is restarted now.")
    ends = "ends" if len(gateway.running) == 1 else "end"
    text = f"{text}, {_still(gateway)} and {ends} first. To end {'it' if ends == 'ends' else 'them'} now:"
    return Verdict(rule=23, tone=Tone.WARN, text=text, command=RESTART)


def _serving(gateway: GatewaySnapshot, queue: QueueView) -> Verdict:
    busy, most, depth = len(gateway.running), gateway.streams_max, queue.depth
    streams = f"{busy} of {most} streams busy"
    wait = f"{depth} {'waits' if depth == 1 else 'wait'}"
    if depth >= gateway.queue_max and (busy >= most or depth):  # 13
        room = f"{depth} of {gateway.queue_max} wait" if gateway.queue_max else "nobody may wait"
        return Verdict(rule=13, tone=Tone.WARN, text=f"Full: {streams}, {room}; the next request is refused.")
    if busy >= most and depth:  # 14
        free = f"; the next ticket is free in {queue.next_free}" if queue.next_free.value is not None else ""
        return Verdict(rule=14, tone=Tone.OK, text=f"Full: {streams}, {wait}{free}.")
    if busy >= most:  # 15
        return Verdict(rule=15, tone=Tone.OK, text=f"Full: {streams}, nobody waits.")
    if depth:
        rule, cause = _free_and_yet(gateway, queue)
        return Verdict(rule=rule, tone=Tone.OK, text=f"Serving: {streams}, {wait}{cause}.")
    return Verdict(rule=20, tone=Tone.OK, text=f"Serving: {streams}, nobody waits.")  # 20


def _free_and_yet(gateway: GatewaySnapshot, queue: QueueView) -> tuple[int, str]:
    """Why somebody waits while streams are free: the rule and the end of the sentence."""
    lane, kinds = gateway.lane, {row.kind for row in queue.rows}
    if lane is not None and lane.closed:  # 16
        left = seconds(lane.quiet_left_s, estimated=True)
        return 16, f"; held free for {cold_prompt(lane.next_seat, lane.next_tokens)}, at most {left} more"
    if lane is not None and WaitKind.READING in kinds:  # 17
        left = seconds(max(lane.reading_left_s, lane.spacing_left_s), estimated=True)
        read = cold_prompt(lane.reading_seat, lane.reading_tokens)
        return 17, f"; {read} is being read, the next long one may follow in {left} at the latest"
    if lane is not None and WaitKind.SPACING in kinds:  # 17
        left = seconds(lane.spacing_left_s, estimated=True)
        return 17, f"; long prompts keep a distance, the next one may follow in {left} at the latest"
    if WaitKind.PACE in kinds:  # 18
        return 18, "; the last stream is kept free so that no running answer falls behind its pace"
    if kinds <= {"", WaitKind.SEAT_BUSY}:  # 19
        own = "its seat has" if queue.depth == 1 else "their seats have"
        return 19, f" because {own} no stream left"
    first = next((row.why for row in queue.rows if row.why), "others go first")
    return 19, f": {first}"


def _with_findings(serving: Verdict, findings: tuple[FindingRow, ...]) -> Verdict:
    """21."""
    grave = [row for row in findings if row.severity is not Severity.INFO]
    if not grave:
        return serving
    more = f" (and {len(grave) - 1} more)" if len(grave) > 1 else ""
    text = f"{serving.text} But: {_inline(grave[0].title)}{more}. To mend it:"
    return serving.model_copy(update={"tone": Tone.WARN, "text": text, "command": grave[0].remedy})


def _refusal(engine: EngineState, findings: tuple[FindingRow, ...]) -> str:
    fails = [row for row in findings if row.severity is Severity.FAIL]
    if len(fails) > 1:
        return f"{len(fails)} checks failed, the first: {_inline(fails[0].title)}"
    return _inline(fails[0].title) if fails else _cause(engine)


def _cause(engine: EngineState) -> str:
    return _inline(engine.cause.title) if engine.cause is not None else "the cause is not known"


def _inline(title: str) -> str:
    """A title inside a sentence: no full stop, a small first letter where it is an article."""
    text = " ".join(title.split()).rstrip(".")
    first = text.split(" ", 1)[0]
    return text[0].lower() + text[1:] if first in _ARTICLES else text


def _still(gateway: GatewaySnapshot | None) -> str:
    running = len(gateway.running) if gateway else 0
    if gateway is None:
        return "the gateway does not answer any more"
    return f"{running} {'stream still runs' if running == 1 else 'streams still run'}" if running else "no stream runs"
