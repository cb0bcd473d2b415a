"""vLLM as an engine: its settings, the profiles, the command that is made of them, the adapter and the launcher."""
