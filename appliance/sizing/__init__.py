"""How many seats a box has for a team: what the answer is computed from, the answer, and its pictures."""
