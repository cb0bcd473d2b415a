"""The one fake engine that every test uses: OpenAI chat, completions and responses, Anthropic messages, counts.

As a process: `python -m tests.fake_engine --port P --set load_s=2`, or `process.fake_engine(load_s=2)`.
In the test's own loop: `serving.serving(Knobs(...))`, or `server.FakeEngine` as an ASGI app.
"""
