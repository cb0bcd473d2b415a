"""The fake, where the real one is."""


def cli_env_setup() -> None:
    """The real one says how processes are made."""
