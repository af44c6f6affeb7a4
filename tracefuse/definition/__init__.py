"""FusionDefinition: a recording frontend with nvFuser's API, and the segments it shows to users."""
