"""Templates: which nodes one kernel can hold, and how its loops are laid out for each target."""
