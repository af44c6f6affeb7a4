"""From a fusion to an executable: passes, concretizations, plans, and one executable for each device."""
