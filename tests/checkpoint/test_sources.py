"""What a person means by a path, a URL or a repository, and what a hub answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.checkpoint.answers import TransportError
from appliance.checkpoint.sources import Folder, Hub, Remote, Source, Url, remote_of, source_of
from appliance.errors import CheckpointError
from tests.checkpoint.hub_server import COMMIT, HubServer
from tests.checkpoint.range_server import Page, RangeServer, Trouble

SHARD = "model-00001-of-00001.safetensors"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / SHARD).write_bytes(b"0" * 99)
    with RangeServer(tmp_path) as cdn, HubServer(tmp_path, cdn) as running:
        yield running


def listed(hub: HubServer, source: Source, **environ: str) -> Remote:
    assert isinstance(source, Hub)
    naps: list[float] = []
    return remote_of(source, {"HF_ENDPOINT": hub.url + "/", **environ}, naps.append)


def test_what_exists_is_a_folder_or_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    assert source_of(str(tmp_path)) == Folder(tmp_path)
    assert source_of("org/name") == Folder(Path("org/name"))


@pytest.mark.parametrize(
    ("text", "revision", "source"),
    [
        ("org/na.me-1", None, Hub("org/na.me-1")),
        ("org/name@main", None, Hub("org/name", "main")),
        ("org/name@refs/pr/1", None, Hub("org/name", "refs/pr/1")),
        ("org/name", "v1", Hub("org/name", "v1")),
        ("http://127.0.0.1:1/a/", None, Url("http://127.0.0.1:1/a/")),
        ("HTTPS://127.0.0.1/a?sig=1#part", None, Url("https://127.0.0.1/a?sig=1")),
    ],
)
def test_repositories_and_urls_are_told_apart(text: str, revision: str | None, source: Source) -> None:
    assert source_of(text, revision) == source


@pytest.mark.parametrize(
    ("text", "revision", "said"),
    [
        ("/no/such/folder", None, "no such file or folder"),
        ("./org/name", None, "no such file or folder"),
        ("nothing", None, "no such file or folder"),
        ("~no-such-user/x", None, "no such file or folder"),
        ("a\0b", None, "no such file or folder"),
        ("a" * 5000, None, "File name too long"),
        ("org/name@", None, "no such file or folder"),
        ("org/name@a b", None, "is no revision"),
        ("org/name@a", "b", "two revisions"),
        ("http://127.0.0.1/x", "b", "--revision is for hubs"),
        ("http://", None, "no valid URL"),
        ("http://127.0.0.1:port/", None, "no valid URL"),
        ("http://127.0.0.1/a b", None, "no valid URL"),
        ("ftp://127.0.0.1/x", None, "no such file or folder"),
    ],
)
def test_what_is_none_of_them_is_told(text: str, revision: str | None, said: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        source_of(text, revision)
    assert said in caught.value.message


def test_a_revision_of_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="--revision is for hubs"):
        source_of(str(tmp_path), "main")


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(CheckpointError, match="is seen by everybody") as caught:
        source_of("http://ana:s3cret@127.0.0.1/x")
    assert "s3cret" not in str(caught.value)
    assert "ana" not in str(caught.value)
    assert "MOE_CHECKPOINT_TOKEN" in caught.value.remedy


@pytest.mark.parametrize(
    ("url", "file", "shard"),
    [
        ("http://h/a/b", None, "http://h/a/b/x%20y.safetensors"),
        ("http://h/a/b/", None, "http://h/a/b/x%20y.safetensors"),
        ("http://h", None, "http://h/x%20y.safetensors"),
        ("http://h/a/my.safetensors.index.json", "my.safetensors.index.json", "http://h/a/x%20y.safetensors"),
        ("http://h/a/m%20n.safetensors?sig=1", "m n.safetensors", "http://h/a/x%20y.safetensors?sig=1"),
    ],
)
def test_files_of_a_url_are_beside_the_file_it_names(url: str, file: str | None, shard: str) -> None:
    remote = remote_of(Url(url), {})

    assert remote.file == file
    assert remote.url("x y.safetensors") == shard
    assert "sig" not in remote.origin + remote.place


def test_gguf_is_read_from_this_machine_only() -> None:
    with pytest.raises(CheckpointError, match="from this machine only"):
        remote_of(Url("http://127.0.0.1/m.gguf"), {})


def test_the_hubs_token_goes_to_nobody_but_the_hub() -> None:
    environ = {"HF_ENDPOINT": "https://hub:80", "HF_TOKEN": "hub-secret", "MOE_CHECKPOINT_TOKEN": "url-secret"}

    assert remote_of(Url("https://other/x"), environ).token == "url-secret"
    assert remote_of(Url("https://other/x"), {"HF_TOKEN": "hub-secret"}).token is None
    assert remote_of(Url("https://hub:80/org/name/resolve/main/"), environ).token == "hub-secret"
    assert "secret" not in repr(remote_of(Url("https://other/x"), environ))


@pytest.mark.parametrize(
    ("source", "variable"), [(Url("http://another.test/x"), "MOE_CHECKPOINT_TOKEN"), (Hub("org/name"), "HF_TOKEN")]
)
def test_a_token_is_not_sent_where_everybody_on_the_way_could_read_it(source: Url | Hub, variable: str) -> None:
    with pytest.raises(CheckpointError, match="has no https") as caught:
        remote_of(source, {"HF_ENDPOINT": "http://far.test", variable: "hush"})
    assert "hush" not in str(caught.value)
    assert caught.value.remedy.endswith(f"unset {variable}")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "[::1]"])
def test_this_machine_may_have_the_token_without_https(host: str) -> None:
    assert remote_of(Url(f"http://{host}:8000/x"), {"MOE_CHECKPOINT_TOKEN": "hush"}).token == "hush"


@pytest.mark.parametrize("token", ["a\nb", "gr\u00fcn", "a\x00"])
def test_what_can_be_no_token_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(CheckpointError, match="MOE_CHECKPOINT_TOKEN holds characters that no token has") as caught:
        remote_of(Url("http://127.0.0.1/x"), {"MOE_CHECKPOINT_TOKEN": token})
    assert token not in str(caught.value)
    assert remote_of(Url("http://127.0.0.1/x"), {"MOE_CHECKPOINT_TOKEN": " good\n"}).token == "good"


def test_a_hub_lists_sizes_hashes_and_the_commit(hub: HubServer) -> None:
    remote = listed(hub, source_of("org/name@main"))

    assert (remote.origin, remote.revision, remote.requests) == ("org/name@main", COMMIT, 1)
    assert remote.files is not None
    shard = remote.files[SHARD]
    assert (shard.size_bytes, shard.sha256) == (99, hub.content_hash(hub.folder / SHARD))
    assert shard.validator == shard.sha256
    assert remote.files["config.json"].sha256 is None
    assert remote.files["config.json"].validator is not None
    assert remote.url("a/b c.json") == f"{hub.url}/org/name/resolve/{COMMIT}/a/b%20c.json"


def test_the_hub_gets_the_token_of_the_environment_and_no_other(hub: HubServer) -> None:
    hub.token = "sesame"

    assert listed(hub, Hub("org/name"), HF_TOKEN="sesame").token == "sesame"
    with pytest.raises(CheckpointError, match="401") as caught:
        listed(hub, Hub("org/name"), HF_TOKEN="wrong-one")

    assert "wrong-one" not in str(caught.value)
    assert hub.seen[0].authorization == "Bearer sesame"


def test_nothing_but_the_listing_is_asked_of_the_hub(hub: HubServer) -> None:
    listed(hub, Hub("org/name"))

    assert [seen.path for seen in hub.seen] == ["/api/models/org/name"]
    assert hub.seen[0].authorization is None


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (Hub("org/other"), "org/other: the hub has no such repository"),
        (Hub("org/name", "v9"), "org/name: the hub knows no revision v9"),
        (Hub("org/na--me"), "org/na--me: no valid repository name"),
    ],
)
def test_what_a_hub_does_not_have_is_told(hub: HubServer, source: Hub, said: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        listed(hub, source)
    assert said in caught.value.message


def test_a_gated_repository_says_how_to_get_access(hub: HubServer) -> None:
    hub.pages["/api/models/org/name"] = Page(b"{}", status=403, headers={"X-Error-Code": "GatedRepo"})
    hub.answer = lambda request: RangeServer.answer(hub, request)  # type: ignore[method-assign]

    with pytest.raises(CheckpointError, match="access to it has to be granted"):
        listed(hub, Hub("org/name"))


def test_a_hub_that_recovers_is_asked_again(hub: HubServer) -> None:
    hub.troubles.append(Trouble(2, status=503))
    hub.troubles.append(Trouble(1, status=0))

    assert listed(hub, Hub("org/name")).requests == 4


def test_a_hub_that_does_not_is_given_up(hub: HubServer) -> None:
    hub.troubles.append(Trouble(99, status=429))
    with pytest.raises(TransportError, match="the hub answered 429, 5 times"):
        listed(hub, Hub("org/name"))


def test_what_is_no_hub_is_told(hub: HubServer) -> None:
    hub.pages["/api/models/org/name"] = Page(b"<html>", status=200)
    hub.answer = lambda request: RangeServer.answer(hub, request)  # type: ignore[method-assign]

    with pytest.raises(CheckpointError, match="something that is no listing"):
        listed(hub, Hub("org/name"))


@pytest.mark.parametrize(
    "siblings",
    ['[{"rfilename": 7}]', '[{"rfilename": "a", "size": "9"}]', "[]", "null", '[{"rfilename": "a", "lfs": null}]'],
)
def test_odd_listings_are_read_as_far_as_they_go(hub: HubServer, siblings: str) -> None:
    body = f'{{"id": "org/name", "sha": "{COMMIT}", "siblings": {siblings}}}'.encode()
    hub.pages["/api/models/org/name"] = Page(body, "application/json")
    hub.answer = lambda request: RangeServer.answer(hub, request)  # type: ignore[method-assign]

    files = listed(hub, Hub("org/name")).files

    assert files is not None
    assert all(isinstance(name, str) and file.size_bytes is None for name, file in files.items())
