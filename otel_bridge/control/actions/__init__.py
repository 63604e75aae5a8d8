"""What follows the changes of breakers: signed webhooks, settings of others, gates."""
