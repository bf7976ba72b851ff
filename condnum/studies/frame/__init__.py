"""What every study shares: fields, cells, the store of results, executors, the run."""
