"""Exchanges between ranks: through MPI, NCCL or the memory of one process, and the channel that reports differences."""
