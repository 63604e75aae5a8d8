"""What all listeners share: who may come in, their certificates, addresses and connections."""
