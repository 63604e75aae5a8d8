"""Kernel events: BPF programs loaded, their ring buffers read, what is missing explained."""
