"""What tools print, as typed values; one file for each tool. A parser takes text and never raises on any text.

What a tool did not say is `None` or left out; a line that is not understood is skipped. Versions differ in spacing,
order and wording, so parsers look for labels rather than columns.
"""
