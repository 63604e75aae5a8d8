"""GPU and host pressure: sampling, levels, detectors."""
