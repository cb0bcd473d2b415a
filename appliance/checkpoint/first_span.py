"""How much of a shard to ask for first, so that its whole header comes in one request and little else. Pure.

An entry of a header is its tensor's name and about 80 bytes more, which vary little over the shards of one checkpoint:
the index gives the names, the shards that came give the rest.
"""

from __future__ import annotations

from collections.abc import Mapping

from appliance.checkpoint.headers import LENGTH_BYTES, LIMIT_BYTES

PRIOR_BYTES = 80.0
"""An entry without its name, until a shard was seen: a dtype, two dimensions and offsets of ten digits, no blanks."""
BLIND_BYTES = 65_536
"""What is asked for when the names are not known."""
MARGIN = 1.01
LARGEST_BYTES = 400.0
"""An entry without its name takes no more, whatever a shard that came had besides its entries: one whose header is
mostly metadata must not make the next one's first range reach far into its weights."""
FIXED_BYTES = 256
"""Over the estimate: the length, the metadata, and entries of a shard that has other dtypes than the ones before."""


class FirstSpan:
    """Learns from each shard. `weight_map`: tensor -> shard, empty without an index."""

    def __init__(self, weight_map: Mapping[str, str]) -> None:
        self._names_bytes: dict[str, int] = {}
        self._tensors: dict[str, int] = {}
        for name, shard in weight_map.items():
            self._names_bytes[shard] = self._names_bytes.get(shard, 0) + len(name)
            self._tensors[shard] = self._tensors.get(shard, 0) + 1
        self._seen_bytes = 0
        self._seen_tensors = 0

    def bytes_for(self, shard: str) -> int:
        """How many bytes to ask for, from the start of the file."""
        tensors = self._tensors.get(shard)
        if tensors is None:
            return BLIND_BYTES
        each = self._seen_bytes / self._seen_tensors if self._seen_tensors else PRIOR_BYTES
        estimate = int((self._names_bytes[shard] + tensors * min(each, LARGEST_BYTES)) * MARGIN) + FIXED_BYTES
        return min(estimate, LENGTH_BYTES + LIMIT_BYTES)

    def learn(self, shard: str, header_bytes: int) -> None:
        """What the header of a shard really took."""
        if shard in self._tensors:
            self._seen_bytes += max(0, header_bytes - self._names_bytes[shard])
            self._seen_tensors += self._tensors[shard]
