"""What a container is a view of: this machine's own root, or a Debian made once with mmdebstrap.

Touches the git-ignored folder .systemd. Rules: the mirror is the one that apt has for this machine; no host is named.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".systemd"
PACKAGES = "systemd-sysv,dbus,man-db,procps,python3,python3-venv"
MAKE_LIMIT_S = 900.0


def base_tree() -> Path:
    """$MOE_SYSTEMD_ROOT: unset = this machine's root, a path = that folder, else a Debian release by its name."""
    wanted = os.environ.get("MOE_SYSTEMD_ROOT", "/")
    return Path(wanted) if "/" in wanted else debian(wanted)


def debian(release: str) -> Path:
    """The tree of a release, made when it is not there. Fails with what mmdebstrap says."""
    tree = CACHE / release
    if not tree.exists():
        CACHE.mkdir(exist_ok=True)
        part = CACHE / f"{release}.part"
        shutil.rmtree(part, ignore_errors=True)
        source = f"deb {mirror()} {release} main"
        argv = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", release, str(part), source]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=MAKE_LIMIT_S, check=False)
        assert done.returncode == 0, f"{' '.join(argv)}\n{done.stderr[-3000:]}"
        part.rename(tree)
    return tree


def mirror() -> str:
    """Where apt gets this machine's Debian from."""
    form = "$(LABEL) $(COMPONENT) $(REPO_URI)"
    argv = ["apt-get", "indextargets", "--format", form, "Identifier: Packages"]
    lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    found = [line.split()[2] for line in lines if line.startswith("Debian main ")]
    assert found, "apt knows no Debian mirror here: apt-get update"
    return found[0]
