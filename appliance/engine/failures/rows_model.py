"""The checkpoint, and what the engine makes of it: missing, cut off, of an unknown kind, not what is expected. Pure.

Source: vLLM 0.26.0, measured where tests/data/vllm-0.26.0 has a log of it, else read in its source.
"""

from __future__ import annotations

from appliance.engine.failures.pattern import row

_VERIFY = "moe-appliance checkpoint verify {model}"
_AGAIN = "moe-appliance checkpoint fetch REPO@REV --to {model}   goes on where it stopped"
_ENVIRONMENT = "moe-appliance engine verify {environment}"
_LOAD_FRAMES = r"load_weights|weight_loader|load_model"

ROWS = (
    row(
        r"Repo id must be .*?: '(?P<path>[^']+)'|Invalid repository ID or local directory specified: '(?P<path2>[^']+)'"
        r"|(?:OSError|RepositoryNotFoundError).*?'?(?P<path3>\S+?)'? is not a local folder",
        "engine.model_missing",
        "There is no checkpoint at {path}{path2}{path3}.",
        "correct [engine] model, or fetch it: moe-appliance checkpoint fetch REPO@REV --to DIR",
        retry=False,
    ),
    row(
        r"does not appear to have a file named (?P<file>\S+?)\.?$",
        "engine.model_missing",
        "The checkpoint is not on this machine, or not whole: {file} is missing.",
        "[engine] model names a folder of this machine; " + _VERIFY,
        retry=False,
    ),
    row(
        r"LocalEntryNotFoundError|OfflineModeIsEnabled|Can't load the configuration of"
        r"|Cannot find any model weights with",
        "engine.model_missing",
        "The checkpoint is not on this machine, or not whole: it has no weights, or no configuration.",
        "[engine] model names a folder of this machine; " + _VERIFY,
        retry=False,
    ),
    row(
        r"SafetensorError: .*(?:incomplete metadata|not fully covered|[Hh]eader|MetadataIncomplete|InvalidOffset)",
        "engine.shard_cut",
        "A shard of the checkpoint is cut off or damaged.",
        f"{_VERIFY} (names it); then: {_AGAIN}",
        retry=False,
    ),
    row(
        r"Weight files referenced in index but missing: \{?(?P<files>[^}]*)",
        "engine.shard_missing",
        "The checkpoint's index names files that are not there: {files}.",
        f"{_VERIFY}; then: {_AGAIN}",
        retry=False,
    ),
    row(
        r"Value error, The checkpoint you are trying to load has model type [`'](?P<kind>[^`']+)[`'] but"
        r"|Model architectures \[(?P<kind2>[^\]]*)\] (?:are not supported|failed to be inspected)"
        r"|Cannot find model module\.? (?P<kind3>\S+)|has no vLLM implementation",
        "engine.architecture_unknown",
        "The engine does not know this kind of model: {kind}{kind2}{kind3}.",
        "set [engine] environment to one whose vLLM or plugin has it; " + _ENVIRONMENT,
        retry=False,
        plugin=True,
    ),
    row(
        r"trust_remote_code=True|--trust-remote-code|contains custom code which must be executed"
        r"|requires you to execute the (?:configuration|modeling) file",
        "engine.remote_code",
        "The checkpoint brings Python code of its own that the engine would have to run.",
        "read that code; to run it: set [engine] trust_remote_code = true; or an environment that knows the model",
        retry=False,
    ),
    row(
        r"There is no module or parameter named '(?P<name>[^']+)'|KeyError: '(?P<name2>[\w.]+\.[\w.]+)'"
        r"|Following weights were not initialized from checkpoint: \{?'?(?P<name3>[\w.]+)",
        "engine.weight_unknown",
        "The checkpoint's tensors are not those that the engine wants: {name}{name2}{name3}.",
        f"{_VERIFY}, then: moe-appliance checkpoint show {{model}}; is the environment made for it? {_ENVIRONMENT}",
        retry=False,
        frames=_LOAD_FRAMES,
    ),
    row(
        r"size mismatch for (?P<name>[\w.]+)|Attempted to load weight \((?P<name2>.*?)\) into parameter"
        r"|The size of tensor a .* must match|(?:shape|size)\(?\)? ?==|AssertionError$",
        "engine.weight_shape",
        "A tensor of the checkpoint has another shape than the engine wants: {name}{name2}.",
        f"{_VERIFY}, then: moe-appliance checkpoint show {{model}}; is the environment made for it? {_ENVIRONMENT}",
        retry=False,
        frames=r"load_weights|weight_loader",
    ),
    row(
        r"PermissionError: \[Errno 13\] Permission denied: '(?P<path>[^']+)'",
        "engine.file_denied",
        "The engine may not read or write {path}.",
        "chown or chmod it for the user that moe-appliance runs as: ls -ld {path}",
        retry=False,
    ),
    row(
        r"json\.decoder\.JSONDecodeError|is not a valid JSON file",
        "engine.model_config",
        "A configuration file of the checkpoint is no JSON.",
        f"{_VERIFY}; then: {_AGAIN}",
        retry=False,
        frames=r"get_config|config_dict|from_pretrained|_prepare_weights",
    ),
)
