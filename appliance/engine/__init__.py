"""The engine: adapters, the processes that run it, and how its life goes. Imports nothing by itself."""
