"""Workers on other hosts: how they join a cluster, and the cluster of those that did."""
