"""docs/tls.md with the real programs: its snippets in front of a real gateway on the fake engine."""
