"""The inference engine: requests in, continuations out. Knows no files."""
