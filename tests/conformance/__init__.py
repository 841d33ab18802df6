"""What the driver's interface must do, written once and run against every target (see kit.py)."""
