"""The building blocks of a decoder: each holds its weights and this rank's share of them."""
