"""Facts with a source each: models, GPUs, NICs, switches, optics, prices."""
