"""How long a step takes, each estimate with its source."""
