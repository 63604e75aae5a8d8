from otel_bridge.cli import main

main()
