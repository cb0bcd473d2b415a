"""The package as an operator meets it: the .deb installed, started and removed on a booted systemd.

Marked `systemd`: `scripts/test --systemd` runs them, as root. machine.py is the container, service.py what is in it.
"""
