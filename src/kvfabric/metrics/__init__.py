"""The one definition of every latency and throughput figure."""
