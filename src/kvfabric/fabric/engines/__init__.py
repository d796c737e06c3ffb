"""How flows share links: max-min fairness, priority flow control by events or step by step."""
