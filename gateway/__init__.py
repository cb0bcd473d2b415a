"""The gateway: seats, admission and streams in front of one OpenAI-compatible engine. Pure.

Importable and runnable alone: it never imports `appliance`.
"""
