"""Tools around training: what is wrong with this machine."""
