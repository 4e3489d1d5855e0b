"""Checks of one host, one file each; a module's `CHECK` is found by listing this package."""
