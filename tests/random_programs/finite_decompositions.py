"""Singular values of matrices with infinities: LAPACK does not return for some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np


def _of_finite(decompose: Callable[..., Any]) -> Callable[..., Any]:
    def decomposed(*arguments: Any, **keywords: Any) -> Any:
        if any(np.isinf(one).any() for one in arguments):
            raise np.linalg.LinAlgError("SVD did not converge")
        return decompose(*arguments, **keywords)

    return decomposed


@contextmanager
def decompositions_of_infinities_raise() -> Iterator[None]:
    """Lets np.linalg.svd, and the functions that call LAPACK for singular values, raise LinAlgError for infinities."""
    module = np.linalg._umath_linalg
    names = [name for name in ("svd", "svd_f", "svd_s", "lstsq", "lstsq_m", "lstsq_n") if hasattr(module, name)]
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(module, name, _of_finite(getattr(module, name))))
        yield
