"""Lists a repository of a hub through huggingface_hub. Touches sockets and the clock.

Rules:
- huggingface_hub is imported when a hub is asked, not before. It is told to send no telemetry: without that it asks its
  default server for a list of agents, whatever HF_ENDPOINT says.
- The client's errors are told by their status, not by their text.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from appliance import __version__
from appliance.checkpoint.answers import AGAIN, LONGEST_PAUSE_S, TransportError, pause_s
from appliance.checkpoint.faults import plain, shown_url
from appliance.checkpoint.sources import HUB_TOKEN, Hub, HubFile, Remote, token_for, token_of
from appliance.errors import CheckpointError

if TYPE_CHECKING:
    from huggingface_hub.hf_api import HfApi, ModelInfo

TRIES = 5
TIMEOUT_S = 30.0


def _api(environ: Mapping[str, str]) -> HfApi:
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    from huggingface_hub.hf_api import HfApi

    endpoint = environ.get("HF_ENDPOINT", "").rstrip("/") or None
    token = (
        token_for(endpoint, environ, HUB_TOKEN) if endpoint else token_of(environ, HUB_TOKEN)
    ) or False  # False: nor one that a login left on this machine
    return HfApi(endpoint=endpoint, token=token, library_name="moe-appliance", library_version=__version__)


def listed(source: Hub, environ: Mapping[str, str], sleep: Callable[[float], None] = time.sleep) -> Remote:
    """The repository at one commit, with sizes and hashes of its files. Raises CheckpointError."""
    api = _api(environ)
    from huggingface_hub import hf_hub_url

    info, requests = _info(api, source, sleep)
    commit = info.sha
    files = {
        sibling.rfilename: HubFile(
            name=sibling.rfilename,
            size_bytes=sibling.size if type(sibling.size) is int and sibling.size >= 0 else None,
            sha256=sibling.lfs.sha256 if sibling.lfs else None,
            validator=sibling.lfs.sha256 if sibling.lfs else sibling.blob_id,
        )
        for sibling in info.siblings or ()
        if isinstance(sibling.rfilename, str)
    }
    any_file = hf_hub_url(source.repo, "x", revision=commit or source.revision, endpoint=api.endpoint)
    return Remote(
        origin=source.repo if source.revision is None else f"{source.repo}@{source.revision}",
        base=any_file.removesuffix("x"),
        place=f"{shown_url(api.endpoint)}/{source.repo}/",
        files=files,
        revision=commit,
        token=token_of(environ, HUB_TOKEN),
        token_variable=HUB_TOKEN,
        requests=requests,
    )


def _info(api: HfApi, source: Hub, sleep: Callable[[float], None]) -> tuple[ModelInfo, int]:
    """The listing with sizes and hashes, and how many requests it took."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    attempt = 0
    while True:
        retry_after = None
        try:
            info = api.model_info(source.repo, revision=source.revision, files_metadata=True, timeout=TIMEOUT_S)
            return info, attempt + 1
        except HfHubHTTPError as error:
            status = error.response.status_code
            if status not in AGAIN:
                raise _hub_error(source, status, error) from None
            reason = f"the hub answered {status}"
            retry_after = error.response.headers.get("Retry-After")
        except httpx2.HTTPError as error:
            reason = f"the hub cannot be reached ({type(error).__name__})"
        except HFValidationError:
            raise CheckpointError(f"{source.repo}: no valid repository name", "give ORG/NAME[@REV]") from None
        except OfflineModeIsEnabled:
            raise CheckpointError(
                f"{source.repo}: HF_HUB_OFFLINE is set, nothing may be asked",
                "unset HF_HUB_OFFLINE, or give a folder on this machine",
            ) from None
        except (ValueError, TypeError, KeyError):
            raise CheckpointError(
                f"{source.repo}: {shown_url(api.endpoint)} answers with something that is no listing",
                "check HF_ENDPOINT: is it the address of a hub?",
            ) from None
        pause = pause_s(attempt, retry_after, datetime.now(UTC), random.random())  # noqa: S311
        attempt += 1
        if attempt >= TRIES or pause > LONGEST_PAUSE_S:
            where = shown_url(api.endpoint)
            raise TransportError(f"{source.repo}: {reason}, {attempt} times ({where})", "try again later", pause)
        sleep(pause)


def _hub_error(source: Hub, status: int, error: Exception) -> CheckpointError:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, RevisionNotFoundError):
        return CheckpointError(
            f"{source.repo}: the hub knows no revision {plain(source.revision)}", "give a branch, a tag or a commit"
        )
    if isinstance(error, GatedRepoError):
        return CheckpointError(
            f"{source.repo}: access to it has to be granted on the hub ({status})",
            f"ask for it on the repository's page, then: export {HUB_TOKEN}=...",
        )
    if isinstance(error, RepositoryNotFoundError) or status in (401, 403, 404):
        return CheckpointError(
            f"{source.repo}: the hub has no such repository, or shows it to nobody without a token ({status})",
            f"check the name; for a private one: export {HUB_TOKEN}=...",
        )
    return TransportError(f"{source.repo}: the hub answered {status}", "try again later")
