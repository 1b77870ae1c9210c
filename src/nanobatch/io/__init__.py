"""Files in and out: rows read from inputs, results journalled and written. Imports no torch."""
