"""What `connect` prints and docs/agents.md says: the settings of an agent as text. Pure.

Both are Markdown with indented blocks, which reads well in a terminal and can be copied from either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from textwrap import fill

from gateway.agents.edit import as_text
from gateway.agents.programs import AGENTS
from gateway.agents.settings import KEY, VARIABLE, Agent, SettingsFile, Target

WIDTH = 120
EXAMPLE = Target("http://BOX:8000", "MODEL", 262_144, "ana")
"""The box of the page: its address, model and seat are the reader's to replace."""
HEAD = f"""\
# Agents

<!-- Written by scripts/docs from gateway/agents. Change that, then run scripts/docs. -->

What each agent must be told to use the box; every setting was tried with the real program. This page has `BOX`,
`MODEL`, a window of {EXAMPLE.context_tokens} tokens and the seat `ana`. The box says the same with its own values:

    moe-appliance connect AGENT --seat NAME            # on the box: prints what to set
    moe-appliance connect AGENT --seat NAME --write    # merges it into the agent's own file
    moe-appliance connect AGENT --url URL [--write]    # on your machine; {VARIABLE} holds the key

AGENT is one of {", ".join(AGENTS)}.

- The key of a seat is printed once, by `moe-appliance seats add NAME`; it is stored nowhere. Keep it in the environment
  variable {VARIABLE}. A lost one is replaced with `moe-appliance seats rotate NAME`.
- `--write` keeps what else is in the file and its comments, writes it with mode 0600, and leaves what was there beside
  it as `.bak`; if there is one already, as `.bak.1`, `.bak.2` and so on: no copy is ever overwritten, and the output
  names the one that was made. A file that cannot be read is not touched. The key is taken from {VARIABLE} or asked
  for, never from the command line.
- The model and its context length are those that the box has loaded; run `connect` again when they change. Without a
  running box, give them: `--model MODEL --context TOKENS`.
"""


def page() -> str:
    """The whole of docs/agents.md."""
    return HEAD + "".join(f"\n{settings_text(agent, EXAMPLE)}" for agent in AGENTS.values())


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do: a sentence in Markdown, and what to copy."""

    said: str
    lines: tuple[str, ...]


def settings_text(
    agent: Agent, box: Target, *, path: str | None = None, written: bool = False, more: Iterable[str] = ()
) -> str:
    """What to put where, the command that starts the agent, and what to know.

    `path`: where the file is, if not in its usual place. `written`: the file holds the settings already.
    `more`: what else to know.
    """
    parts = [f"## {agent.title}\n"]
    parts += [f"{step.said}:\n\n{_indented(*step.lines)}" for step in steps(agent, box, path=path, written=written)]
    parts.append("".join(_note(note) for note in (*notes(agent, box), *more)))
    return "\n".join(parts)


def steps(
    agent: Agent, box: Target, *, path: str | None = None, written: bool = False, writes: bool = True
) -> Iterator[Step]:
    """The same, one by one. `writes`: whether the reader has the command line, whose `--write` does some of it."""
    settings = agent.settings(box)
    exports = [f"export {VARIABLE}=...   # {_whose(box)}"]
    exports += [f'export {name}="{value}"' for name, value in settings.environment.items()]
    file = settings.file
    if file is None or not file.holds_key:
        where = "the program" if settings.start is None else agent.title
        yield Step(f"In the shell that starts {where}, or its profile", tuple(exports))
    elif not written and writes:
        yield Step("For `--write`, in the shell", tuple(exports))
    if file is not None and not written:
        yield _of_file(file, path, writes)
    if settings.setup is not None:
        yield Step("Once", (settings.setup,))
    if settings.code is not None:
        yield Step("Then, in Python", tuple(settings.code.splitlines()))
    if settings.start is not None:
        yield Step("Start it", (settings.start,))


def notes(agent: Agent, box: Target) -> tuple[str, ...]:
    """What to know, a sentence or two each, in Markdown."""
    return (*agent.settings(box).notes, *_warnings(agent, box))


def _of_file(file: SettingsFile, path: str | None, writes: bool) -> Step:
    instead = f", with the key itself in the place of `{KEY}`" if file.holds_key else ""
    does_it = " (`--write` does it)" if writes else ""
    lines = as_text(file.format, file.values).splitlines()
    return Step(f"Into `{path or file.place.shown}`{instead}{does_it}", tuple(lines))


def _whose(box: Target) -> str:
    return "your key" if box.seat is None else f"the key of seat {box.seat}"


def _warnings(agent: Agent, box: Target) -> Iterator[str]:
    if box.context_tokens is not None and box.context_tokens < 2 * agent.prompt_tokens:
        yield (
            f"The box's window of {box.context_tokens} tokens is too small for this agent: its first prompt alone has "
            f"about {agent.prompt_tokens}."
        )


def _indented(*lines: str) -> str:
    return "".join(f"    {line}\n" if line else "\n" for line in lines)


def _note(note: str) -> str:
    return (
        fill(note, WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        + "\n"
    )
