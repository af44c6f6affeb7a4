"""`@fuse`: traces, their caches, calls, and the array API namespace."""
