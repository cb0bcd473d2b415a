"""The operator's sources: what is refused, what is built, and what is seen when they change. Real git, a fake nvcc."""

from __future__ import annotations

import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.engine.environments import build, sources, verify
from appliance.engine.environments.install import Installed, lock_of
from appliance.engine.environments.manifest import BuiltFrom
from appliance.engine.environments.pip import Pip
from appliance.engine.environments.sets import SETS, Source
from appliance.errors import MoeError
from tests.appliance.environments.conftest import put
from tests.appliance.environments.wheelhouse import House, house

BACKEND = """
import sys, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    import os
    assert os.environ["CUDA_HOME"].endswith("cuda"), os.environ["CUDA_HOME"]
    name = "NAME-1-py3-none-any.whl"
    info = "NAME-1.dist-info"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as archive:
        archive.write("NAME.py")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: NAME\\nVersion: 1\\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(f"{info}/RECORD", "")
    return name
"""
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
PATCH = "--- a/plugin.py\n+++ b/plugin.py\n@@ -1 +1 @@\n-made = 1\n+made = 2\n"


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *who, "-C", str(folder), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def tree(folder: Path, name: str) -> str:
    """A source in git that builds without a network; its commit."""
    folder.mkdir(parents=True)
    (folder / "backend.py").write_text(BACKEND.replace("NAME", name))
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / f"{name}.py").write_text("made = 1\n")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", name)
    return git(folder, "rev-parse", "HEAD")


class Supplied:
    """An operator's folder with two sources, a patch and the file that names them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.commits = {key: tree(home / key, key) for key in ("library", "plugin")}
        (home / "ours.patch").write_text(PATCH)
        self.file = home / "sources.toml"
        self.write()

    def write(self, **instead: str) -> None:
        tables = []
        for key in ("library", "plugin"):
            path = self.home / key
            said = {"path": key, "commit": self.commits[key], "sha256": sources.sha256_of(path)} | instead
            tables.append(f"[{key}]\n" + "".join(f'{name} = "{value}"\n' for name, value in said.items()))
        digest = sources.sha256_of(self.home / "ours.patch")
        tables.append(f'[patch]\npath = "ours.patch"\nsha256 = "{digest}"\nto = "plugin"\n')
        self.file.write_text("\n".join(tables))

    def of(self, made: House) -> House:
        wanted = tuple(Source(key, commit[:8], key) for key, commit in self.commits.items())
        return replace(made, made=replace(made.made, name="tiny", sources=wanted))


@pytest.fixture
def supplied(tmp_path: Path) -> Supplied:
    return Supplied(tmp_path / "srv")


@pytest.fixture
def nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cuda" / "bin" / "nvcc"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    path.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(path.parents[1]))
    return path


@pytest.fixture
def built(tmp_path: Path, supplied: Supplied, nvcc: Path) -> Installed:
    made = supplied.of(house(tmp_path / "house", imports=("vllm", "library", "plugin")))
    return put(tmp_path / "state", made, sources_file=supplied.file)


def test_sources_are_built_with_the_patch_and_recorded(built: Installed, supplied: Supplied, tmp_path: Path) -> None:
    environment = built.environment
    said = subprocess.run([environment.python, "-c", "import plugin; print(plugin.made)"], capture_output=True)
    assert said.stdout == b"2\n"
    recorded = {one.key: one for one in environment.manifest.sources}
    assert recorded["plugin"].commit == supplied.commits["plugin"]
    assert recorded["patch"].to == "plugin"
    assert (supplied.home / "plugin" / "plugin.py").read_text() == "made = 1\n", "theirs are not changed"
    assert not (environment.folder / "sources").exists()
    assert built.findings == ()


def test_what_changed_since_is_seen(built: Installed, supplied: Supplied, tmp_path: Path) -> None:
    lock = lock_of(SETS["tiny"], tmp_path / "house" / "locks")
    (supplied.home / "plugin" / "plugin.py").write_text("made = 3\n")
    (supplied.home / "ours.patch").unlink()
    by_title = {one.title: one for one in verify.verify(built.environment, lock)}
    assert by_title["The source [plugin] is not what was built"].severity == "fail"
    assert by_title["The source [patch] cannot be read any more"].severity == "warn"


def test_another_patch_is_another_environment(built: Installed, supplied: Supplied, tmp_path: Path) -> None:
    (supplied.home / "ours.patch").write_text(PATCH.replace("made = 2", "made = 4"))
    supplied.write()
    again = put(tmp_path / "state", supplied.of(house(tmp_path / "house")), sources_file=supplied.file)
    assert again.environment.id != built.environment.id
    assert not again.again


@pytest.mark.parametrize(
    ("break_", "says"),
    [
        (lambda s: s.write(commit="0" * 40), r"\[library\] commit is '0{40}', and the one that is known to work is"),
        (lambda s: s.write(sha256="00"), r"\[library\] sha256 is '00', and .* has [0-9a-f]{64}"),
        (lambda s: s.write(path="gone"), r"\[library\] path: there is no .*gone"),
        (lambda s: s.write(path="ours.patch"), r"is neither a folder nor an archive"),
        (lambda s: s.write(more="1"), r"\[library\] more is missing, unknown or no text"),
        (lambda s: s.file.write_text("[plugin]\n"), r"\[library\], \[patch\] is missing, unknown or no table"),
        (lambda s: s.file.write_text("plugin"), r"--sources .*sources.toml: "),
        (lambda s: s.file.unlink(), r"--sources .*sources.toml: No such file"),
        (
            lambda s: s.file.write_text(s.file.read_text().replace('to = "plugin"', 'to = "x"')),
            r"\[patch\] to is 'x'",
        ),
    ],
)
def test_a_sources_file_that_is_wrong_names_the_key(supplied: Supplied, tiny: House, break_: object, says: str) -> None:
    break_(supplied)  # type: ignore[operator]
    with pytest.raises(MoeError, match=says) as caught:
        sources.read(supplied.file, supplied.of(tiny).made)
    assert caught.value.remedy


def test_a_tree_that_is_not_at_its_commit_or_changed_is_refused(supplied: Supplied, tiny: House) -> None:
    (supplied.home / "plugin" / "new.py").write_text("")
    supplied.write()
    with pytest.raises(MoeError, match=r"\[plugin\]: .* has changes that are in no commit: \?\? new.py"):
        sources.read(supplied.file, supplied.of(tiny).made)
    git(supplied.home / "plugin", "add", "-A")
    git(supplied.home / "plugin", "commit", "-q", "-m", "more")
    with pytest.raises(MoeError, match=r"\[plugin\]: .* is at commit"):
        sources.read(supplied.file, supplied.of(tiny).made)


def test_sources_are_asked_for_where_they_are_needed_only(supplied: Supplied, tiny: House) -> None:
    with pytest.raises(MoeError, match=r"sources that you supply: \[library\], \[plugin\] and \[patch\]"):
        sources.read(None, supplied.of(tiny).made)
    with pytest.raises(MoeError, match="leave --sources out"):
        sources.read(supplied.file, tiny.made)
    assert sources.read(None, tiny.made).hashes == ()


def test_a_patch_that_does_not_apply_stops_it(supplied: Supplied, tmp_path: Path) -> None:
    (supplied.home / "ours.patch").write_text(PATCH.replace("made = 1", "made = 7"))
    said = build.patch_problem(supplied.home / "ours.patch", supplied.home / "plugin")
    assert "patch failed: plugin.py:1" in said


def test_an_archive_is_unpacked_and_its_hash_is_the_files(supplied: Supplied, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "plugin.tar.gz", "w:gz") as archive:
        archive.add(supplied.home / "plugin", "plugin-1")
    one = BuiltFrom("plugin", str(tmp_path / "plugin.tar.gz"), sources.sha256_of(tmp_path / "plugin.tar.gz"))
    assert sources.problem(one) == ""
    top = build.copied(one, tmp_path / "to")
    assert top == tmp_path / "to" / "plugin-1"
    assert build.patch_problem(supplied.home / "ours.patch", top) == ""


def test_a_source_that_changes_while_it_is_installed_is_not_built(
    supplied: Supplied, tiny: House, tmp_path: Path
) -> None:
    given = sources.read(supplied.file, supplied.of(tiny).made)
    (supplied.home / "library" / "library.py").write_text("made = 9\n")
    with pytest.raises(MoeError, match=r"\[library\] .* was changed while this ran"):
        build.build(given, tmp_path / "copies", Path("/usr/bin/nvcc"), Pip(Path(), Path(), -1), lambda _: lambda: None)


def test_a_folders_hash_follows_names_modes_contents_and_links(tmp_path: Path) -> None:
    seen = []
    (tmp_path / "a").write_text("x")
    seen.append(sources.sha256_of(tmp_path))
    (tmp_path / "a").chmod(0o755)
    seen.append(sources.sha256_of(tmp_path))
    (tmp_path / "a").write_text("y")
    seen.append(sources.sha256_of(tmp_path))
    (tmp_path / "b").symlink_to("a")
    seen.append(sources.sha256_of(tmp_path))
    (tmp_path / "d").symlink_to("/nowhere")
    seen.append(sources.sha256_of(tmp_path))
    assert len(set(seen)) == len(seen)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("x")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / ".git").write_text("gitdir: elsewhere")
    assert sources.sha256_of(tmp_path) == seen[-1]


def test_without_the_right_compiler_nothing_begins(tmp_path: Path, nvcc: Path) -> None:
    assert build.compiler({"CUDA_HOME": str(nvcc.parents[1])}) == nvcc
    with pytest.raises(MoeError, match=r"there is no nvcc in CUDA_HOME=/nowhere") as caught:
        build.compiler({"CUDA_HOME": "/nowhere"})
    assert caught.value.remedy.startswith("apt-get install cuda-toolkit-13-0")
    nvcc.write_text("#!/bin/sh\necho 'release 12.8, V12'\n")
    with pytest.raises(MoeError, match=r"is CUDA 12\.8, and the locked torch is for CUDA 13"):
        build.compiler({"CUDA_HOME": str(nvcc.parents[1])})


def test_the_exl3_set_names_the_commits_that_are_known_to_work() -> None:
    assert {one.key: one.commit for one in SETS["vllm-exl3"].sources} == {
        "exllamav3": "5be88657",
        "plugin": "d3cfd394",
    }
