"""Tests of what runs inside vLLM, without a GPU."""
