"""appliance/engine/probes.py: what the engine's cache holds, as its metrics say."""

from __future__ import annotations

import pytest

from tests.appliance.test_probes import Engine, asked

pytestmark = pytest.mark.anyio

VLLM_METRICS = """# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="38000",num_cpu_blocks="None"} 1.0
"""


@pytest.mark.parametrize(
    ("metrics", "tokens"),
    [
        (VLLM_METRICS, 608_000),
        (VLLM_METRICS.replace('"38000"', '"None"'), None),
        (VLLM_METRICS.replace("cache_config", "other"), None),
        ("llamacpp:requests_processing 0", None),
        ("", None),
    ],
)
async def test_what_its_cache_holds_is_read_from_its_metrics(metrics: str, tokens: int | None) -> None:
    shown = await asked(Engine(metrics=metrics))
    assert shown.abilities.kv_tokens == tokens
    assert shown.notes == ()
