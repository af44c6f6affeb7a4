"""Products, norms, polynomials, differences and covariances."""
