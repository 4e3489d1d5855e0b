"""What this host has: NICs, links and memory out of sysfs and netlink, and hosts emulated by network namespaces.

Rails and the doctor read the same facts here. Everything is read through a `Tree`, so that a recorded host can be
looked at like the live one.
"""
