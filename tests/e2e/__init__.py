"""The box as a whole: real processes, one fake engine, failures as they happen."""
