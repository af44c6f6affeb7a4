"""Memory that a call is given: buffers for results, arguments that are changed or donated, and where arrays lie."""
