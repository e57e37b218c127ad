# Nothing for Python: see message_encode.pxd.
