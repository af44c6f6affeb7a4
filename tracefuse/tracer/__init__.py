"""What a trace is made of: operators on traced values, symbolic sizes, captured state, and the facts that it used."""
