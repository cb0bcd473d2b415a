"""How many developers a box can take: from a profile, and from what the team did."""
