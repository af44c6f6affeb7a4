"""The array API namespace in parts: creation, functions, linear algebra, Fourier transforms, inspection."""
