"""The real engine: the control core drives a transformer on torch with a paged KV cache."""
