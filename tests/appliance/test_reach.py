"""Whether a path that somebody named can be used: whatever is wrong with it, nothing is raised."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.engine import model, pairs_kept
from appliance.engine.pairs import Pairs
from appliance.engine.reach import Barred, file_barred, folder_barred, program_barred
from appliance.errors import ModelError
from gateway.state import Pair
from tests.appliance.closed import closed

LOOKS = (file_barred, program_barred, folder_barred)
LETS_IN = "   lets the user that runs moe-appliance in"


@pytest.fixture
def private(short_folder: Path) -> Path:
    """A folder with a file and a folder in it, and a link from outside."""
    short_folder.chmod(0o755)
    folder = short_folder / "private"
    (folder / "inner").mkdir(parents=True)
    (folder / "file").write_text("x")
    (folder / "file").chmod(0o755)
    (short_folder / "link").symlink_to(folder / "inner")
    return folder


def test_what_can_be_used_is_not_barred(private: Path) -> None:
    assert file_barred(private / "file") is None
    assert program_barred(private / "file") is None
    assert folder_barred(private.parent / "link") is None


@pytest.mark.parametrize("look", LOOKS)
def test_a_folder_on_the_way_that_may_not_be_entered_is_opened_by_the_remedy(
    private: Path, look: Callable[[Path], Barred | None]
) -> None:
    denied = Barred("Permission denied", f"sudo chmod a+x {private}{LETS_IN}")
    look(private)
    with closed(private):
        assert [look(path) for path in (private / "file", private.parent / "link")] == [denied, denied]


def test_what_is_closed_itself_is_opened_by_the_remedy(private: Path) -> None:
    with closed(private / "file"):
        assert file_barred(private / "file") == Barred(
            "Permission denied", f"sudo chmod a+r {private / 'file'}{LETS_IN}"
        )
    (private / "file").chmod(0o644)
    assert program_barred(private / "file") == Barred(
        "Permission denied", f"sudo chmod a+rx {private / 'file'}{LETS_IN}"
    )
    with closed(private / "inner"):
        assert folder_barred(private / "inner") == Barred(
            "Permission denied", f"sudo chmod -R a+rX {private / 'inner'}{LETS_IN}"
        )


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", ["gone", "file/below", "n" * 300, "a\0b", "loop"])
def test_what_is_not_there_has_no_remedy_of_permissions(
    private: Path, look: Callable[[Path], Barred | None], name: str
) -> None:
    (private / "loop").symlink_to("loop")
    barred = look(private / name)
    assert barred is not None
    assert barred.why
    assert barred.remedy == ""


def test_something_else_is_said_to_be_none(private: Path) -> None:
    assert file_barred(private) == program_barred(private) == Barred("it is no file")
    assert folder_barred(private / "file") == Barred("it is no folder")


def test_a_model_file_out_of_reach_is_named_with_what_opens_it(private: Path) -> None:
    with closed(private), pytest.raises(ModelError, match="file cannot be read: Permission denied") as caught:
        model._readable(private / "file")
    assert caught.value.remedy == f"sudo chmod a+x {private}{LETS_IN}"


def test_a_chosen_plan_out_of_reach_gives_way_to_its_copy(private: Path) -> None:
    # given a plan that was chosen, in a folder that was closed since
    state = private.parent / "state"
    pairs_kept.save(_made(state), Pairs(current=Pair(plan_file=str(private / "file"))))
    copy = _made(state / "plans") / "file"
    copy.write_text("x")
    for path in (state, copy.parent, state / pairs_kept.NAME):
        path.chmod(0o755)
    # when a daemon reads what was in use
    with closed(private):
        kept = pairs_kept.load(state)
    # then
    assert kept is not None
    assert kept.current.plan_file == str(copy)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
