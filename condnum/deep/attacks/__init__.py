"""Attacks on a deep net: who attacks, the attacked net, one attack, and what many of them say together."""
