"""An overload, the rule that sees it, the breaker that it trips, and the way back: the demo's end."""
