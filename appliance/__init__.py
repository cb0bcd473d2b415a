"""The box, the model's bytes, the engine and the command line. Pure."""

__version__ = "0.1.0"
