"""What the engine's prefix cache is believed to hold: fingerprints of prompts, an index of them, and its snapshot."""
