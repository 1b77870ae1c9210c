"""From a model's name to a decoder that runs: finding, recognising, loading and computing it."""
