"""What tests import; a folder of tests imports nothing from another."""
