"""What clients saw: their stamps of requests and tokens, against the engine's own."""
