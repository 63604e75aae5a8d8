"""Pages of the bridge itself: recent traces with their kernel events, breakers, rules, health."""
