"""The engines that are measured: one small module each, imported only in its own process."""
