"""Immunization of a backbone (Sec. 5.2): settings, objectives, the training loop and its checkpoints."""
