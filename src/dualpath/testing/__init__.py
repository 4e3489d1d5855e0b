"""Public fakes, fault injection and conformance suites: one suite per contract, for any implementation of it."""
