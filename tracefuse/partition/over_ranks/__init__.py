"""Fusions over a mesh: the sharding of every value, the exchanges that follow, and the fusion of one rank."""
