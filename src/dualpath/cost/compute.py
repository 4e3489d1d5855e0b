"""The work outside attention, and the prompt's: how long the weights and the arithmetic take."""

from __future__ import annotations


def expected_experts(count: int, active: int, tokens: int) -> float:
    """Return how many of `count` experts a batch of `tokens` tokens wakes, `active` each, chosen evenly.

    Expectation of distinct draws: `count x (1 - (1 - active/count)^tokens)`. Real routers are less even, so fewer.
    """
    return count * (1 - (1 - active / count) ** tokens)


def weights_read_bytes(weight_bytes: float, active_share: float, *, count: int, active: int, tokens: int) -> float:
    """Return the weight bytes that one step of `tokens` tokens reads in a mixture of experts.

    `active_share` is active over all parameters, of one token. What a single token uses is read anyway; of the rest
    as much as the batch wakes further experts.
    """
    if count <= active:
        return weight_bytes
    woken = (expected_experts(count, active, tokens) - active) / (count - active)
    return weight_bytes * (active_share + (1 - active_share) * woken)


def outside_attention_s(read_bytes: float, memory_bytes_per_s: float, flop: float, flop_per_s: float) -> float:
    """Return the time of a step without attention: reading its weights or computing, whichever is longer (roofline,
    Williams et al. 2009)."""
    return max(read_bytes / memory_bytes_per_s, flop / flop_per_s)


def linear_flop(active_parameters: float, tokens: float) -> float:
    """Return the FLOP of all matrix products with weights: 2 by active parameter and token (Kaplan et al. 2020)."""
    return 2 * active_parameters * tokens


def prefill_s(*, linear_flop: float, attention_flop: float, flop_per_s: float) -> float:
    """Return the time to compute a prompt that is bound by arithmetic."""
    return (linear_flop + attention_flop) / flop_per_s


def reread_in_chunks_bytes(context_bytes: float, context: int, chunk_tokens: int) -> float:
    """Return the KV bytes that the chunks of a prompt read again, all earlier chunks of it each time.

    With n chunks: `context_bytes x (n - 1) / 2`. A prompt in one chunk reads nothing again.
    """
    chunks = -(-context // chunk_tokens)
    return context_bytes * (chunks - 1) / 2
