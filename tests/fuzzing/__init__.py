"""Random calls of every norm against an independent definition: ``make fuzz ARGS="--cases 20000"``."""
