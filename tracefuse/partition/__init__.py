"""Splitting a fusion into segments: segmentation, predicates for users, slices, stream and device placement."""
