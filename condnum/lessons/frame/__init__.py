"""The frame of the explorers: controls, the widget, its figure, and recordings that play without a kernel."""
