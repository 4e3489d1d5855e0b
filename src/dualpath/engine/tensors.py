"""Between the tensors of a model and the arrays of a path: dtypes, packing, raw bits, and the absorbed form of MLA."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dualpath.errors import UsageError

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def dtype_of(model: Any) -> str:
    """Return the dtype of a model's KV, by name. Raises `UsageError` unless it is one of `_DTYPES`, on the CPU."""
    if model.device.type != "cpu":
        raise UsageError(f"the model is on device {model.device}", hint="move it to the CPU: model.to('cpu')")
    dtype = _DTYPES.get(model.dtype)
    if dtype is None:
        raise UsageError(f"KV of dtype {model.dtype} is not supported", hint=f"one of {', '.join(_DTYPES.values())}")
    return dtype


def pack(states: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    """`[batch, heads, tokens, dim]` to `[batch x tokens (or `rows` of them), heads, dim]`."""
    flat = states.detach().transpose(1, 2).reshape(-1, states.shape[1], states.shape[3])
    return flat if rows is None else flat[rows]


def raw(states: torch.Tensor, dtype: str) -> np.ndarray[Any, Any]:
    """As numpy, bf16 and fp16 as their bits. Raises `UsageError` for another dtype than a cache was made for."""
    if _DTYPES.get(states.dtype) != dtype:
        computed = str(states.dtype).removeprefix("torch.")
        raise UsageError(
            f"the model computes KV in {computed} now, but its cache was made for {dtype}",
            hint="make a new cache once the model has its dtype, and leave it alone meanwhile; no autocast",
        )
    if states.dtype is torch.float32:
        array: np.ndarray[Any, Any] = states.numpy()
        return array
    bits: np.ndarray[Any, Any] = states.view(torch.int16).numpy().view(np.uint16)
    return bits


class _Undifferentiable(torch.autograd.Function):
    """Passes `out` on, as what depends on the tensors after it; asked for gradients, it raises `UsageError`."""

    @staticmethod
    def forward(ctx: Any, out: torch.Tensor, *_sources: torch.Tensor) -> torch.Tensor:
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *_gradients: Any) -> Any:
        raise UsageError(
            "there are no gradients through dualpath attention: it is for inference",
            hint="train without a dualpath cache; close it to restore the model",
        )


def undifferentiable(out: torch.Tensor, *sources: torch.Tensor) -> torch.Tensor:
    """Return `out`, whose gradients to `sources` would be missing: whoever asks for them gets a `UsageError`."""
    if not (torch.is_grad_enabled() and any(one.requires_grad for one in sources)):
        return out
    found: torch.Tensor = _Undifferentiable.apply(out, *sources)
    return found


def absorb(module: Any, q: torch.Tensor) -> torch.Tensor:
    """MLA: `[T, heads, nope + rope]` to `[T, heads, latent + rope]`, so that scores need the stored latents only.

    q·k = q_nope·(W_UK c) + q_rope·k_rope = (q_nope W_UK)·c + q_rope·k_rope (DeepSeek-V2, arXiv 2405.04434, 2.1.2).
    """
    nope, rope = q.float().split([module.qk_nope_head_dim, module.qk_rope_head_dim], -1)
    key_up, _ = _up_projections(module)
    return torch.cat([torch.einsum("thn,hnl->thl", nope, key_up), rope], -1)


def expand(module: Any, out: torch.Tensor) -> torch.Tensor:
    """MLA: `[T, heads, latent]` to `[T, heads, value_dim]`."""
    _, value_up = _up_projections(module)
    return torch.einsum("thl,hvl->thv", out, value_up)


def _up_projections(module: Any) -> tuple[torch.Tensor, torch.Tensor]:
    weight = module.kv_b_proj.weight.detach().float()
    both = weight.view(-1, module.qk_nope_head_dim + module.v_head_dim, weight.shape[1])
    return both[:, : module.qk_nope_head_dim], both[:, module.qk_nope_head_dim :]
