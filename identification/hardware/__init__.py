"""What a plant says of the machine that it was measured on: devices, models, rates that it implies, sizes it was not measured at."""
