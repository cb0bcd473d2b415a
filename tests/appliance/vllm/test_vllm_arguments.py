"""Arguments as an operator writes them: one setting, many spellings."""

from __future__ import annotations

import pytest

from appliance.engine.vllm.arguments import ALIASES, OURS, SPECULATIVE, Argument, draft_tokens, parse, setting
from tests.appliance.vllm.vllm_requests import parser


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("--max-num-seqs", "--max-num-seqs"),
        ("--max_num_seqs", "--max-num-seqs"),
        ("--max-num-seqs=4", "--max-num-seqs"),
        ("-tp", "--tensor-parallel-size"),
        ("-cc.mode", "--compilation-config"),
        ("--compilation-config.cudagraph_mode=NONE", "--compilation-config"),
        ("--no-enable-prefix-caching", "--enable-prefix-caching"),
    ],
)
def test_each_spelling_means_the_same_setting(written: str, meant: str) -> None:
    assert setting(written) == meant


def test_values_belong_to_the_flag_in_front_of_them() -> None:
    words = ("--cudagraph-capture-sizes", "1", "2", "--max-model-len", "-1", "--seed=3", "--enforce-eager")
    assert parse(words) == (
        Argument("--cudagraph-capture-sizes", ("1", "2")),
        Argument("--max-model-len", ("-1",)),
        Argument("--seed", ("3",)),
        Argument("--enforce-eager", ()),
    )


@pytest.mark.parametrize(
    "name", [*OURS, "--api_key", "--api-k", "--ssl-keyfile=x", "--conf", "--por", "--uds=/x", "--roo"]
)
def test_what_is_the_appliances_own_is_refused_with_a_reason(name: str) -> None:
    with pytest.raises(ValueError, match="is not for you to set: "):
        parse((name, "x"))


def test_every_option_of_tls_is_refused() -> None:
    for name in parser():
        if "ssl" in name and not name.startswith("--no-"):
            with pytest.raises(ValueError, match="is not for you"):
                parse((name,))


@pytest.mark.parametrize(
    ("written", "tokens"),
    [
        ("--max-num-seqs 4", 5),
        ('--speculative-config {"method":"mtp","num_speculative_tokens":3}', 3),
        ('-sc={"num-speculative-tokens":2}', 2),
        ("--speculative_config.num_speculative_tokens=4 --speculative-config.method=mtp", 4),
        ("--spec-method mtp --spec-tokens 1", 1),
        ("--spec-tokens 1 --spec-tokens 2", 2),
        ("--spec-method mtp", None),
        ('--speculative-config {"method":"mtp"}', None),
        ("--speculative-config {", None),
        ("--speculative-config [3]", None),
        ("--speculative-config", None),
        ("--spec-tokens", None),
        ("--spec-tokens -1", None),
        ("--spec-tokens " + "9" * 5000, None),
    ],
)
def test_the_tokens_of_a_draft_are_read_in_each_spelling(written: str, tokens: int | None) -> None:
    assert draft_tokens(written.split(), 5) == tokens


def test_the_settings_of_a_draft_are_those_of_the_pinned_parser() -> None:
    ours = {name for name in parser() if name.startswith("--spec") and "lora" not in name}
    assert ours == SPECULATIVE


@pytest.mark.parametrize("words", [("x",), ("", "--seed"), ("--",)])
def test_a_word_that_belongs_to_no_flag_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"^args: "):
        parse(words)


def test_the_short_names_are_those_of_the_pinned_parser() -> None:
    known = parser()
    short = {name: one["dest"] for name, one in known.items() if not name.startswith("--") and name != "-h"}
    assert {name: known[long]["dest"] for name, long in ALIASES.items()} == short
