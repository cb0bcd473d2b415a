"""What coding agents are told so that they use the box well. Pure.

- A setting is here because it was tried with the real program; the page docs/agents.md is made from it.
- No key of a seat is ever in these values, but `KEY`, which stands for it.
"""
