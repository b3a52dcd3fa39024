"""The operations whose problems are drawn, and what the verifier needs of each."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .attention import draw as attention_problems
from .products import draw as product_problems


@dataclass(frozen=True)
class Operation:
    """How problems of an operation are drawn, built and judged.

    `built = build(drawn, device)` has `outputs()`, which makes poisoned outputs, `call(*outputs)`,
    which says what to call, and `run(*outputs, kernel=None, backend=None)`. An operation that is no
    public function has `explain(*outputs, backend=None)` in the place of `call`. `judge(built,
    *outputs)` is the largest share of the error budget, and a message if the result is wrong."""

    name: str
    limit: str  # the option that limits a problem
    draw: Callable[[int, str, int], Any]  # from a seed, a device and the limit
    build: Callable[[Any, str], Any]
    judge: Callable[..., tuple[float, str | None]]
    draws_rows: bool  # whether kernel rows are drawn unless --rows says otherwise


# PyTorch is imported when the first problem is built.


def _build_attention(drawn: Any, device: str) -> Any:
    from .attention import build

    return build.build(drawn, device, STRETCH[device])


def _judge_attention(built: Any, *outputs: Any) -> tuple[float, str | None]:
    from .attention import judge

    return judge.judge(built, *outputs)


def _build_backward(drawn: Any, device: str) -> Any:
    from .attention import backward

    return backward.build_backward(drawn, device, STRETCH[device] // 4)


def _judge_backward(built: Any, *outputs: Any) -> tuple[float, str | None]:
    from .attention import judge_backward

    return judge_backward.judge(built, *outputs)


def _draw_backward(seed: int, device: str, most_pairs: int) -> Any:
    from .attention import backward

    return backward.draw_backward(seed, attention_problems.DTYPES[device], most_pairs)


def _build_product(drawn: Any, device: str) -> Any:
    from .products import build

    return build.build(drawn, device)


def _judge_product(built: Any, *outputs: Any) -> tuple[float, str | None]:
    from .products import judge

    return judge.judge(built, *outputs)


def _draw_attention(seed: int, device: str, most_pairs: int) -> Any:
    return attention_problems.draw(seed, attention_problems.DTYPES[device], most_pairs)


def _draw_fp8(seed: int, device: str, most_pairs: int) -> Any:
    return attention_problems.draw(seed, (attention_problems.FP8,), most_pairs)


def _draw_product(op: str) -> Callable[[int, str, int], Any]:
    def draw(seed: int, device: str, most_multiplies: int) -> Any:
        return product_problems.draw(op, seed, device, most_multiplies)

    return draw


def _draw_fp8_product(seed: int, device: str, most_multiplies: int) -> Any:
    return product_problems.draw_fp8(seed, device, most_multiplies)


STRETCH = {"cpu": 1 << 20, "cuda": 1 << 25}  # elements of a score matrix that are judged at a time
# The largest problems, by the name of the option that limits them.
LIMITS = {"pairs": {"cpu": 1 << 21, "cuda": 1 << 28},
          "multiplies": {"cpu": 1 << 23, "cuda": 1 << 33}}
LEAST = 64

ATTENTION = Operation("attention", "pairs", _draw_attention, _build_attention, _judge_attention,
                      draws_rows=False)
FP8 = Operation("attention_fp8", "pairs", _draw_fp8, _build_attention, _judge_attention,
                draws_rows=True)
BACKWARD = Operation("attention_backward", "pairs", _draw_backward, _build_backward,
                     _judge_backward, draws_rows=True)
PRODUCTS = {op: Operation(op, "multiplies", _draw_product(op), _build_product, _judge_product,
                          draws_rows=True) for op in product_problems.OPS}
FP8_PRODUCTS = Operation("products_fp8", "multiplies", _draw_fp8_product, _build_product,
                         _judge_product, draws_rows=True)
OPERATIONS = {one.name: one for one in (ATTENTION, FP8, BACKWARD, *PRODUCTS.values(),
                                        FP8_PRODUCTS)}
GROUPS = {"products": tuple(PRODUCTS), "all": tuple(OPERATIONS)}


def operation_of(op: str, seed: int) -> Operation:
    """The operation of a seed's problem, where `op` may be a name of several."""
    names = GROUPS.get(op, (op,))
    name = names[0] if len(names) == 1 else random.Random(f"operation {seed}").choice(names)
    return OPERATIONS[name]
