"""What stands between a client and a real server.

`dropping.py` knows no protocol and passes bytes on in both directions; `lying.py` knows requests and their answers, one
after the other.
"""
