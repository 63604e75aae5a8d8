"""One slow request, and what the kernel did to it: the demo's last part."""
