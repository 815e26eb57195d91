"""What a node says of itself: health, metrics and pages over HTTP, the gRPC health service, and
spans and metrics for OpenTelemetry."""
