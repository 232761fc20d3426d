"""What runs leave, read and drawn."""
