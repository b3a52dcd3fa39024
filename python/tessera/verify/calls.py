"""How a built problem says what it calls."""

from typing import Any

Call = tuple[str, tuple[Any, ...], dict[str, Any]]  # a function's name and its arguments
