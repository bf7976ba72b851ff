"""Experiments: a frozen configuration in, tidy tables out. They draw nothing."""
