"""ELF files on disk, and modules as the dynamic loader left them in the memory of a process."""
