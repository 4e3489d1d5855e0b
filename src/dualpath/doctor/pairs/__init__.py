"""Checks of two hosts that are to talk with each other, one file each; a module's `CHECK` is found by listing."""
