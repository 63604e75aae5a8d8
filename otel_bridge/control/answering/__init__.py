"""A process of its own that answers gateways, so that spans never keep a decision waiting."""
