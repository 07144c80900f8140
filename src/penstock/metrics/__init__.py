"""What a job tells to systems that watch many programs: Prometheus, OpenTelemetry."""
