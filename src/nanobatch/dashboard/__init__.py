"""What a person sees of a run: a live dashboard, plain lines, and the summary at its end.

Everything here draws an immutable `JobStats`; nothing here knows an engine, a file or torch.
Start at `nanobatch.dashboard.progress`.
"""
