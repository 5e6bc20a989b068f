"""What to record next: settings that tell the most, and how many steps of them."""
