"""The lessons, one file a topic: the computation, its figure, its explorer, its sentence."""
