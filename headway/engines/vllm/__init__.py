"""vLLM: the one file that steers its scheduler, and what is told to it from outside."""
