"""Functions that many kernels call and none inlines: each is compiled once, as a module that kernels are linked with.

They are the loops of rare paths (`kernel/llvm/rare_paths.py`), transposes and products of tiles, plain loops
(`kernel/llvm/plain_loops.py`) and math functions (`kernel/llvm/linked_math.py`). In the module of each kernel they
would take up to half of its compile time. A kernel declares them; their symbols begin with `PREFIX`, as no other
declared function's do, so that the text of a kernel tells which ones to link.
"""

from __future__ import annotations

import re
import threading
from typing import NamedTuple

from tracefuse.caches import Cache, register
from tracefuse.errors import InternalError
from tracefuse.kernel.cache.disk_cache import DiskCache, hashed, load_or_make
from tracefuse.kernel.interrupt_shield import shielded
from tracefuse.kernel.llvm import float32_math, linked_math, plain_loops, rare_paths, tile_product, tile_transpose
from tracefuse.kernel.llvm.machine_code import get_machine
from tracefuse.kernel.llvm.text_builder import Processor, host_processor

PREFIX = "tf."
_DECLARED = re.compile(rf"^declare [^@]+ @({re.escape(PREFIX)}[\w.]+)\(", re.MULTILINE)


class LinkedText(NamedTuple):
    """The LLVM module of a linked function. passes: whether it needs LLVM's passes; it may be written in vectors."""

    text: str
    passes: bool


def module_text(symbol: str, processor: Processor) -> LinkedText:
    """Return the LLVM module of a linked function."""
    declarations: dict[str, str] = {}
    in_vectors = (
        tile_transpose.transpose_function(symbol, processor.vector_bits)
        or tile_product.product_function(symbol)
        or plain_loops.plain_function(symbol, processor.vector_bits, masks=processor.masks)
    )
    rare, of_math = rare_paths.function_of(symbol), linked_math.linked_function(symbol, declarations, processor)
    if in_vectors is not None:
        texts = [in_vectors]
    elif of_math is not None:
        texts = of_math
    elif rare is not None:
        texts = float32_math.lanes_functions(rare, declarations, processor)
    else:
        raise InternalError(f"LLVM text: {symbol} is declared, and is no function that kernels are linked with")
    attributes = f'attributes #1 = {{ nounwind "prefer-vector-width"="{processor.vector_bits}" }}\n'
    return LinkedText("\n\n".join([*sorted(declarations.values()), *texts, attributes]), in_vectors is None)


_lock = threading.Lock()
_addresses: dict[str, int] = {}

register(Cache(
    "kernel.llvm.linked_functions._addresses", "machine code of functions that kernels are linked with", "symbol",
    "rare paths, transposes, products, plain loops and math functions",
))  # fmt: skip


def addresses(source: str, disk: DiskCache | None) -> dict[str, int]:
    """Return the addresses of the linked functions that a module declares, compiled or loaded from `disk`."""
    declarations = source.partition("\ndefine ")[0]
    return {symbol: _address(symbol, disk) for symbol in _DECLARED.findall(declarations)}


def _address(symbol: str, disk: DiskCache | None) -> int:
    """Return the address of a linked function, whose machine code is kept: threads may be in it at any time."""
    known = _addresses.get(symbol)
    return known if known is not None else shielded(lambda: _linked(symbol, disk))


def _linked(symbol: str, disk: DiskCache | None) -> int:
    text, passes = module_text(symbol, host_processor())
    called = addresses(text, disk)
    with _lock:
        if symbol not in _addresses:
            machine = get_machine()
            code, _ = load_or_make(
                disk, hashed("linked", (text, str(passes), *machine.key)),
                lambda code: machine.link(code, called, (symbol,)), lambda: machine.compile(text, passes=passes),
            )  # fmt: skip
            code.keep()
            _addresses[symbol] = code.addresses[symbol]
        return _addresses[symbol]
