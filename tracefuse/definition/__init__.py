"""FusionDefinition: the recording frontend with nvFuser's calls, and segments as users see them."""
