"""The virtual environment that the package makes where it is installed: when it is made anew, when it is kept."""

from __future__ import annotations

import pytest

from appliance import __version__
from tests.packaging.chroot import Chroot, other_python

pytestmark = pytest.mark.systemd
LIB = "/usr/lib/moe-appliance"
ETC = "/etc/moe-appliance"
STATE = "/var/lib/moe-appliance"


def current(root: Chroot) -> str:
    return root.ok(f"readlink {LIB}/current").strip().removeprefix("venvs/")


def environments(root: Chroot) -> list[str]:
    return root.ok(f"ls {LIB}/venvs").split()


def outdate(root: Chroot) -> None:
    """As if the environment that is there had been made for other wheels."""
    root.ok(f"echo '# of another build' >>{LIB}/current/wheels.lock")


def test_neither_the_folder_nor_the_environment_of_the_caller_adds_a_module(root: Chroot) -> None:
    root.ok("mkdir -p /tmp/evil/appliance; echo 'print(666)' | tee /tmp/evil/appliance/__init__.py >/tmp/evil/re.py")
    script = "cd /tmp/evil; PYTHONPATH=/tmp/evil PYTHONHOME=/tmp/evil moe-appliance --version"
    assert root.ok(script).strip() == __version__


def test_an_appliance_toml_in_the_current_folder_is_not_taken_for_the_boxs(root: Chroot) -> None:
    root.ok("mkdir -p /tmp/evil; echo 'seats_file = \"/tmp/evil/seats.toml\"' >/tmp/evil/appliance.toml")
    assert f"in {ETC}/seats.toml" in root.ok("cd /tmp/evil; moe-appliance seats list")
    # But what is named is taken, and who may not see the box's own takes what is there.
    assert "in /tmp/evil/seats.toml" in root.ok("cd /tmp/evil; moe-appliance --config appliance.toml seats list")
    assert "in /tmp/evil/seats.toml" in root.ok(
        "MOE_APPLIANCE_CONFIG=/tmp/evil/appliance.toml moe-appliance seats list"
    )
    nobody = "cd /tmp/evil; setpriv --reuid=65534 --regid=65534 --clear-groups moe-appliance seats list"
    assert "in /tmp/evil/seats.toml" in root.ok(nobody)


def test_made_once_it_stays_as_it_is(root: Chroot) -> None:
    before = environments(root)
    root.ok(f"{LIB}/make-venv")
    assert environments(root) == before == [current(root)]


def test_seats_that_root_adds_can_be_read_by_the_service(root: Chroot) -> None:
    root.ok("moe-appliance seats add ana")
    assert root.ok(f"stat -c '%a %U %G' {ETC}/seats.toml").strip() == "640 root moe-appliance"
    root.ok(f"setpriv --reuid=moe-appliance --regid=moe-appliance --clear-groups cat {ETC}/seats.toml")


def test_another_user_is_told_to_use_sudo(root: Chroot) -> None:
    ran = root.run("setpriv --reuid=65534 --regid=65534 --clear-groups moe-appliance status")
    assert ran.code == 78
    assert "sudo" in ran.told
    assert "Traceback" not in ran.told


def test_a_new_one_replaces_the_old_which_goes_unless_something_still_runs_by_it(root: Chroot) -> None:
    # Given a daemon with its gateway, an upgrade, and what a daemon that died left running by the next version
    first = current(root)
    root.ok("install -d -o moe-appliance -g moe-appliance /run/moe-appliance")
    as_service = "setpriv --reuid=moe-appliance --regid=moe-appliance --clear-groups"
    with root.running(f"echo; exec {as_service} moe-appliance run 2>/root/daemon.log"):
        root.ok("timeout 60 sh -c 'until moe-appliance status >/dev/null 2>&1; do :; done' || cat /root/daemon.log")
        outdate(root)
        root.ok(f"{LIB}/make-venv")
        second = current(root)
        assert set(environments(root)) == {first, second}
        with root.running(f"exec {LIB}/venvs/{second}/bin/python3 -c 'print(1, flush=True); input()' 2>/dev/null"):
            # When another follows without a restart
            outdate(root)
            root.ok(f"{LIB}/make-venv")
            assert set(environments(root)) == {first, second, current(root)}
        # Then each goes when nothing runs by it any more
        root.ok(f"{LIB}/make-venv")
        assert set(environments(root)) == {first, current(root)}
        root.ok("moe-appliance stop")
    root.ok(f"{LIB}/make-venv")
    assert environments(root) == [current(root)]
    assert current(root) not in (first, second)


def test_a_change_of_python_makes_another_and_going_back_too(root: Chroot) -> None:
    others = {series: python for series in ("3.12", "3.13") if (python := other_python(series)) is not None}
    if not others:
        pytest.skip("this machine has no Python 3.12 or 3.13: see tests/packaging/chroot.py")
    before = root.ok("readlink /usr/bin/python3").strip()
    for series, other in others.items():
        root.ok(f"ln -sfn {other} /usr/bin/python3; dpkg-trigger --by-package=python3-minimal /usr/bin/python3")
        root.ok("dpkg --triggers-only --pending")
        assert f"-py{series}-" in current(root)
        assert root.ok("moe-appliance --version").strip() == __version__
    root.ok(f"ln -sfn {before} /usr/bin/python3; {LIB}/make-venv")
    assert not any(f"-py{series}-" in current(root) for series in others)


def test_a_python_that_the_package_has_nothing_for_is_said_and_what_was_there_serves_on(root: Chroot) -> None:
    before = root.ok("readlink /usr/bin/python3").strip()
    fake = "#!/bin/sh\\necho 3.14\\n"
    root.ok(f"rm /usr/bin/python3; printf '{fake}' >/usr/bin/python3; chmod +x /usr/bin/python3")
    ran = root.run("sh /var/lib/dpkg/info/moe-appliance.postinst triggered /usr/bin/python3")
    configured = root.run("sh /var/lib/dpkg/info/moe-appliance.postinst configure 0.0.1-1")
    serves = root.run("moe-appliance --version")
    root.ok(f"ln -sfn {before} /usr/bin/python3")
    assert ran.code == 0
    assert configured.code == 1
    for told in (ran.told, configured.told):
        assert "is Python 3.14" in told
        assert "remedy: " in told
    assert serves.told.strip() == __version__


def test_killed_in_the_middle_it_is_made_whole_by_configuring_again(bare: Chroot) -> None:
    bare.ok("dpkg --unpack /root/moe.deb")
    with bare.running(f"echo; exec {LIB}/make-venv"):
        bare.ok(f"until [ -e {LIB}/venvs/*/bin/python3 ]; do :; done")
        bare.ok("kill -9 $(pgrep -f '^/bin/sh .*make-venv'); pkill -9 -f '/wheels/pi[p]-' || true")
    assert bare.run("moe-appliance --version").code == 78
    bare.ok("dpkg --configure --pending")
    assert bare.ok("moe-appliance --version").strip() == __version__
    assert environments(bare) == [current(bare)]


def test_a_full_disk_is_said_and_what_was_there_serves_on(root: Chroot) -> None:
    before = current(root)
    root.ok(f"cp {LIB}/current/wheels.lock /root/wheels.lock")
    outdate(root)
    root.ok("fallocate -l $(( $(df -Pk / | awk 'NR == 2 { print $4 }') - 20000 ))KiB /root/filler")
    ran = root.run(f"{LIB}/make-venv")
    root.ok(f"rm /root/filler; mv /root/wheels.lock {LIB}/current")
    assert ran.code == 1
    assert "KiB are free" in ran.told
    assert "remedy: free some space" in ran.told
    assert environments(root) == [before]
    assert root.ok("moe-appliance --version").strip() == __version__
    root.ok(f"{LIB}/make-venv")
    assert environments(root) == [before]


def test_removed_it_leaves_the_configuration_and_purged_nothing_but_what_somebody_mounted(root: Chroot) -> None:
    """The last one: the module's root has no package afterwards."""
    root.ok("moe-appliance seats list | grep -w ana || moe-appliance seats add ana")
    root.ok("dpkg --remove moe-appliance")
    assert root.run(f"ls {LIB} /usr/share/moe-appliance /usr/bin/moe-appliance").told.count("No such file") == 3
    assert "ana" in root.ok(f"cat {ETC}/seats.toml")
    # Given weights of the same disk, bound into the state
    root.ok(
        f"mkdir -p {STATE}/models '{STATE}/my models' /srv/w; touch /srv/w/weights {STATE}/.hidden {STATE}/ledger.db"
    )
    root.ok(f"mount --bind /srv/w {STATE}/models; mount --bind /srv/w '{STATE}/my models'")
    said = root.ok("dpkg --purge moe-appliance")
    assert f"{STATE}/models stays" in said
    assert root.ok(f"ls -A /srv/w {STATE}").split() == ["/srv/w:", "weights", f"{STATE}:", "models", "my", "models"]
    assert root.run(f"ls -d {ETC}").told.count("No such file") == 1
    assert "moe-appliance" in root.ok("id moe-appliance")
