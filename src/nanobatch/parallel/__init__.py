"""Collectives between the ranks of one model. Launching ranks is the engine's business."""
