"""One plain function per kind of fabric, from a request to the graph; one file each."""
