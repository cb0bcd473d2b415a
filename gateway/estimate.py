"""How many tokens a body is likely to be, before anybody counts them. Pure.

Rules:
- It only decides whether the engine is asked to count: too high costs a few milliseconds, too low lets a prompt
  through that the engine refuses. So a higher share is taken at once and a lower one approached slowly.
"""

from __future__ import annotations

FIRST_TOK_PER_BYTE = 1 / 3
"""Source: facts/clients.md section 2, about 4 bytes a token in agents' requests; text denser than that exists."""
DENSEST_TOK_PER_BYTE = 1.0
"""Digits and random letters: about one token a byte."""
THINNEST_TOK_PER_BYTE = 1 / 5
"""One seat that sends bodies full of what is no prompt must not make the others' look short."""
COUNT_FROM_SHARE = 0.85
LEARN_FROM_BYTES = 4096
_DECAY = 0.02


class TokenEstimate:
    """Learned from the engine's own counts of prompts."""

    def __init__(self) -> None:
        self.tok_per_byte = FIRST_TOK_PER_BYTE

    def learn(self, tokens: int, body_bytes: int) -> None:
        """A body of `body_bytes` had `tokens`. Small ones say little: most of them is not prompt."""
        if body_bytes < LEARN_FROM_BYTES:
            return
        seen = min(max(tokens / body_bytes, THINNEST_TOK_PER_BYTE), DENSEST_TOK_PER_BYTE)
        weight = 1.0 if seen > self.tok_per_byte else _DECAY
        self.tok_per_byte += weight * (seen - self.tok_per_byte)

    def at_least(self, body_bytes: int, tokens: int) -> int:
        """What a body is likely to have, and no fewer than `tokens`."""
        return max(tokens, int(body_bytes * self.tok_per_byte))

    def worth_counting(self, body_bytes: int, max_tokens: int, window: int, *, surely: bool) -> bool:
        """True when prompt or prompt and answer may not fit into `window` tokens. `surely`: be sure, whatever the
        text: what waits in the line has its 200 before the engine sees it."""
        tokens = body_bytes * (DENSEST_TOK_PER_BYTE if surely else self.tok_per_byte)
        # not `tokens + max_tokens`: a client may ask for more than a float holds
        return tokens > COUNT_FROM_SHARE * window or max_tokens > window - tokens
