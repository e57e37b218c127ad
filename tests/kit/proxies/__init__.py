"""What stands between a client and a real broker: it drops connections, or falsifies answers."""
