"""What benchmarks are made of: clusters, loads, stores to measure with, histograms and the
report."""
