"""The HTTP server: requests as the OpenAI API writes them, answered by a running cluster."""
