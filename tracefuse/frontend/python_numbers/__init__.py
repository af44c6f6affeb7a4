"""Numbers of Python that a traced function computes from its arrays, and the functions of Python that make them."""
