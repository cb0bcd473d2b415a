"""Acceptance with real clients: SDKs and coding agents, in exactly the versions pinned here, before a fake engine.

Rules:
- All of it runs where only loopback exists (isolated.py), so that no client can ever reach its vendor.
- A client gets a clean environment, a home folder and a work folder of its own, and none of its processes is left.
- Claude Code is not open source: it is installed from npm and run, never stored. No recorded request body is kept;
  tests look at bodies in memory and say structural facts only.
"""
