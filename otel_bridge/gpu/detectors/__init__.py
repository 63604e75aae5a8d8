"""What windows of readings say beyond the readings: pure functions over arrays."""
