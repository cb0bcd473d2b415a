"""For tests: a JSON value as any client may spell it. A Hypothesis strategy."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

BLANKS = st.text(" \t\r\n", max_size=2)


@st.composite
def spelled(draw: st.DrawFn, value: Any) -> str:
    """`value` as JSON with white space wherever it may stand, escapes or not."""
    before, after = draw(BLANKS), draw(BLANKS)
    if isinstance(value, dict):
        inner = ",".join(f"{draw(spelled(k))}:{draw(spelled(v))}" for k, v in value.items())
        return f"{before}{{{inner or draw(BLANKS)}}}{after}"
    if isinstance(value, list):
        return f"{before}[{','.join(draw(spelled(v)) for v in value) or draw(BLANKS)}]{after}"
    return before + json.dumps(value, ensure_ascii=draw(st.booleans())) + after
