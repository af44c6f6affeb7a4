"""CPU kernels: LLVM IR text, machine code through llvmlite, and the worker pool that runs them."""
