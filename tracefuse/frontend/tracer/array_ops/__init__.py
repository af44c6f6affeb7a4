"""Operations on traced values: arithmetic, indexing, shapes, assignment, reductions."""
