"""Is my fabric right? What a host says about its NICs, recorded, and checks that judge the recording.

    collect  ──▶ Recording ──▶ Host (typed view: NICs, parsed tool output) ──▶ checks ──▶ findings
    archive  ◀─▶ (files, links, command outputs)        two Hosts ──▶ pairs ──▶ findings

A check is data in, findings out: it never touches the machine, so a recorded host is judged like the live one.
"""
