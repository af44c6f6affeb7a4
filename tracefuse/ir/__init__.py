"""The intermediate representation: fusions, their builder and text, index maps, extents, reference evaluator."""
