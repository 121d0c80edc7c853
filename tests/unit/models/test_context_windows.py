"""How much a model reads: as configured, or as its refusals say."""

from __future__ import annotations

import pytest

from highwater.schemas.errors import ConfigurationError
from highwater.streams.models.context_windows import ContextWindows, is_too_long, parse_context_windows

REFUSALS = {
    "OpenAI": "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
    "vLLM": "'max_tokens' is too large: 8000. This model's maximum context length is 8192 tokens and your request has 2000",
    "llama.cpp": '{"type": "exceed_context_size_error", "n_prompt_tokens": 20123, "n_ctx": 8192}',
    "Anthropic": "prompt is too long: 20123 tokens > 8192 maximum",
    "Mistral": "Prompt contains 40000 tokens, too large for model with 8192 maximum context length",
    "Gemini": "The input token count (20123) exceeds the maximum number of tokens allowed (8192).",
    "TGI": "`inputs` tokens + `max_new_tokens` must be <= 8192. Given: 9000 `inputs` tokens and 2000 `max_new_tokens`",
}


@pytest.mark.parametrize("service", REFUSALS)
def test_a_refusal_says_how_much_is_read(service: str):
    """In the words of each service; the size is kept, and a later refusal can only make it smaller."""
    windows = ContextWindows()
    assert is_too_long(REFUSALS[service])
    assert windows.room("m", "", 8_000) is None
    assert windows.learn("m", REFUSALS[service], 20_000)
    assert (windows.answer_tokens("m", 8_000), windows.answer_tokens("m", 1_000)) == (2_048, 1_000)
    assert windows.room("m", "", 8_000) == 8_192 - 2_048 - 64
    assert not windows.learn("m", REFUSALS[service], 20_000)
    assert windows.learn("m", REFUSALS[service], 8_000)  # what was sent fits by our count: a quarter less is tried
    assert windows.answer_tokens("m", 8_000) == 1_500
    assert windows.answer_tokens("another", 8_000) == 8_000


@pytest.mark.parametrize("told", ["the temperature must be 1", "no such model", "max_tokens is not known", ""])
def test_other_refusals_are_not_about_the_length(told: str):
    """They are final, or about the form of a request."""
    assert not is_too_long(told)


def test_a_refusal_without_a_number_takes_a_quarter_off_until_nothing_could_be_asked():
    """Then the refusal is final."""
    windows, sent, times = ContextWindows({"m": 16_000}), 12_000, 0
    while windows.learn("m", "context_length_exceeded", sent):
        sent, times = sent * 3 // 4, times + 1
    assert (sent, times) == (1_200, 8)


def test_sizes_are_configured():
    """By name, which may contain an equals sign."""
    assert parse_context_windows("") == {}
    assert parse_context_windows(" small=8192, ft=a=4096 ,") == {"small": 8_192, "ft=a": 4_096}
    assert ContextWindows(parse_context_windows("small=8192")).answer_tokens("small", 8_000) == 2_048


@pytest.mark.parametrize("text", ["8192", "=8192", "small=", "small=-1", "small=many", "small=100", "a=2048,a=4096"])
def test_a_wrong_setting_is_named(text: str):
    """One clear error."""
    with pytest.raises(ConfigurationError, match="HIGHWATER_LLM_CONTEXT_TOKENS"):
        parse_context_windows(text)
