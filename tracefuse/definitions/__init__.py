"""The parts of FusionDefinition: what it hands out, `fd.ops`, inputs and outputs, segments as they are shown."""
