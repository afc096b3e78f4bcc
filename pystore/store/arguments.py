"""Names the argument of a wrong type, once a call has stumbled over it.

Nothing is looked at before: a call with right arguments pays nothing for it.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from pystore.errors import BadArgument

__all__ = ["STUMBLES", "named_arguments", "refuse_wrong_types"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: What a call with an argument of a wrong type ends with.
STUMBLES = (TypeError, AttributeError)


def named_arguments(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Makes a function raise BadArgument, which names it, for an argument of a wrong type."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except STUMBLES:
            refuse_wrong_types(function, args, kwargs)
            raise

    return call


def refuse_wrong_types(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Compares arguments with the annotations of a function that has stumbled. Raises: BadArgument
    for the first that does not fit, and for arguments that the function does not have."""
    signature = inspect.signature(function)
    name = function.__qualname__.removesuffix(".__init__")
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError as wrong:
        error = BadArgument(f"{name}(): {wrong}")
        error.next_step = f"call it as {name}{_shape(signature)}"
        raise error from None
    for each, value in given.items():
        parameter = signature.parameters[each]
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        hint = _hint(parameter.annotation, function)
        if not _fits(value, hint):
            wanted = parameter.annotation
            text = f"{name}(): {each} is {type(value).__name__} {value!r:.60}"
            error = BadArgument(text)
            error.next_step = f"pass {wanted if isinstance(wanted, str) else _shown(wanted)}"
            raise error from None


def _shape(signature: inspect.Signature) -> str:
    """Shows the names alone, without types: ``(topic, queue, offset, ...)``."""
    names = [
        each.name if each.default is each.empty else f"{each.name}=..."
        for each in signature.parameters.values()
        if each.name != "self" and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    ]
    return f"({', '.join(names)})"


def _shown(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint))


def _hint(annotation: Any, function: Callable[..., Any]) -> Any:
    """Returns the type of an annotation; Any for one that only a type checker knows."""
    if not isinstance(annotation, str):
        return Any if annotation is inspect.Parameter.empty else annotation
    scope = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return eval(annotation, scope)
    except Exception:  # noqa: BLE001  a name that is imported for type checkers alone
        return Any


def _fits(value: Any, hint: Any) -> bool:
    """Says whether a value may be of that type; in doubt it may."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in typing.get_args(hint))
    if hint is None:
        return value is None
    if hint is float:
        return isinstance(value, (int, float))
    kind = origin or hint
    return isinstance(value, kind) if kind is not Any and isinstance(kind, type) else True
