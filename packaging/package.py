"""Puts the package together: wheel, sdist, and the .deb with all that it installs. Run by packaging/build.

Touches build/packaging, the folder that is asked for, and the package registry (wheels.py). The same commit gives the
same bytes: every time in the files is $SOURCE_DATE_EPOCH, which packaging/build sets from the last commit.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import manpage
import texts
import wheels

HERE = Path(__file__).parent
ROOT = HERE.parent
WORK = ROOT / "build" / "packaging"
BIN = Path(sys.executable).parent
LIBRARY = Path("usr/lib/moe-appliance")
SHARE = Path("usr/share/moe-appliance")
DOC = Path("usr/share/doc/moe-appliance")
MAINTAINER = "moe-appliance maintainers <maintainers@moe-appliance.example>"
RELEASE = "1"
SHELLS = {
    "bash": "usr/share/bash-completion/completions/moe-appliance",
    "zsh": "usr/share/zsh/vendor-completions/_moe-appliance",
    "fish": "usr/share/fish/vendor_completions.d/moe-appliance.fish",
}


def main() -> None:
    """Build everything and name what was built, one path a line."""
    parser = argparse.ArgumentParser(prog="packaging/build", description="Build the .deb, the wheel and the sdist.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="DIR", help="Where to. Default: dist.")
    out: Path = parser.parse_args().out.absolute()
    os.chdir(ROOT)
    out.mkdir(parents=True, exist_ok=True)
    wheel, sdist = python_archives(out)
    sys.path.insert(0, str(ROOT))
    from appliance import __version__

    tree = WORK / "root"
    shutil.rmtree(tree, ignore_errors=True)
    epoch_s = int(os.environ["SOURCE_DATE_EPOCH"])
    carried = libraries(tree, wheel, __version__)
    shipped_files(tree)
    written_files(tree, __version__, epoch_s, carried)
    for path in (deb(tree, out, __version__, epoch_s), wheel, sdist):
        sys.stdout.write(f"{path}\n")


def python_archives(out: Path) -> tuple[Path, Path]:
    """The wheel and the sdist."""
    made = WORK / "python"
    shutil.rmtree(made, ignore_errors=True)
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(made), "-t", "wheel", "-t", "sdist"]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL, stderr=None)
    wheel, sdist = (Path(shutil.copy(next(made.glob(kind)), out)) for kind in ("*.whl", "*.tar.gz"))
    return wheel, sdist


def libraries(tree: Path, own: Path, version: str) -> list[Path]:
    """All wheels, ours, and pip's to install them with, into the tree; one list for each Python. The others' wheels."""
    folder = tree / LIBRARY / "wheels"
    folder.mkdir(parents=True)
    carried = {}
    for bundle in wheels.fetch(HERE / "requirements.lock", WORK / "wheels"):
        (folder / f"python{bundle.series}.lock").write_text(wheels.listing(bundle, own, version))
        carried.update({wheel.name: wheel for wheel in bundle.wheels})
    pip = wheels.fetch(HERE / "pip.lock", WORK / "pip")[0].wheels[0]
    carried[pip.name] = pip
    for wheel in (*carried.values(), own):
        put(wheel, folder / wheel.name)
    return list(carried.values())


def shipped_files(tree: Path) -> None:
    """What lies in the repository and is installed as it is."""
    put(HERE / "moe-appliance", tree / "usr/bin/moe-appliance", 0o755)
    put(HERE / "make-venv", tree / LIBRARY / "make-venv", 0o755)
    for path in sorted((ROOT / "systemd").glob("*.service")):
        put(path, tree / "usr/lib/systemd/system" / path.name)
    put(HERE / "moe-appliance.sysusers", tree / "usr/lib/sysusers.d/moe-appliance.conf")
    put(HERE / "lintian-overrides", tree / "usr/share/lintian/overrides/moe-appliance")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "docs/plan.schema.json"):
        put(path, tree / DOC / path.name)
    for path in sorted((ROOT / "plans").glob("*.json")):
        put(path, tree / SHARE / "plans" / path.name)
    for watching in ("prometheus/*.rules.yml", "grafana/*.json"):
        for path in sorted(HERE.glob(watching)):
            put(path, tree / SHARE / path.relative_to(HERE))


def written_files(tree: Path, version: str, epoch_s: int, carried: list[Path]) -> None:
    """Man page, completions, copyright, changelogs."""
    from typer.main import get_command

    from appliance.cli.app import app

    page = manpage.manual(get_command(app), version, epoch_s)
    packed(page, tree / "usr/share/man/man1/moe-appliance.1.gz")
    for shell, path in SHELLS.items():
        write(completion(shell), tree / path)
    year = datetime.fromtimestamp(epoch_s, UTC).year
    write(texts.copyright_file(map(wheels.licence, carried), year), tree / DOC / "copyright")
    changes = (ROOT / "CHANGELOG.md").read_text()
    packed(changes, tree / DOC / "changelog.gz")
    entry = texts.debian_changelog(changes, f"{version}-{RELEASE}", MAINTAINER, epoch_s)
    packed(entry, tree / DOC / "changelog.Debian.gz")


def completion(shell: str) -> str:
    """Typer's own script for a shell."""
    asked = {"_MOE_APPLIANCE_COMPLETE": f"source_{shell}", "PATH": os.environ["PATH"]}
    call = "import sys; sys.argv = ['moe-appliance']; from appliance.cli import main; main()"
    ran = subprocess.run([sys.executable, "-c", call], env=asked, check=True, capture_output=True, text=True)
    return texts.zsh_function(ran.stdout) if shell == "zsh" else ran.stdout.strip() + "\n"


def deb(tree: Path, out: Path, version: str, epoch_s: int) -> Path:
    """The .deb, from the tree; nfpm.yaml names it too."""
    for file in (tree, *tree.rglob("*")):
        os.utime(file, (epoch_s, epoch_s))
    path = out / f"moe-appliance_{version}-{RELEASE}_amd64.deb"
    values = os.environ | {"VERSION": version, "MAINTAINER": MAINTAINER}
    made = [str(BIN / "nfpm"), "package", "-f", str(HERE / "nfpm.yaml"), "-p", "deb", "-t", str(path)]
    subprocess.run(made, check=True, env=values, stdout=subprocess.DEVNULL)
    return path


def put(source: Path, to: Path, mode: int = 0o644) -> None:
    """Copy a file, with a mode of its own: that of a checkout depends on the umask."""
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, to)
    to.chmod(mode)


def write(text: str, to: Path) -> None:
    """Write a text file."""
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(text)
    to.chmod(0o644)


def packed(text: str, to: Path) -> None:
    """Write a text file in gzip's form, without a time in it."""
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    to.chmod(0o644)


if __name__ == "__main__":
    main()
