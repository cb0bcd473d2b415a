"""Which experts sit where, what that costs each card and each NUMA node, and how it is written down."""
