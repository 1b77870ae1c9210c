"""What `nanobatch bench` does: workloads, engines side by side, and the limit of the hardware."""
