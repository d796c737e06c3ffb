"""Which channels a message takes: shortest paths, and the policies that choose among them."""
