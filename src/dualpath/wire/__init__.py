"""Messages and framing. No sockets, no clock: bytes in, messages out."""
