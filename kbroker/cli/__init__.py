"""The `kbroker` command: one file per subcommand, imported only when it is called. Read `main.py` first."""
