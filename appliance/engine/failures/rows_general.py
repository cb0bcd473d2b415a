"""What any engine may say as it ends, and llama.cpp's own words. Pure.

Source: llama.cpp's lines measured with xllamacpp 2026.10.11549.
"""

from __future__ import annotations

import re

from appliance.engine.failures.context import Context
from appliance.engine.failures.pattern import row
from appliance.errors import DEMO_EXTRA
from gateway.state import Cause

LIBRARIES_REMEDY = "apt-get install libgomp1 libstdc++6"
MODEL_REMEDY = "delete the model file and start again, so that it is fetched anew"
PORT_REMEDY = "ss -ltnp (find the program and end it), or give the engine another port"


def _of_environment(cause: Cause, match: re.Match[str], context: Context) -> Cause:
    """An environment of ours is whole or damaged: nothing is added to it by hand."""
    if not context.environment:
        return cause
    return cause.model_copy(
        update={"remedy": f"moe-appliance engine verify {context.environment}   (says how to mend it)", "retry": False}
    )


ROWS = (
    row(
        r"failed to open GGUF file\s*'?(?P<path>[^'\n]*?)'?(?: \(|$)",
        "engine.model_missing",
        "The model file {path} cannot be opened.",
        "put the model there, or correct the path in appliance.toml",
    ),
    row(
        r"failed to read key-value pairs",
        "engine.model_header_cut",
        "The model file is cut off or is no GGUF file: its header cannot be read.",
        MODEL_REMEDY,
    ),
    row(
        r"data is not within the file bounds",
        "engine.model_cut",
        "The model file is incomplete: it ends before its last tensor.",
        MODEL_REMEDY,
    ),
    row(
        r"couldn't bind HTTP server socket(?:.*port: (?P<port>\d+))?",
        "engine.port_taken",
        "Another program holds the engine's port {port}.",
        PORT_REMEDY,
    ),
    row(
        r"(?i)address already in use",
        "engine.port_taken",
        "Another program holds the engine's port.",
        PORT_REMEDY,
    ),
    row(
        r"(?P<library>libgomp\.so\.1|libstdc\+\+\.so\.6): cannot open shared object file",
        "engine.library_missing",
        "The system library {library} is not installed.",
        LIBRARIES_REMEDY,
    ),
    row(
        r"version [`'](?P<symbol>(?:GLIBCXX|CXXABI|GOMP)_[\d.]+)' not found",
        "engine.library_old",
        "A system library is too old for the engine: {symbol} is missing.",
        "use Debian 12, Ubuntu 22.04 or later, then: " + LIBRARIES_REMEDY,
    ),
    row(
        r"(?P<library>[\w.+-]+\.so[\d.]*): cannot open shared object file",
        "engine.library_missing",
        "The shared library {library} is not installed.",
        "install the package that contains {library} (apt-file search {library})",
    ),
    row(
        r"cudaErrorOperatingSystem|CUDA_ERROR_OPERATING_SYSTEM|CUDA(?: driver)? error: OS call failed"
        r"|CUDA_ERROR_UNKNOWN|CUDA(?: driver)? error: unknown error|cuInit\D{0,40}\b(?:304|999)\b",
        "engine.cuda_devices",
        "CUDA does not reach the cards: the driver was loaded anew since the service started, or a device is closed.",
        "sudo systemctl restart moe-appliance (devices are opened to it at its start); then: moe-appliance preflight",
    ),
    row(
        r"No module named '(?P<module>xllamacpp|gguf)(?:\.[^']*)?'",
        "engine.module_missing",
        "The Python package {module} is not installed.",
        DEMO_EXTRA,
    ),
    row(
        r"No module named '?(?P<module>[\w.]+)'?",
        "engine.module_missing",
        "The Python package {module} is not installed for the engine's interpreter.",
        "pip install {module} (into the environment that runs the engine)",
        refine=_of_environment,
    ),
    row(
        r"(?P<program>[^\s:]+): (?:command )?not found$",
        "engine.not_found",
        "The program {program} was not found.",
        "install it, or correct the command in appliance.toml",
    ),
)
