"""Pictures of fusions: an HTML page with a graph that opens and folds, inline SVG for notebooks, DOT and JSON."""
