"""A model of one pod with its developers: what a policy of admission does to pace and waits, in virtual time. Pure."""
