"""What placement costs and keeps, measured inside stock vLLM 0.26.0 on a card: run with the Python that has vLLM."""
