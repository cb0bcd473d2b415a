"""A value for every key of appliance.toml, none of them its default."""

from __future__ import annotations

from typing import Any

TOP: dict[str, Any] = {
    "listen": "127.0.0.1:9000",
    "public_url": "https://box.example",
    "model_aliases": ["gpt-*"],
    "trusted_proxies": ["10.0.0.1"],
    "state_dir": "/s",
    "runtime_dir": "/r",
    "seats_file": "/s/a.toml",
    "admins_file": "/s/b.toml",
    "prefix": [{"name": "n", "file": "/p.json", "path": "/v1/messages", "seat": None}],
}
DECLARED: dict[str, Any] = {
    "name": "n",
    "served_model": "m",
    "context_tokens": 1000,
    "floor_tok_per_s": 20.5,
    "cold_tokens": 100,
    "streams": 3,
    "kv_tokens": 5000,
    "health_path": "/ready",
    "start_timeout_s": 5.5,
}
TABLES: dict[str, dict[str, Any]] = {
    "admission": {
        **{"streams": 3, "queue_max": 5, "queue_per_seat": 3, "queue_bytes": 5000},
        **{"queue_deadline_s": 20.5, "max_stream_s": 100.5, "seat_grace_s": 0.5, "queue_cold_per_seat": 2},
        **{
            "short_s": 2.5,
            "spacing": 2.5,
            "quiet_s": 10.5,
            "last_wait_s": 30.5,
            "aged_s": 40.5,
            "over_share": 2.5,
            "floor_guard_s": 60.5,
        },
    },
    "gateway": {
        **{"body_max_bytes": 2048, "body_budget_bytes": 4096, "body_timeout_s": 2.5},
        "client_stall_s": 2.5,
        "early_response_s": 0.5,
        **{"heartbeat_s": 2.5, "first_token_s": 99.5},
        **{"engine_silence_s": 9.5, "unstreamed_s": 9.5, "drain_s": 0.5},
        **{"connections": 300, "connections_per_address": 0},
    },
    "ledger": {"enabled": False, "keep_days": 90},
    "prewarm": {"enabled": False, "bodies_bytes": 5000},
    "plan": {"file": "/p.json", "checkpoint": "/c", "make": True, "kv_gib": 2.5},
    "preflight": {"gpus": 2, "engine_python": "/e/bin/python"},
}
ENGINE: dict[str, dict[str, Any]] = {
    "embedded": {"kind": "embedded", "model_file": "/m.gguf", "threads": 3, "start_timeout_s": 5.5},
    "command": {
        **{"kind": "command", "command": ["x", "{port}"], "env": {"A": "1"}, "grace_s": 1.5},
        **{"host_kv_gib": 8.5, "host_kv_args": ["--kv", "{host_kv_gib}"], **DECLARED},
    },
    "vllm": {
        "kind": "vllm",
        "profile": "vllm-cpu-tiny",
        "environment": "vllm",
        "python": "/e/bin/python",
        "model": "org/name",
        "revision": "0123abc",
        "tensor_parallel": 2,
        "pipeline_parallel": 3,
        "kv_cache_gib": 2.5,
        "gpu_memory_utilization": 0.5,
        "max_batched_tokens": 2048,
        "chat_template": "/t.jinja",
        "tool_call_parser": "hermes",
        "reasoning_parser": "deepseek_r1",
        "thinking": "off",
        "trust_remote_code": True,
        "plugins": {"p": "loaded"},
        "placement": "command",
        "follow_mib_per_s": 512,
        "staging_tokens": 4096,
        "plan_args": ["--plan", "{plan_file}"],
        "args": ["--seed", "1"],
        "env": {"A": "1"},
        "host_kv_gib": 8.5,
        "nodes": {
            **{"executor": "mp", "nnodes": 2, "node_rank": 1, "master_addr": "10.0.0.1", "master_port": 29502},
            **{"host": "10.0.0.2", "interface": "eth1"},
        },
        "grace_s": 1.5,
        "hang_s": 90.5,
        "canary_s": 30.5,
        "allow_degraded": True,
        **{key: value for key, value in DECLARED.items() if key != "health_path"},
    },
    "external": {"kind": "external", "url": "http://10.0.0.1:1", "key_file": "/k", **DECLARED},
}
