# Nothing for Python: see message_plan.pxd.
