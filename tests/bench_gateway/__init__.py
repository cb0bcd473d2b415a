"""Measures the gateway against nginx and no proxy at all, in front of the same cheap upstream.

Rules:
- Figures of two machines, or of two runs, do not compare; ratios inside one run do.
- The contenders take turns in short rounds and medians are taken, so that a change of load hits all of them.
- Upstream and client share one core, the contender has the other, when there are two.
- The gateway runs as it does for people: seat keys, admission, metering and its log line are on.
"""
