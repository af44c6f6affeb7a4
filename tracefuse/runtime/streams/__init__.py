"""Stream-parallel loops: their host programs and the code of an iteration."""
