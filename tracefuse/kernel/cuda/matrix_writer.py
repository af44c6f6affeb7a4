"""Writes the statements about matrices in the registers of warps, and about tiles that groups of warps multiply."""

from __future__ import annotations

from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.cuda.cuda_expressions import SUM
from tracefuse.kernel.cuda.group_reductions import Writer
from tracefuse.kernel.cuda.tile_products import multiply_tiles
from tracefuse.kernel.infix import Text


class MatrixWriter(Writer):
    """A writer that knows these statements."""

    def address(self, name: str, where: Text) -> str:
        return name if where.text == "0" else f"{name} + {where.at(SUM)}"

    def places(self, *elements: tuple[ir.Buffer, ir.Expression]) -> str:
        """Return the addresses of elements of buffers, as arguments."""
        return ", ".join(self.address(self.name(b), self.printer.index(index)) for b, index in elements)

    def matrices(
        self,
        statement: ir.LoadMatrices
        | ir.LoadPairs
        | ir.MultiplyMatrices
        | ir.MultiplyTiles
        | ir.AwaitProducts
        | ir.StorePair,
    ) -> None:
        match statement:
            case ir.LoadMatrices(to, to_index, source, source_index, transposed):
                name = self.printer.use("load_matrices_transposed" if transposed else "load_matrices")
                self.line(f"{name}({self.places((to, to_index), (source, source_index))});")
            case ir.LoadPairs(to, to_index, source, source_index, step, aligned):
                name, from_ = "load_pairs", self.places((source, source_index))
                if not aligned:
                    name, from_ = "load_shifted_pairs", f"{self.name(source)}, {self.printer.index(source_index).text}"
                self.line(f"{self.printer.use(name)}<{step}>({self.places((to, to_index))}, {from_});")
            case ir.MultiplyMatrices(sums, at, left, left_at, right, right_at, dtype):
                name = self.printer.use(f"multiply_matrices_{dtype.name}")
                self.line(f"{name}({self.places((sums, at), (left, left_at), (right, right_at))});")
            case ir.MultiplyTiles(sums, at, left, left_at, right, right_at, _, terms, transposed, replaces, awaited):
                name = self.printer.use(multiply_tiles(statement))
                flags = ", ".join(str(flag).lower() for flag in (transposed, replaces))
                self.line(f"{name}<{terms}, {flags}>({self.places((sums, at), (left, left_at), (right, right_at))});")
                if awaited:
                    self.await_products((sums,), 0)
            case ir.AwaitProducts(completed, later):
                self.await_products(completed, later)
            case ir.StorePair(buffer, place, low, high, dtype):
                self.printer.use(f"rounded_pair_{dtype.name}")
                pair = ", ".join(self.printer.top(value, index=False).text for value in (low, high))
                self.line(f"{self.name(buffer)}[{self.printer.index(place)}] = rounded_pair<{dtype.name}>({pair});")

    def await_products(self, completed: tuple[ir.Buffer, ...], later: int) -> None:
        self.line(f"{self.printer.use('await_products')}<{later}>();")
        for sums in completed:
            self.line(f"{self.printer.use('keep_order')}<{sums.size}>({self.name(sums)});")
