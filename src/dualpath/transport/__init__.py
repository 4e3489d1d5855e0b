"""How bytes and messages move between a client and a node: TCP (`tcp`), and Unix sockets with mapped memory (`mapped`).

`base` is the contract. A new transport is one file and passes `dualpath.testing.transport`.
"""
