"""Builds the operator's sources into an environment: copies them, applies the patch, has pip compile them. Touches the
environment's folder; runs tar, git and the CUDA compiler."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from appliance.box import child
from appliance.checkpoint.faults import plain, typed
from appliance.engine.environments.manifest import BuiltFrom
from appliance.engine.environments.pip import Pip
from appliance.engine.environments.sources import PATCH, Given, sha256_of
from appliance.errors import MoeError

CUDA_MAJOR = 13
"""Of the locked torch 2.11.0 (nvidia-*-cu13 wheels); an extension must be compiled for the same."""
_RELEASE = re.compile(r"release (\d+)\.(\d+)")
_ASK_S = 30.0
_COPY_S = 600.0


def compiler(environ: Mapping[str, str]) -> Path:
    """nvcc of the right CUDA: of CUDA_HOME, in PATH, or where its packages put it. Raises MoeError."""
    home = environ.get("CUDA_HOME", "")
    packaged = [f"/usr/local/cuda-{CUDA_MAJOR}.0/bin/nvcc", "/usr/local/cuda/bin/nvcc"]
    tried = [f"{home}/bin/nvcc"] if home else [shutil.which("nvcc", path=environ.get("PATH")), *packaged]
    remedy = f"apt-get install cuda-toolkit-{CUDA_MAJOR}-0, or: export CUDA_HOME=/usr/local/cuda-{CUDA_MAJOR}.0"
    found = next((Path(path) for path in tried if path and os.access(path, os.X_OK)), None)
    if found is None:
        where = f"CUDA_HOME={plain(home)}" if home else "PATH and /usr/local/cuda"
        raise MoeError(f"the sources need a CUDA compiler, and there is no nvcc in {where}", remedy)
    try:
        said = child.run([str(found), "--version"], dict(environ), _ASK_S)
    except OSError as error:
        raise MoeError(f"{plain(found)} cannot be run: {error.strerror or error}", remedy) from error
    release = _RELEASE.search(said.out)
    if release is None or int(release[1]) != CUDA_MAJOR:
        version = f"CUDA {release[1]}.{release[2]}" if release else "of an unknown CUDA"
        raise MoeError(f"{plain(found)} is {version}, and the locked torch is for CUDA {CUDA_MAJOR}", remedy)
    return found.resolve()


def patch_problem(patch: Path, tree: Path) -> str:
    """Why a patch does not apply to a tree; "" = it does. Nothing is changed. Raises OSError."""
    return _git_apply(patch, tree, "--check")


def build(given: Given, folder: Path, nvcc: Path, pip: Pip, on_source: Callable[[str], Callable[[], None]]) -> None:
    """Build every source, in order. `folder`: made, for the copies; `on_source`: told a key, returns what is called a
    few times a second. Raises MoeError, OSError."""
    folder.mkdir()
    bin_folder = pip.python.parent
    path = os.pathsep.join((str(nvcc.parent), str(bin_folder), os.environ.get("PATH", os.defpath)))
    environ = {"CUDA_HOME": str(nvcc.parent.parent), "PATH": path}
    patch = next(one for one in given.sources if one.key == PATCH)
    for one in given.sources:
        if one.key == PATCH:
            continue
        tree = _checked(one, copied(one, folder / one.key))
        if patch.to == one.key:
            _patched(_checked(patch, Path(patch.path)), tree)
        failed = pip.build(tree, environ, on_source(one.key))
        if failed:
            raise MoeError(
                f"[{one.key}] {plain(one.path)} could not be built: {plain(failed)}",
                f"build it by hand to see all that is said: cd {typed(one.path)} && CUDA_HOME={nvcc.parent.parent} "
                f"python3 -m pip wheel --no-deps --no-build-isolation .",
            )


def _checked(one: BuiltFrom, tree: Path) -> Path:
    """The copy, when it is of what was checked: minutes went by since."""
    path = Path(one.path)
    if sha256_of(tree if path.is_dir() else path) != one.sha256:
        raise MoeError(
            f"[{one.key}] {plain(path)} was changed while this ran", "let it be, and run the same command again"
        )
    return tree


def copied(one: BuiltFrom, to: Path) -> Path:
    """A copy of a source that may be changed; its top folder. Raises MoeError, OSError."""
    path = Path(one.path)
    if path.is_dir():
        shutil.copytree(path, to, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        return to
    to.mkdir()
    argv = ["tar", "--extract", "--no-same-owner", "--file", str(path), "--directory", str(to)]
    answer = child.run(argv, dict(os.environ), _COPY_S)
    if answer.code != 0:
        raise MoeError(f"[{one.key}] {plain(path)} cannot be unpacked: {plain(answer.err)}", f"tar -tf {typed(path)}")
    inside = list(to.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else to


def _patched(patch: Path, tree: Path) -> None:
    failed = _git_apply(patch, tree, "--check") or _git_apply(patch, tree)
    if failed:
        raise MoeError(
            f"[{PATCH}] {plain(patch)} does not apply: {failed}",
            "let it be made from the commit that the sources file names: git apply --check FILE",
        )


def _git_apply(patch: Path, tree: Path, *options: str) -> str:
    # Outside a repository, or git would take the paths from the top of one that our folder happens to lie in.
    environ = dict(os.environ) | {"GIT_CEILING_DIRECTORIES": str(tree.parent.resolve()), "GIT_DIR": os.devnull}
    argv = ["git", "-C", str(tree), "apply", *options, str(patch.absolute())]
    answer = child.run(argv, environ, _ASK_S)
    if answer.code == 0:
        return ""
    said = [line for line in answer.err.splitlines() if line.strip()]
    return plain(said[0]) if said else f"git ended with code {answer.code}"
