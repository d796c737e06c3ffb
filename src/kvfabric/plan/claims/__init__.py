"""The published claims for a flattened fabric, put to the test: cells, runs, judgement."""
