"""One run of a file job: read, skip what is finished, feed the engine, record, report."""
