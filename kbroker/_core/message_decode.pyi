# Nothing for Python: see message_decode.pxd.
